"""Cancellation: every long loop asks the token, and whatever the instant, what is left is right."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from benchmarks.generators import GENERATORS
from ortopt import onnx_ir_internals, registry, semantics
from ortopt.analysis import shapes
from ortopt.api import figures, optimize
from ortopt.cancellation import BETWEEN_CHECKS, NEVER, CancellationToken, DeadlinePassed
from ortopt.errors import OptimizationCancelled
from ortopt.evaluation import execution
from ortopt.framework.workspace import Workspace
from ortopt.graph import scope
from ortopt.graph.edit import Editor
from ortopt.graph.index import OpIndex
from ortopt.graph.order import in_order, is_sorted
from ortopt.opset_conversion import converter
from ortopt.options import Options
from ortopt.partition import preparation, shape_only_outputs
from ortopt.partition.groups import groups_of
from ortopt.partition.partitioning import Partition, group, partition, partition_graph, prepare
from ortopt.partition.partitioning import apply as lift_all
from ortopt.partition.placement import Placement
from ortopt.partition.settings import PartitionOptions, Policy
from ortopt.serialization.checks.structure import validate
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.serialization.scan import count_nodes
from ortopt.system import threads
from ortopt.testing import parse
from ortopt.verification import verify
from ortopt.verification.inputs import Interface
from ortopt.verification.noise import jittered, widened
from ortopt.verification.randomness import random_outputs
from ortopt.verification.tolerances import tolerances

NODES = 2_500


class Asked(CancellationToken):
    """Counts how often it is asked, and sets itself at one of these times."""

    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.at = at
        self.times = 0
        self.calls = 0
        self.most_calls = 0

    def with_timeout(self, timeout: float | None) -> CancellationToken:
        return self

    def check(self) -> None:
        self.times += 1
        self.most_calls, self.calls = max(self.most_calls, self.calls), 0
        if self.times == self.at:
            self.cancel()
        super().check()


@functools.cache
def large(shape: str) -> bytes:
    return bytes(GENERATORS[shape](NODES).SerializeToString())


# -- the token --------------------------------------------------------------------------------------------------------


def test_a_token_takes_nothing_before_its_turn_and_asks_now_and_then() -> None:
    token, taken = Asked(), []
    for item in token.checked(taken.append(number) or number for number in range(1000)):  # type: ignore[func-returns-value]
        assert taken[-1] == item
    assert len(taken) == 1000
    assert token.times == -(-1000 // BETWEEN_CHECKS)
    assert list(token.checked(())) == list(token.batched(())) == []
    assert [item for portion in token.batched(range(1000)) for item in portion] == list(range(1000))


def test_a_traversal_that_begins_anew_when_asked_for_its_iterator_is_watched_once() -> None:
    count = 5 * BETWEEN_CHECKS
    body = " ".join(f"v{i + 1} = Relu (v{i})" for i in range(count))
    text = f"""<ir_version: 9, opset_import: ["" : 17, "own" : 1]> main (float[2] x) => (float[2] y) {{ y = own.F (x) }}
        <domain: "own", opset_import: ["" : 17]> F (v0) => (v{count}) {{ {body} }}"""
    model = parse(text)
    (function,) = model.functions.values()
    for ways in (
        CancellationToken().checked,
        lambda nodes: itertools.chain.from_iterable(CancellationToken().batched(nodes)),
    ):
        assert len(list(itertools.islice(ways(function.all_nodes()), 2 * count))) == count
    validate(model, token=CancellationToken())


def test_a_token_that_is_set_stops_what_it_watches() -> None:
    token, seen = Asked(at=3), []
    with pytest.raises(OptimizationCancelled):
        seen.extend(token.checked(range(1000)))
    with pytest.raises(OptimizationCancelled):
        list(token.batched(range(1000)))


def test_nobody_sets_everybodys_token() -> None:
    with pytest.raises(ValueError, match="it cannot be cancelled"):
        NEVER.cancel()
    NEVER.check()
    assert list(NEVER.checked(range(3))) == [0, 1, 2]


# -- who asks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "level", "most"), [("chain", 3, 11_000), ("wide", 3, 22_000), ("stack", 4, 64_000)])
def test_between_two_questions_of_a_run_little_is_done(shape: str, level: int, most: int) -> None:
    """Counted in calls: what looks at each of the nodes without asking calls more.

    To select passes takes 9,400 of them where all have been imported (18,500 otherwise), to look at a node of 800
    operands 20,000, to read an attention 53,000: some hundredths of a second.
    """
    registry.installed()  # whatever other tests have imported
    optimize(GENERATORS[shape](200), level=level, verify=False)  # what is imported and read once is no part of a run
    source, token = large(shape), Asked()

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            token.calls += 1

    had = sys.getprofile()
    sys.setprofile(count)
    try:
        optimize(source, level=level, verify=False, cancellation=token)
    finally:
        sys.setprofile(had)
    token.check()
    assert token.times > 1_000
    assert token.most_calls < most


def cut(model: ir.Model, token: CancellationToken, policy: Policy) -> Partition:
    options = PartitionOptions(policy=policy)
    return partition_graph(model.graph, Placement(model, options), options, token)


SWEEPS: dict[str, Callable[[ir.Model, CancellationToken], object]] = {
    "clone": load,
    "validate": lambda model, token: validate(model, token=token),
    "attach": lambda model, token: scope.attach(model, Options(), token),
    "graphs": lambda model, token: list(scope.graphs(model, token)),
    "index": OpIndex,
    "infer": shapes.infer_model,
    "is_sorted": lambda model, token: is_sorted(model.graph, token),
    "in_order": lambda model, token: in_order(model.graph, token),
    "figures": figures,
    "annotations": lambda model, token: semantics.quantization_parameters(model.graph, token),
    "interface": Interface,
    "tolerances": tolerances,
    "random": random_outputs,
    "cut": lambda model, token: cut(model, token, "cost"),
    "cut literally": lambda model, token: cut(model, token, "literal"),
    "groups": groups_of,
    "shapes and types only": lambda model, token: shape_only_outputs.drop(
        Editor(model, shapes.infer_node), model.graph, [tuple(model.graph)], lambda *_: True, token
    ),
    "preparation": lambda model, token: preparation.improve(
        Editor(model, shapes.infer_node), model.graph, lambda: {}, lambda *_: True, token
    ),
    "jittered": lambda model, token: jittered(model, 0, 1, token),
    "widened": widened,
}


@pytest.mark.parametrize("name", SWEEPS)
def test_each_sweep_asks(name: str) -> None:
    model, token = load(large("chain")), Asked()
    scope.attach(model, Options())
    SWEEPS[name](model, token)
    assert token.times >= NODES // BETWEEN_CHECKS
    with pytest.raises(OptimizationCancelled):
        SWEEPS[name](model, Asked(at=token.times))


def test_outlining_asks() -> None:
    model = load(large("stack"))
    prepare(model)
    found, before = cut(model, NEVER, "cost"), to_bytes(model)
    edit, token = Editor(model, shapes.infer_node), Asked()
    start = edit.version
    for at in (0, 1, 2, 3, 5, 8):  # eighths of it, the whole first
        with contextlib.nullcontext() if not at else pytest.raises(OptimizationCancelled):
            lift_all(edit, found, 0, token if not at else Asked(max(token.times * at // 8, 1)))
        edit.rollback(start)
        assert to_bytes(model) == before
    assert token.times >= 10 * (NODES // BETWEEN_CHECKS)


IN_BODIES = """main (float[2,6] x, float[6,3] w, float[3] b, bool go) => (float[2,3] y, float[2,3] z, int64[2] s) {
    t = Gemm (x, w, b)
    u = MatMul (x, w)
    y = Relu (t)
    s = Shape (u)
    z = If <then_branch = a () => (float[2,3] p) { q = MatMul (x, w) r = Exp (q) p = Neg (r) },
            else_branch = b () => (float[2,3] p) { q = MatMul (x, w) p = Relu (q) }> (go)
}"""


@pytest.mark.parametrize("policy", ["cost", "literal"])
def test_grouping_a_model_stopped_at_any_question_leaves_it_as_it_was(policy: Policy) -> None:
    """Each question of this is one that group() can stop at: it changes operators, outputs and nested graphs."""
    options = PartitionOptions(deny=("Neg", "Gemm", "Shape"), policy=policy)
    model = parse(IN_BODIES)
    prepare(model)
    before = to_bytes(model)
    counter = Asked()
    changed = parse(IN_BODIES)
    assert len(group(changed, options, counter)) > 1
    assert not {"MatMul", "Shape"} & {node.op_type for node in changed.graph}
    for at in range(1, counter.times + 1):
        stopped = parse(IN_BODIES)
        with pytest.raises(OptimizationCancelled):
            group(stopped, options, Asked(at))
        prepare(stopped)
        assert to_bytes(stopped) == before


def test_partitioning_and_grouping_ask_often() -> None:
    for function in (partition, group):
        token = Asked()
        function(load(large("stack")), PartitionOptions(), token)
        assert token.times >= 10 * (NODES // BETWEEN_CHECKS)
        with pytest.raises(OptimizationCancelled):
            function(load(large("stack")), PartitionOptions(), Asked(at=token.times))


def test_a_deadline_that_passes_while_a_model_is_grouped_is_raised() -> None:
    for function in (partition, group):
        with pytest.raises(DeadlinePassed):
            function(parse(SMALL), PartitionOptions(), CancellationToken(timeout=0))


def test_a_predicate_that_raises_leaves_the_model_as_it_was() -> None:
    model = parse(IN_BODIES)
    prepare(model)
    before = to_bytes(model)

    def mine(node: ir.Node, provider: str, how: object) -> bool:
        if node.op_type == "Exp":
            raise ZeroDivisionError
        return node.op_type not in ("Neg", "If") and how is not None

    # The If's own branches are asked about when the graph around them has its groups already.
    with pytest.raises(ZeroDivisionError):
        group(model, PartitionOptions(predicate=mine))
    assert to_bytes(model) == before


def test_loading_and_writing_ask(tmp_path: Path) -> None:
    from ortopt.serialization.save import save

    model, token = load(large("chain")), Asked()
    save(model, tmp_path / "a.onnx", token=token)
    assert token.times >= 2 * (NODES // BETWEEN_CHECKS)
    with pytest.raises(OptimizationCancelled):
        save(model, tmp_path / "b.onnx", token=Asked(at=token.times))
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]
    token = Asked()
    load(tmp_path / "a.onnx", token)
    assert token.times >= 4 * (NODES // BETWEEN_CHECKS)
    token = Asked()
    assert count_nodes(tmp_path / "a.onnx", token) == NODES
    assert token.times >= NODES // BETWEEN_CHECKS


# -- what is left -----------------------------------------------------------------------------------------------------

SMALL = """main (float[N, 4] x, float[4, 4] w) => (float[N, 4] y) {
    a = Transpose <perm = [1, 0]> (x)
    b = Transpose <perm = [1, 0]> (a)
    c = Identity (b)
    d = MatMul (c, w)
    e = Relu (d)
    f = Relu (d)
    g = Relu (e)
    unused = Neg (f)
    y = Add (g, f)
}"""


def test_cancelled_at_any_question_a_run_leaves_what_had_been_completed() -> None:
    source = to_bytes(parse(SMALL))
    counter = Asked()
    optimize(source, verify=False, cancellation=counter)
    limited = functools.cache(lambda limit: to_bytes(optimize(source, verify=False, limit=limit).model))
    reached = set()
    for at in range(1, counter.times + 1):
        with pytest.raises(OptimizationCancelled) as caught:
            optimize(source, verify=False, cancellation=Asked(at))
        result = caught.value.result
        assert result is caught.value.result
        if result is None:
            continue  # nothing had been loaded
        validate(result.model)
        offered = result.summary.rewrites
        reached.add(offered)
        assert to_bytes(result.model) in (limited(offered), limited(max(offered - 1, 0)))
        assert result.summary.after == figures(result.model)
    assert len(reached) > 3


def test_what_is_cancelled_while_it_loads_has_no_result() -> None:
    with pytest.raises(OptimizationCancelled) as caught:
        optimize(large("chain"), verify=False, cancellation=Asked(at=5))
    assert caught.value.result is None


def test_a_deadline_that_passes_while_a_model_loads_returns_the_model_as_it_came() -> None:
    result = optimize(to_bytes(parse(SMALL)), verify=False, timeout=1e-9)
    assert result.stopped
    assert result.summary.rewrites == 0
    assert to_bytes(result.model) == to_bytes(optimize(to_bytes(parse(SMALL)), verify=False, limit=0).model)


LONG = """main (int64[1] n, float[2] x) => (float[2] y) {
    on = Constant <value = bool {1}> ()
    count = Constant <value = int64 {2000000000}> ()
    y = Loop (count, on, x) <body = body (int64 i, bool c, float[2] s) => (bool d, float[2] t) {
        d = Identity (c)
        t = Sin (s)
    }>
}"""


def wait_and_cancel(run: Callable[[CancellationToken], object], sign: Path | None = None) -> float:
    """Cancel what waits for another process; seconds on the clock until it gives up.

    Args:
        run: Waits.
        sign: What the process writes once it runs.
    """
    token = CancellationToken()
    at: list[float] = []

    def cancel() -> None:
        while sign is not None and not (sign.exists() and sign.read_text()):
            time.sleep(0.01)
        at.append(time.perf_counter())
        token.cancel()

    timer = threading.Timer(0.3, cancel)
    timer.daemon = True
    timer.start()
    with pytest.raises(OptimizationCancelled):
        run(token)
    timer.join()
    return time.perf_counter() - at[0]


UNSAFE = """main (float[4] x) => (float[4] y)
<float[1, 1, 4] a = {1, 2, 3, 4}> {
    p, q = MaxPool <kernel_shape = [1]> (a)
    s = Squeeze (p)
    y = Add (x, s)
}"""
"""MaxPool is not known to be safe."""


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that never ends, and says who it is."""
    (tmp_path / "endless_child.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path(__file__).with_name('pid').write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "pid"


def assert_gone(pid: Path) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_who_waits_for_a_conversion_can_be_cancelled(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter, "_MODULE", "endless_child")
    source = to_bytes(parse("main (float[4] x) => (float[4] y) { y = Relu (x) }"))
    assert wait_and_cancel(lambda token: optimize(source, opset=7, verify=False, cancellation=token), endless) < 2
    assert_gone(endless)


def test_who_waits_for_an_evaluation_can_be_cancelled(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_MODULE", "endless_child")
    source = to_bytes(parse(UNSAFE))
    assert wait_and_cancel(lambda token: optimize(source, verify=False, cancellation=token), endless) < 2
    assert_gone(endless)


def test_a_session_that_computes_a_constant_can_be_cancelled() -> None:
    model = to_bytes(parse(LONG))
    feeds = {"n": np.array([2_000_000_000]), "x": np.ones(2, np.float32)}

    def run(token: CancellationToken) -> None:
        with pytest.raises(Exception, match="terminate"):
            execution.run_model(model, feeds, ["y"], 60, token)
        token.check()

    assert wait_and_cancel(run) < 2


def test_who_waits_for_a_verification_can_be_cancelled() -> None:
    token = CancellationToken()
    model = parse(LONG)
    with verify.Reference(model, token=token) as reference:
        timer = threading.Timer(1.0, token.cancel)
        timer.start()
        with pytest.raises(OptimizationCancelled):
            reference.compare(model)
        worker = reference._runner._idle
        assert worker is None or worker._child.process.wait(30) != 0
    timer.join()
    for thread in threads.running():
        if thread.name == "ortopt-verify-end":
            assert thread.join(30)
    assert not reference._runner.folder.exists()


@pytest.mark.parametrize("then", ["stays", "is deleted", "is replaced"])
def test_a_verification_that_is_cancelled_leaves_the_model_as_it_came_whatever_its_file_does(
    tmp_path: Path, then: str
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(to_bytes(parse(SMALL)))
    came = to_bytes(optimize(path, verify=False, limit=0).model)
    token = CancellationToken()

    def cancels(*_arguments: Any, **_named: Any) -> Any:
        token.cancel()
        token.check()

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OptimizationCancelled) as caught:
        patch.setattr(verify.Reference, "compare", cancels)
        optimize(path, cancellation=token)
    if then != "stays":
        path.unlink()
    if then == "is replaced":
        path.write_bytes(b"something else")
    assert caught.value.result is not None
    assert to_bytes(caught.value.result.model) == came


def test_a_raw_pass_that_is_cancelled_has_done_nothing() -> None:
    model = load(large("chain"))
    workspace = Workspace(model, Options())
    other, before = onnx_ir_internals.clone(model, NEVER), to_bytes(model)
    other.graph.name = "another"
    with pytest.raises(OptimizationCancelled):
        workspace.swap_in(other, Asked(at=20))
    assert to_bytes(workspace.roll_back_to_mark()) == before
    workspace.swap_in(other)
    assert to_bytes(workspace.model) != before


def test_checked_passes_ask() -> None:
    plain, checked = Asked(), Asked()
    source = GENERATORS["chain"](500).SerializeToString()
    optimize(source, verify=False, cancellation=plain)
    optimize(source, verify=False, check_each=True, cancellation=checked)
    assert checked.times > 1.5 * plain.times


# -- order, clones ----------------------------------------------------------------------------------------------------

NESTED = """main (bool c, float[2] x) => (float[2] y) {
    a = Relu (x)
    b = Neg (a)
    i = If (c) <
        then_branch = yes () => (float[2] p) { q = Abs (b) p = Neg (q) },
        else_branch = no () => (float[2] r) { r = Neg (a) }
    >
    d = Abs (b)
    y = Add (i, d)
}"""


@pytest.mark.parametrize("seed", range(8))
def test_the_order_is_the_one_that_onnx_ir_finds(seed: int) -> None:
    ours, theirs = parse(NESTED), parse(NESTED)
    for model in (ours, theirs):
        draw = random.Random(seed)
        for graph in scope.graphs(model):
            nodes = list(graph)
            draw.shuffle(nodes)
            graph.extend(nodes)
    theirs.graph.sort()
    scope.attach(ours, Options())
    for graph, nodes in in_order(ours.graph).items():
        graph.extend(nodes)
    assert is_sorted(ours.graph)
    assert to_bytes(ours) == to_bytes(theirs)


def test_nodes_in_a_circle_have_no_order() -> None:
    model = parse("main (float[2] x) => (float[2] y) { a = Relu (x) y = Neg (a) }")
    model.graph[0].replace_input_with(0, model.graph[1].outputs[0])
    with pytest.raises(ValueError, match="circle"):
        in_order(model.graph)


def test_a_clone_is_onnx_irs() -> None:
    model = parse(NESTED)
    assert to_bytes(onnx_ir_internals.clone(model, NEVER)) == to_bytes(model.clone())
