"""Guards in files, written and read back. Row of table D: guards: CudaFusionGuard + If + fallback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_array_equal

from ortopt import InferenceSession, UsageError, optimize
from ortopt.partition.groups import GUARD_KEY, groups_of
from ortopt.runtime.specialization.guard_reader import choice_of
from ortopt.runtime.specialization.guard_writer import guarded
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from tests.releases import since
from tests.runtime.models import FUNCTION, HEADER, Twice, floats, session
from tests.runtime.side_by_side import PARALLEL, SEQUENTIAL, in_the_meantime, in_threads, quiet, same, theirs
from tests.runtime.specialization.test_guard_writer import TEXT, feed, grouped

SHAPES = {"x": [3, 4]}
TWELVE = np.array([12])


def guards(model: ir.Model) -> list[Any]:
    return [choice_of(node, model.functions) for node in model.graph if node.op_type == "If"]


def agree(model: ir.Model, mine: InferenceSession, *feeds: dict[str, Any]) -> None:
    plain = theirs(model)
    for one in feeds:
        same(plain.run(None, one), mine.run(None, one))


def test_a_guard_that_holds_is_no_if_and_runs_the_specialized_group() -> None:
    model = guarded(grouped(), "group_0", shapes=SHAPES, constants={"shape": TWELVE})
    mine = session(load(to_bytes(model)))
    names = [group.spec.name for group in mine.groups]
    assert "group_0" in names
    assert "group_0_specialized" in names
    steps = [step.name for step in mine._session.plan.steps]
    assert not any(name.startswith("If") for name in steps)
    assert len(steps) <= 3
    assert sum(name.startswith("leftover") for name in names) <= 2
    agree(model, mine, feed(), feed(s=3.0))
    assert (mine.statistics.specialized_runs, mine.statistics.guard_failures) == (2, 0)
    assert [group.provider for group in mine.groups if group.spec.name == "group_0"] == [None]  # not even compiled
    agree(model, mine, feed(4, 3), feed(shape=(3, 4)), feed(0, 4, (0, 2)))
    assert (mine.statistics.specialized_runs, mine.statistics.guard_failures) == (2, 3)
    statistics = mine.statistics
    assert statistics.hits + statistics.misses == statistics.group_runs


@pytest.mark.parametrize("run_type", ["ort", "reference", "host", "debug"])
def test_several_versions_in_every_way_to_run(run_type: str) -> None:
    model = grouped()
    for rows in (3, 2, 5):
        model = guarded(model, "group_0", shapes={"x": [rows, 4]})
    model = guarded(model, "group_0", shapes={"s": []}, constants={"s": np.array(-0.0, np.float32)})
    (found,) = guards(model)
    assert [version.call.op_type for version in found.versions] == [
        "group_0_specialized", "group_0_specialized_2", "group_0_specialized_3", "group_0_specialized_4",
    ]  # fmt: skip
    mine = session(model, run_type=run_type)
    feeds = [feed(rows, 4, (rows * 4,)) for rows in (3, 2, 5, 7, 3)]
    feeds += [feed(7, 4, (28,), s=s) for s in (-0.0, 0.0)]
    for one in feeds:
        with np.errstate(all="ignore"):
            found = mine.run(None, one)
        for expected, got in zip(theirs(grouped()).run(None, one), found, strict=True):
            assert_array_equal(expected, got)
    assert mine.statistics.specialized_runs == 5
    assert mine.statistics.guard_failures == 2


def test_guards_in_the_body_of_a_loop() -> None:
    text = f"""{HEADER}
    main (float[N] x, int64 n) => (float[N] y) {{
        c = Constant <value = bool {{1}}> ()
        y = Loop (n, c, x) <body = b (int64 i, bool k, float[N] v) => (bool o, float[N] w) {{
            o = Identity (k) w = ortopt.group.group_0 (v) }}> }}
    {FUNCTION} group_0 (p) => (r) {{ t = Mul (p, p) s = Neg (t) r = Add (s, p) }}"""
    model = guarded(grouped(text, weights=0), "group_0", shapes={"v": [3]})
    mine = session(model, sess_options=None)
    for n, trips in ((3, 4), (2, 2), (3, 0)):
        agree(model, mine, {"x": floats(n), "n": np.array(trips)})
    assert (mine.statistics.specialized_runs, mine.statistics.guard_failures) == (4, 2)


@pytest.mark.parametrize("mode", [SEQUENTIAL, PARALLEL], ids=["sequential", "parallel"])
def test_many_threads_with_changing_sizes(mode: Any) -> None:
    model = guarded(guarded(grouped(), "group_0", shapes=SHAPES), "group_0", shapes={"x": [2, 4]})
    mine = session(model, sess_options=quiet(execution_mode=mode))
    plain = theirs(grouped())
    cases = [feed(rows, 4, (rows * 4,)) for rows in range(1, 6)]
    expected = [plain.run(None, one) for one in cases]

    def work(seed: int) -> None:
        for i in range(40):
            k = (seed + i) % len(cases)
            same(expected[k], mine.run(None, cases[k]))

    in_threads(10, work)
    assert (mine.statistics.specialized_runs, mine.statistics.guard_failures) == (160, 240)


def test_threads_of_versions_are_those_of_the_group() -> None:
    text = TEXT.replace("r = Shape (v)", "r = Shape (v) ").replace("y = Reshape", "q = my.Twice (v) y = Reshape")
    options = quiet(intra_op_num_threads=4)
    mine = session(guarded(grouped(text), "group_0", shapes=SHAPES), sess_options=options, host_ops=[Twice])
    threads = {group.spec.name: group.threads for group in mine.groups}
    assert threads["group_0"] == threads["group_0_specialized"]


# What is no guard


def condition(model: ir.Model) -> ir.Node:
    (node,) = [node for node in model.graph if node.op_type == "If"]
    return node


def lie(model: ir.Model, text: str) -> None:
    for function in model.functions.values():
        if GUARD_KEY in function.metadata_props:
            function.metadata_props[GUARD_KEY] = text


LIES = {
    "another size": '{"p": {"shape": [4, 3]}, "q": {"shape": [1], "value": [12]}}',
    "another value": '{"p": {"shape": [3, 4]}, "q": {"shape": [1], "value": [13]}}',
    "less": '{"p": {"shape": [3, 4]}}',
    "nothing": "{}",
    "another argument": '{"r": {"shape": [3, 4]}, "q": {"shape": [1], "value": [12]}}',
    "no argument": '{"nobody": {"shape": [3, 4]}}',
    "no shape": '{"p": {}}',
    "no list": '{"p": {"shape": 3}}',
    "too many values": '{"p": {"shape": [3, 4]}, "q": {"shape": [1], "value": [12, 13]}}',
    "beyond the type": '{"p": {"shape": [3, 4]}, "q": {"shape": [1], "value": [1e300]}}',
    "a number": "3",
    "no JSON": "nonsense",
}


@pytest.mark.parametrize("what", LIES)
def test_metadata_that_say_something_else_than_the_condition_count_for_nothing(what: str) -> None:
    model = guarded(grouped(), "group_0", shapes=SHAPES, constants={"shape": TWELVE})
    lie(model, LIES[what])
    assert guards(model) == [None]
    model = load(to_bytes(model))
    mine = session(model)
    agree(model, mine, feed(), feed(4, 3), feed(shape=(3, 4)))
    assert mine.statistics.specialized_runs == 0


def test_a_nan_in_a_guard_holds_never() -> None:
    model = guarded(grouped(), "group_0", constants={"s": np.array(2.0, np.float32)})
    lie(model, '{"r": {"shape": [], "value": ["nan"]}}')
    for node in model.graph:
        for attribute in node.attributes.values():
            if node.op_type == "Constant" and attribute.name == "value" and attribute.as_tensor().numpy().size == 1:
                array = attribute.as_tensor().numpy()
                if array.dtype == np.float32 and array.reshape(-1)[0] == 2.0:
                    node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.full_like(array, np.nan)))
    model = load(to_bytes(model))
    assert guards(model) == [None]
    agree(model, session(model), feed(s=2.0), feed(s=float("nan")))


def other_ops(model: ir.Model) -> None:
    next(node for node in model.graph if node.op_type == "Equal").op_type = "Less"


def other_branch(model: ir.Model) -> None:
    attributes = condition(model).attributes
    then, otherwise = (attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    call, general = then[0], otherwise[0]
    for one in (call, general):
        negated = ir.node("Neg", [one.outputs[-1]])
        negated.outputs[0].name = f"negated {one.name}"
        assert one.graph is not None
        one.graph.append(negated)


def no_guard(model: ir.Model) -> None:
    for function in model.functions.values():
        function.metadata_props.pop(GUARD_KEY, None)


@pytest.mark.parametrize("change", [other_ops, other_branch, no_guard])
def test_an_if_that_is_no_guard_is_run_as_it_stands(change: Any) -> None:
    model = guarded(grouped(), "group_0", shapes=SHAPES)
    change(model)
    assert guards(model) == [None]
    model = load(to_bytes(model))
    mine = session(model)
    agree(model, mine, feed(), feed(4, 3), feed(2, 4, (8,)))
    assert mine.statistics.specialized_runs == 0


def test_a_condition_that_others_use_is_still_computed() -> None:
    model = guarded(grouped(), "group_0", shapes=SHAPES)
    held = condition(model).inputs[0]
    assert held is not None
    held.type, held.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    model.graph.outputs.append(held)
    model = load(to_bytes(model))
    mine = session(model)
    agree(model, mine, feed(), feed(4, 3))
    assert (mine.statistics.specialized_runs, mine.statistics.guard_failures) == (1, 1)


def test_a_file_that_was_optimized_afterwards_runs_its_if() -> None:
    model = guarded(grouped(), "group_0", shapes=SHAPES, constants={"shape": TWELVE})
    simpler = optimize(model, level=2, verify=False).model  # its condition is another, and asks the same
    mine = session(load(to_bytes(simpler)))
    agree(model, mine, feed(), feed(4, 3), feed(shape=(3, 4)))
    assert mine.statistics.fallbacks == 0


# Written by a session


def trained(tmp_path: Path, *feeds: dict[str, Any], text: str = TEXT, **options: Any) -> Any:
    """A session that has run, and the file that it wrote."""
    options = {"specialize_after": 2, "specialize_constants": True, **options}
    mine = session(grouped(text), **options)
    for one in feeds:
        mine.run(None, one)
        mine.run(None, one)
    return mine, mine.export_specialized(tmp_path / "model.onnx")


def test_a_session_writes_what_it_was_specialized_for(tmp_path: Path) -> None:
    mine, written = trained(tmp_path, feed(2, 4, (8,)), feed(s=4.0), feed(2, 4, (8,)))
    assert written.path == str(tmp_path / "model.onnx")
    assert written.versions == ("group_0_specialized", "group_0_specialized_2")
    assert {text.split(":")[0] for text in written.skipped} == {"leftover_0"}
    onnx.checker.check_model(onnx.load(written.path), full_check=True)
    model = load(written.path)
    guard = [group.guard for group in groups_of(model) if group.guard is not None]
    assert guard[0]["p"] == {"shape": [2, 4]}  # the last first
    assert guard[1]["r"] == {"shape": [], "value": [4.0]}
    again = InferenceSession(written.path, providers=["cpu"])
    feeds = [feed(2, 4, (8,)), feed(s=4.0), feed(s=8.0), feed(5, 4, (20,))]
    agree(model, again, *feeds)
    for one in feeds:
        for expected, got in zip(theirs(grouped()).run(None, one), again.run(None, one), strict=True):
            assert_array_equal(expected, got)
    assert again.statistics.specialized_runs == 4
    assert again.statistics.guard_failures == 4
    mine.close()
    with pytest.raises(UsageError, match="closed"):
        mine.export_specialized(tmp_path / "again.onnx")


def test_a_plain_model_is_written_with_its_groups(tmp_path: Path) -> None:
    source = f"""{HEADER.replace(', "ortopt.group" : 1, "my" : 1', "")}
    main (float[N,4] x, float[N,4] z) => (float[N,4] y) {{ a = Add (x, z) b = Relu (a) y = Softmax (b) }}"""
    model = onnx.parser.parse_model(source).SerializeToString()
    mine = InferenceSession(model, providers=["cpu"], specialize_after=1)
    given = {"x": floats(3, 4), "z": floats(3, 4, seed=1)}
    expected = mine.run(None, given)
    with pytest.raises(UsageError, match="nothing has been specialised"):
        InferenceSession(model, providers=["cpu"], specialize_after=2).export_specialized(tmp_path / "no.onnx")
    assert not [*tmp_path.iterdir()]
    written = mine.export_specialized(tmp_path / "yes.onnx", external_data="inline")
    assert written.versions == ("group_0_specialized",)
    theirs = onnxruntime.InferenceSession(written.path, providers=["CPUExecutionProvider"])
    assert_array_equal(theirs.run(None, given)[0], expected[0])
    again = InferenceSession(written.path, providers=["cpu"])
    assert_array_equal(again.run(None, given)[0], expected[0])
    assert again.statistics.specialized_runs == 1


def test_a_file_with_guards_gets_more_of_them(tmp_path: Path) -> None:
    _, first = trained(tmp_path, feed())
    more = InferenceSession(first.path, providers=["cpu"], specialize_after=1)
    for one in (feed(), feed(5, 4, (20,)), feed(), feed(5, 4, (20,))):
        more.run(None, one)
    special = {group.spec.name: len(group.specializations()) for group in more.groups}
    assert (special["group_0"], special["group_0_specialized"]) == (1, 0)  # what is special already stays so
    second = more.export_specialized(tmp_path / "more.onnx")
    assert second.versions == ("group_0_specialized", "group_0_specialized_2")
    last = InferenceSession(second.path, providers=["cpu"])
    agree(load(second.path), last, feed(), feed(5, 4, (20,)), feed(6, 4, (24,)))
    assert (last.statistics.specialized_runs, last.statistics.guard_failures) == (2, 1)


@since(1, 21, "Add of uint64")
def test_contents_that_cannot_be_compared_are_left_out_of_the_guard(tmp_path: Path) -> None:
    text = f"""{HEADER}
    main (float[N] x, uint64 k) => (float[N] y, uint64 j) {{ y, j = ortopt.group.group_0 (x, k) }}
    {FUNCTION} group_0 (p, k) => (r, j) {{ s = Neg (p) t = Cast <to = 1> (k) r = Mul (s, t) j = Add (k, k) }}"""
    mine = session(grouped(text, weights=0), specialize_after=1, specialize_constants=True)
    mine.run(None, {"x": floats(3), "k": np.array(3, np.uint64)})
    written = mine.export_specialized(tmp_path / "model.onnx")
    (special,) = [group for group in groups_of(load(written.path)) if group.guard]
    assert special.guard == {"p": {"shape": [3]}}
    again = InferenceSession(written.path, providers=["cpu"])
    for k in (3, 4):
        given = {"x": floats(3), "k": np.array(k, np.uint64)}
        assert_array_equal(again.run(None, given)[0], -given["x"] * np.float32(k))
    assert again.statistics.specialized_runs == 2


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="specialize_after="):
        session(grouped()).export_specialized(tmp_path / "model.onnx")
    fixed = grouped(TEXT.replace("[N,M]", "[3,4]").replace("[K]", "[1]"))
    mine = session(fixed, specialize_after=1)
    mine.run(None, feed())
    with pytest.raises(UsageError, match="fixed anyway"):
        mine.export_specialized(tmp_path / "model.onnx")
    old = grouped(TEXT.replace('"" : 17', '"" : 12'))
    mine = session(old, specialize_after=1)
    mine.run(None, feed())
    with pytest.raises(UsageError, match="opset 13"):
        mine.export_specialized(tmp_path / "model.onnx")
    mine, _ = trained(tmp_path, feed())
    with pytest.raises(Exception, match="nowhere"):
        mine.export_specialized(tmp_path / "nowhere" / "model.onnx")


def test_export_while_others_call(tmp_path: Path) -> None:
    mine, _ = trained(tmp_path, feed(), specialize_constants=False)

    def work(seed: int) -> None:
        for i in range(1, 8):
            rows = (seed + i) % 7 + 1
            mine.run(None, feed(rows, 4, (rows * 4,)))

    with in_the_meantime(4, work):
        for i in range(3):
            written = mine.export_specialized(tmp_path / f"{i}.onnx")
            assert 1 <= len(written.versions) <= 7
