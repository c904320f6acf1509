"""Cancellation: every long loop asks the token, and whatever the instant, what is left is right."""

from __future__ import annotations

import functools
import gc
import itertools
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import onnx_ir as ir
import pytest

from benchmarks.generators import GENERATORS
from ortopt import semantics, verify
from ortopt.analysis import shapes
from ortopt.api import figures, optimize
from ortopt.cancellation import BETWEEN_CHECKS, NEVER, CancellationToken
from ortopt.errors import OptimizationCancelled
from ortopt.evaluate import count_nodes
from ortopt.graph import onnx_ir_internals, pauses, scope
from ortopt.graph.index import OpIndex
from ortopt.graph.load import load
from ortopt.graph.order import in_order, is_sorted
from ortopt.graph.save import to_bytes
from ortopt.graph.validate import validate
from ortopt.options import Options
from ortopt.testing import parse
from ortopt.verification_comparison import random_outputs, tolerances
from ortopt.verification_inputs import Interface

NODES = 2_500


class Asked(CancellationToken):
    """Counts how often it is asked, and sets itself at one of these times."""

    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.at = at
        self.times = 0
        self.calls = 0
        self.most_calls = 0

    def renewed(self, timeout: float | None) -> CancellationToken:
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
    for item in token.watch(taken.append(number) or number for number in range(1000)):  # type: ignore[func-returns-value]
        assert taken[-1] == item
    assert len(taken) == 1000
    assert token.times == -(-1000 // BETWEEN_CHECKS)
    assert list(token.watch(())) == list(token.portions(())) == []
    assert [item for portion in token.portions(range(1000)) for item in portion] == list(range(1000))


def test_a_traversal_that_begins_anew_when_asked_for_its_iterator_is_watched_once() -> None:
    count = 5 * BETWEEN_CHECKS
    body = " ".join(f"v{i + 1} = Relu (v{i})" for i in range(count))
    text = f"""<ir_version: 9, opset_import: ["" : 17, "own" : 1]> main (float[2] x) => (float[2] y) {{ y = own.F (x) }}
        <domain: "own", opset_import: ["" : 17]> F (v0) => (v{count}) {{ {body} }}"""
    model = parse(text)
    (function,) = model.functions.values()
    for ways in (
        CancellationToken().watch,
        lambda nodes: itertools.chain.from_iterable(CancellationToken().portions(nodes)),
    ):
        assert len(list(itertools.islice(ways(function.all_nodes()), 2 * count))) == count
    validate(model, token=CancellationToken())


def test_a_token_that_is_set_stops_what_it_watches() -> None:
    token, seen = Asked(at=3), []
    with pytest.raises(OptimizationCancelled):
        seen.extend(token.watch(range(1000)))
    with pytest.raises(OptimizationCancelled):
        list(token.portions(range(1000)))


def test_nobody_sets_everybodys_token() -> None:
    with pytest.raises(ValueError, match="nobody may set it"):
        NEVER.cancel()
    NEVER.check()
    assert list(NEVER.watch(range(3))) == [0, 1, 2]


# -- who asks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "most"), [("chain", 9_000), ("stack", 13_000), ("wide", 18_000)])
def test_between_two_questions_of_a_run_little_is_done(shape: str, most: int) -> None:
    """Counted in calls: what looks at each of the nodes without asking calls more."""
    optimize(GENERATORS[shape](200), verify=False)  # what is imported and read once is no part of a run
    source, token = large(shape), Asked()

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            token.calls += 1

    had = sys.getprofile()
    sys.setprofile(count)
    try:
        optimize(source, verify=False, cancellation=token)
    finally:
        sys.setprofile(had)
    token.check()
    assert token.times > 1_000
    assert token.most_calls < most


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
}


@pytest.mark.parametrize("name", SWEEPS)
def test_each_sweep_asks(name: str) -> None:
    model, token = load(large("chain")), Asked()
    SWEEPS[name](model, token)
    assert token.times >= NODES // BETWEEN_CHECKS
    with pytest.raises(OptimizationCancelled):
        SWEEPS[name](model, Asked(at=token.times))


def test_loading_and_writing_ask(tmp_path: Path) -> None:
    from ortopt.graph.save import save

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


def test_who_waits_for_a_verification_can_be_cancelled() -> None:
    token = CancellationToken()
    model = parse(LONG)
    with verify.Reference(model, token=token) as reference:
        timer = threading.Timer(1.0, token.cancel)
        timer.start()
        with pytest.raises(OptimizationCancelled):
            reference.compare(model)
        worker = reference._run._idle
        assert worker is None or worker._process.wait(30) != 0
    timer.join()
    for thread in threading.enumerate():
        if thread.name == "ortopt-verify-end":
            thread.join(30)
    assert not reference._folder.exists()


def test_a_verification_that_is_cancelled_leaves_the_model_as_it_came(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(to_bytes(parse(SMALL)))
    token = CancellationToken()

    def cancels(*_arguments: Any, **_named: Any) -> Any:
        token.cancel()
        token.check()

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OptimizationCancelled) as caught:
        patch.setattr(verify.Reference, "compare", cancels)
        optimize(path, cancellation=token)
    assert caught.value.result is not None
    assert to_bytes(caught.value.result.model) == to_bytes(optimize(path, verify=False, limit=0).model)


# -- order, clones, garbage -------------------------------------------------------------------------------------------

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


def test_what_a_pause_has_made_is_not_walked_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "MANY", 1_000)
    collected: list[int] = []

    def seen(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            collected.append(info["generation"])

    pauses.collect_left()
    gc.callbacks.append(seen)
    try:
        with pauses.without_garbage_collection():
            with pauses.without_garbage_collection():
                assert not gc.isenabled()
                made = [[number] for number in range(5_000)]
            assert not gc.isenabled()
        assert gc.isenabled()
        assert not collected
        assert gc.get_count()[0] < 1_000
        pauses.collect_left()
        assert collected == [2]
        pauses.collect_left()
        assert collected == [2]
    finally:
        gc.callbacks.remove(seen)
    assert len(made) == 5_000


def test_a_pause_leaves_the_collector_as_it_was() -> None:
    gc.disable()
    try:
        with pauses.without_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_iterators_that_begin_again_when_they_are_asked_for_their_iterator_come_to_an_end() -> None:
    model = parse("<ir_version: 10, opset_import: [\"\" : 17]> main (float[N] x) => (float[N] y) { y = Neg (x) }")
    (node,) = model.graph
    for _ in range(3 * BETWEEN_CHECKS):
        node = ir.node("Neg", [node.outputs[0]])
        model.graph.append(node)
    nodes = list(model.graph)
    token = CancellationToken()
    assert list(itertools.islice(token.watch(model.graph.all_nodes()), 2 * len(nodes))) == nodes
    portions = itertools.islice(token.portions(model.graph.all_nodes()), len(nodes))
    assert list(itertools.chain.from_iterable(portions)) == nodes
