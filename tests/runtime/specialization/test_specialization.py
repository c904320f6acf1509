"""Guards and specialisations: table D's guard rows, the compile cache, and what is kept on disk."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose

from ortopt import InferenceSession
from ortopt.runtime.execution.cache import Cache
from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.serialization.save import save
from ortopt.testing import parse
from tests.runtime.models import FUNCTION, HEADER, TWO_GROUPS, WITH_SHAPE, Twice, floats, session, two_groups
from tests.runtime.side_by_side import check, in_threads


def reshaped(x: Any, shape: Any) -> Any:
    w = np.array([1, 2, 3, 4], np.float32)
    return -np.maximum(x + w, 0).reshape(shape)


def test_no_run_is_missed_twice() -> None:
    mine = session(TWO_GROUPS, specialize_after=1)
    for rows in (2, 2, 3, 3, 2):
        mine.run(None, {"x": floats(rows, 4)})
    found = mine.statistics
    assert (found.group_runs, found.misses, found.hits) == (15, 6, 9)


def run(mine: Any, rows: int, shape: list[int], seed: int = 0) -> None:
    x = floats(rows, 4, seed=seed)
    (got,) = mine.run(None, {"x": x, "shape": np.array(shape, np.int64)})
    assert_allclose(got, reshaped(x, shape), rtol=1e-6)


# Table D


def test_guard_failure_runs_the_general_session_and_is_counted() -> None:
    """Row: guards: CudaFusionGuard + If + fallback."""
    mine = session(WITH_SHAPE, specialize_after=2, specialize_constants=True)
    for seed in range(4):
        run(mine, 3, [12], seed)
    assert mine.statistics.specializations == 2
    assert mine.statistics.guard_failures == 0
    run(mine, 3, [-1])
    assert mine.statistics.guard_failures == 1
    run(mine, 3, [12])
    assert mine.statistics.guard_failures == 1
    assert mine.statistics.specializations == 2


def test_guard_view_reshape_targets_that_were_profiled_are_guarded() -> None:
    """Row: guardView: constraints between input sizes and view sizes."""
    mine = session(WITH_SHAPE, specialize_after=1, specialize_constants=True)
    run(mine, 3, [12])
    for shape in ([3, 4], [2, 6], [6, 2], [1, 12], [-1], [12]):
        run(mine, 3, shape)
    run(mine, 6, [12, 2])


def test_profiled_constants_are_folded_in() -> None:
    """Row: profile_ivalue → conditional constants: shape vectors, axes, scalars, conditions seen to be constant."""
    text = f"""{HEADER}
    main (float[2,3] x, int64[A] axes, float scale, bool flip) => (float[] y) {{
        t = my.Twice (x)
        y = ortopt.group.group_0 (t, axes, scale, flip) }}
    {FUNCTION} group_0 (p, axes, scale, flip) => (r) {{
        m = Mul (p, scale) n = Neg (m) o = Where (flip, n, m) r = Unsqueeze (o, axes) }}"""
    mine = session(text, host_ops=[Twice], specialize_after=2, specialize_constants=True)
    x = floats(2, 3)

    def check(axes: list[int], scale: float, flip: bool) -> None:
        feeds = {"x": x, "axes": np.array(axes), "scale": np.array(scale, np.float32), "flip": np.array(flip)}
        expected = 2 * x * np.float32(scale) * (-1 if flip else 1)
        assert_allclose(mine.run(None, feeds)[0], np.expand_dims(expected, axes), rtol=1e-6)

    for _ in range(4):
        check([0], 3.0, True)
    assert mine.statistics.specializations == 1
    check([1], 3.0, True)
    check([0], 4.0, True)
    check([0], 3.0, False)
    assert mine.statistics.guard_failures == 3


def test_profile_is_needed_to_specialise() -> None:
    """Row: groups without complete profiling information are not fused."""
    mine = session(WITH_SHAPE, specialize_after=3, specialize_constants=True)
    for _ in range(2):
        run(mine, 3, [12])
    assert mine.statistics.specializations == 0
    changing = session(WITH_SHAPE, specialize_after=3, specialize_constants=True)
    for shape in ([12], [-1], [12], [-1], [12]):
        run(changing, 3, shape)
    assert changing.statistics.specializations == 2
    assert changing.statistics.guard_failures == 0  # what changed was not folded in


def test_guards_that_fail_again_and_again_are_given_up() -> None:
    mine = session(WITH_SHAPE, specialize_after=2, specialize_constants=True)
    for _ in range(3):
        run(mine, 3, [12])
    for _ in range(20):
        run(mine, 3, [-1])
    statistics = mine.statistics
    assert statistics.guard_failures == 8
    assert statistics.specializations == 3  # again, in its sizes alone


def test_random_groups_are_never_specialised() -> None:
    text = f"""{HEADER} main (float[N] x) => (float[N] y) {{
        q = ortopt.group.group_0 (x) y = my.Twice (q) }}
    {FUNCTION} group_0 (p) => (r) {{
        q = RandomNormalLike (p) r = Add (p, q) }}"""
    mine = session(text, host_ops=[Twice], specialize_after=1)
    first, second = (mine.run(None, {"x": floats(9)})[0] for _ in range(2))
    assert not np.array_equal(first, second)
    assert mine.statistics.specializations == 0


def test_random_numbers_are_drawn_in_order_never_at_the_same_time() -> None:
    text = f"""{HEADER} main (float[N] x) => (float[N] y, float[N] z) {{
        q = ortopt.group.group_0 (x) p = ortopt.group.group_1 (x) y = my.Twice (q) z = my.Twice (p) }}
    {FUNCTION} group_0 (p) => (r) {{ r = RandomNormalLike <seed = 1.0> (p) }}
    {FUNCTION} group_1 (p) => (r) {{ r = RandomNormalLike <seed = 2.0> (p) }}"""
    mine = session(text, host_ops=[Twice])
    waits, _ = mine._session.plan.dependencies()
    names = [step.name for step in mine._session.plan.steps]
    assert names.index("group_0") < names.index("group_1")
    assert waits[names.index("group_1")] == 1


# The cache


def test_sizes_are_folded_in() -> None:
    text = f"""{HEADER} main (float[N,4] x) => (int64[2] s, float[N,4] y) {{
        t = my.Twice (x) s, y = ortopt.group.group_0 (t) }}
    {FUNCTION} group_0 (p) => (s, r) {{
        s = Shape (p) q = Relu (p) r = Neg (q) }}"""
    feeds = [{"x": floats(rows, 4)} for rows in (1, 2, 1, 2)]
    mine = check(text, *feeds, host_ops=[Twice], specialize_after=1)
    assert mine.statistics.specializations == 2


@pytest.mark.parametrize(("limits", "entries"), [({"cache_entries": 4}, 4), ({"cache_bytes": 3 << 18}, 3)])
def test_the_cache_is_bounded(limits: dict[str, int], entries: int) -> None:
    mine = session(TWO_GROUPS, specialize_after=1, **limits)
    for rows in (*range(1, 9), *range(1, 9)):
        x = floats(rows, 4)
        assert_allclose(mine.run(None, {"x": x})[0], two_groups(x)[0], rtol=1e-6)
        assert len(mine._session.context.cache) <= entries
    assert mine.statistics.evictions == mine.statistics.specializations - len(mine._session.context.cache)


def test_one_compile_for_concurrent_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = session(TWO_GROUPS, specialize_after=1)
    compiled: list[str] = []
    original = GroupRunner.compile_on

    def slow(self: GroupRunner, *arguments: Any, **options: Any) -> Any:
        compiled.append(self.spec.name)
        return original(self, *arguments, **options)

    monkeypatch.setattr(GroupRunner, "compile_on", slow)
    start = threading.Barrier(8)
    x = floats(3, 4)

    def call(_: int) -> Any:
        start.wait()
        return mine.run(None, {"x": x})[0]

    for got in in_threads(8, call):
        assert_allclose(got, two_groups(x)[0], rtol=1e-6)
    assert sorted(compiled) == ["group_0", "group_1", "leftover_0"]
    assert mine.statistics.specializations == 3


def test_a_specialisation_that_fails_leaves_the_general_session(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortopt.runtime.specialization import optimized_group

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(optimized_group, "optimize", fail)
    mine = session(TWO_GROUPS, specialize_after=1)
    x = floats(3, 4)
    with pytest.warns(RuntimeWarning, match="is not specialised: no"):
        mine.run(None, {"x": x})
    assert_allclose(mine.run(None, {"x": x})[0], two_groups(x)[0], rtol=1e-6)
    assert mine.statistics.fallbacks == 3


def test_cache_drops_the_least_recently_used() -> None:
    dropped: list[int] = []
    cache: Cache[int] = Cache(2, 100, dropped.append)
    for key in (1, 2):
        cache.get_or_make(key, lambda key=key: (key, 10))
    assert cache.get(1) == 1
    cache.get_or_make(3, lambda: (3, 10))
    assert dropped == [2]
    cache.get_or_make(4, lambda: (4, 1000))
    assert (len(cache), cache.nbytes, cache.get(4)) == (1, 1000, 4)
    cache.drop(4)
    cache.drop(4)
    assert cache.nbytes == 0


def test_cache_gives_an_error_to_all_who_wait_and_tries_again() -> None:
    cache: Cache[int] = Cache(2, 100)
    entered, leave = threading.Event(), threading.Event()

    def fail() -> tuple[int, int]:
        entered.set()
        leave.wait(30)
        raise OSError("no")

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache.get_or_make, 1, fail)
        entered.wait(30)
        second = threads.submit(cache.get_or_make, 1, lambda: (1, 1))
        leave.set()
        assert isinstance(first.exception(30), OSError)
        assert second.exception(30) is None or isinstance(second.exception(30), OSError)
    assert cache.get_or_make(1, lambda: (7, 1)) in {1, 7}


# On disk


def specialised(folder: Path) -> Any:
    mine = session(TWO_GROUPS, specialize_after=1, cache_folder=folder)
    x = floats(3, 4)
    assert_allclose(mine.run(None, {"x": x})[0], two_groups(x)[0], rtol=1e-6)
    return mine.statistics


def test_disk_keeps_optimized_groups(tmp_path: Path) -> None:
    first, second = specialised(tmp_path / "new"), specialised(tmp_path / "new")
    assert (first.stored, first.restored) == (3, 0)
    assert (second.stored, second.restored) == (0, 3)


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "nonsense", "model"])
def test_disk_damage_is_found_and_repaired(tmp_path: Path, damage: str) -> None:
    specialised(tmp_path)
    for path in tmp_path.iterdir():
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        damaged = {"empty": b"", "short": path.read_bytes()[:60], "flipped": bytes(content), "nonsense": b"x" * 999}
        path.write_bytes(damaged.get(damage, onnx.ModelProto(ir_version=10).SerializeToString()))
    again = specialised(tmp_path)
    assert (again.discarded, again.restored, again.stored) == (3, 0, 3)
    assert specialised(tmp_path).restored == 3


def test_disk_many_writers(tmp_path: Path) -> None:
    rows = in_threads(4, lambda _: specialised(tmp_path))
    assert all(row.stored + row.restored == 3 for row in rows)
    assert all(row.discarded == 0 for row in rows)
    assert len(list(tmp_path.iterdir())) == 3


def test_disk_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert specialised(tmp_path / "file").stored == 0


def test_disk_tells_weights_apart(tmp_path: Path) -> None:
    specialised(tmp_path)
    other = TWO_GROUPS.replace("{1, 2, 3, 4}", "{1, 2, 3, 5}")
    mine = check(other, {"x": floats(3, 4)}, specialize_after=1, cache_folder=tmp_path)
    assert mine.statistics.restored == 1  # the Neg between the groups


@pytest.mark.parametrize("external_data", ["copy", "inline"])
@pytest.mark.parametrize("where", ["file", "memory"])
def test_tables_in_files_do_not_count(tmp_path: Path, where: str, external_data: Literal["copy", "inline"]) -> None:
    """What a session maps, and only looks up in, is nobody's memory; what kernels may pack is."""
    model = parse(f"""{HEADER}
    main (int64[N] i) => (float[N,64] y) <float[1] table = {{0}}, float[1] w = {{0}}> {{
        t = my.Twice (i) y = ortopt.group.group_0 (t, table, w) }}
    {FUNCTION} group_0 (i, table, w) => (r) {{
        s = Gather (table, i) r = MatMul (s, w) }}""")
    arrays = {"table": floats(4096, 64), "w": floats(64, 64)}
    for name, array in arrays.items():
        value = model.graph.initializers[name]
        value.shape = ir.Shape(array.shape)
        value.const_value = ir.Tensor(array, name=name)
    save(model, tmp_path / "model.onnx", external_data=external_data)
    source = model if where == "memory" else tmp_path / "model.onnx"
    mine = InferenceSession(source, providers=["cpu"], host_ops=[Twice], specialize_after=1)
    assert_allclose(mine.run(None, {"i": np.array([1, 2])})[0], arrays["table"][[2, 4]] @ arrays["w"], rtol=1e-4)
    assert mine.statistics.specializations == 1
    counted = mine._session.context.cache.nbytes
    assert counted >= arrays["w"].nbytes
    assert (counted > arrays["table"].nbytes) == (where == "memory")
