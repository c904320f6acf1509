"""What a run means for a pass: it begins anew each time, a failure is about one model, a stop keeps the account."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import pytest

from ortopt import (
    CancellationToken,
    GraphTransformerManager,
    OptimizationCancelled,
    TransformerError,
    UsageError,
    optimize,
)
from ortopt.graph.match import Refusal
from ortopt.observers import Observer
from ortopt.rule import Forwarded
from ortopt.testing import parse
from ortopt.transformer import Context, GraphTransformer
from tests.rules import Swap, ops

CHAIN = "main (float[N] x) => (float[N] y) { a = Relu (x) b = Abs (a) c = Relu (b) d = Abs (c) y = Relu (d) }"


class Limited(Swap):
    """Relu becomes LeakyRelu of slope 0, twice in a run."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 2
        self.begun = 0

    def begin(self) -> None:
        self.left = 2
        self.begun += 1

    def match(self, root: ir.Node) -> Forwarded:
        if not self.left:
            raise Refusal("it has done enough", root)
        return super().match(root)

    def rewrite(self, found: Forwarded) -> ir.Node:
        self.left -= 1
        return ir.node("LeakyRelu", [found.value], {"alpha": 0.0})


class Wrong(Swap):
    """Abs becomes Neg, which is another function."""

    roots = ("Abs",)


# -- begin ------------------------------------------------------------------------------------------------------------


def test_a_pass_with_state_loses_nothing_where_another_is_repaired() -> None:
    limited = Limited()
    with pytest.warns(RuntimeWarning, match="wrong makes the result differ"):
        result = optimize(parse(CHAIN), level=1, only=["limited", "wrong"], transformers=[limited, Wrong()])
    assert [repair.rewrite.transformer for repair in result.repairs] == ["wrong"]
    assert ops(result.model) == ["LeakyRelu", "Abs", "LeakyRelu", "Abs", "Relu"]
    assert limited.begun > 2, "each time that the model is read again"


class Exhausted(Limited):
    """Relu becomes LeakyRelu of slope 0, twice in its life."""

    begin = GraphTransformer.begin


def test_what_a_pass_that_does_not_begin_anew_has_lost_is_told() -> None:
    with pytest.warns(RuntimeWarning) as told:
        result = optimize(parse(CHAIN), level=1, only=["exhausted", "wrong"], transformers=[Exhausted(), Wrong()])
    assert ops(result.model).count("LeakyRelu") == 0
    (lost,) = [str(one.message) for one in told if "exhausted" in str(one.message)]
    assert "exhausted made 2 rewrites, and 0 when the model was optimized again" in lost
    assert "begin is there to reset" in lost


def test_a_run_of_a_manager_is_a_call() -> None:
    limited, manager = Limited(), GraphTransformerManager()
    manager.register(limited)
    for number in (1, 2, 3):
        model = parse(CHAIN)
        manager.apply_transformers(model, 1)
        assert limited.begun == number
        assert ops(model).count("LeakyRelu") == 2
    manager.apply_transformers(parse(CHAIN), 2)
    assert limited.begun == 3, "it does not run at level 2"


def test_a_pass_of_several_levels_begins_once_a_run() -> None:
    class Everywhere(GraphTransformer):
        """Nothing becomes anything."""

        levels = tuple(type(Limited().levels[0]))
        begun = 0

        def begin(self) -> None:
            self.begun += 1

        def apply(self, graph: ir.Graph, context: Context) -> bool:
            return False

    everywhere = Everywhere()
    optimize(parse(CHAIN), level=3, transformers=[everywhere], verify=False)
    assert everywhere.begun == 1


def test_a_pass_that_cannot_begin_has_failed() -> None:
    class NeverBegins(Limited):
        """Nothing becomes anything."""

        def begin(self) -> None:
            raise ValueError("no luck")

    result = optimize(parse(CHAIN), level=1, transformers=[NeverBegins()], strict=False, verify=False)
    assert [failure.reason for failure in result.summary.failures] == ["ValueError: no luck"]
    assert "LeakyRelu" not in ops(result.model)
    with pytest.raises(TransformerError, match="never_begins failed at level 1, step 1, on graph 'main': ValueError"):
        optimize(parse(CHAIN), level=1, transformers=[NeverBegins()], verify=False)


# -- a failure counts for one model -----------------------------------------------------------------------------------


class FailsAtTan(GraphTransformer):
    """Relu becomes LeakyRelu, in models without a Tan."""

    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        if any(node.op_type == "Tan" for node in graph):
            raise ValueError("no luck")
        found = [node for node in graph if node.op_type == "Relu"]
        for node in found:
            new = ir.node("LeakyRelu", node.inputs, {"alpha": 0.0}).outputs[0]
            assert context.substitute({node.outputs[0]: new}, before=node, origin=(node,))
        return bool(found)


class FailsAtTanAsRule(Limited):
    """Relu becomes LeakyRelu, twice, in models without a Tan."""

    roots = ("Relu", "Tan")

    def match(self, root: ir.Node) -> Forwarded:
        if root.op_type == "Tan":
            raise ValueError("no luck")
        return super().match(root)


class FailsAtTanOnAClone(FailsAtTan):
    """Relu becomes LeakyRelu, in models without a Tan, on a clone."""

    bypasses_editor = True
    offers_rewrites = False

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        if any(node.op_type == "Tan" for node in graph):
            raise ValueError("no luck")
        for node in graph:
            node.op_type = "LeakyRelu" if node.op_type == "Relu" else node.op_type
        return True


@pytest.mark.parametrize("kind", [FailsAtTan, FailsAtTanAsRule, FailsAtTanOnAClone])
def test_who_was_left_out_for_one_model_comes_back_for_the_next(kind: Any) -> None:
    manager = GraphTransformerManager(steps=1, on_error="skip")
    kind.apply_once = True
    manager.register(kind())
    failing = parse(CHAIN.replace("b = Abs", "b = Tan"))
    manager.apply_transformers(failing, 1)
    assert len(manager.failures) == 1
    assert "LeakyRelu" not in ops(failing)
    manager.apply_transformers(failing, 1)
    assert len(manager.failures) == 1, "for the same model it stays out"
    model = parse(CHAIN)
    manager.apply_transformers(model, 1)
    assert "LeakyRelu" in ops(model)
    assert len(manager.failures) == 1


@pytest.mark.parametrize("on_error", ["ignore", "", None, True, "Raise"])
def test_what_happens_on_errors_is_one_of_two(on_error: Any) -> None:
    with pytest.raises(UsageError, match=f"on_error takes 'raise' or 'skip', not {on_error!r}"):
        GraphTransformerManager(on_error=on_error)


# -- a stop keeps the account -----------------------------------------------------------------------------------------


class StopsAfter(Observer):
    """Sets a token after some rewrites."""

    def __init__(self, token: CancellationToken, rewrites: int) -> None:
        self.token, self.left = token, rewrites

    def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
        self.left -= 1
        if not self.left:
            self.token.cancel()


class Unbinds(GraphTransformer):
    """Relu becomes Abs and Max; two nodes for one."""

    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        for node in tuple(graph):
            if node.op_type == "Relu" and context.offer((node,)):
                (x,) = node.inputs
                low = ir.node("Abs", [x])
                high = ir.node("Max", [low.outputs[0], low.outputs[0]])
                context.replace({node.outputs[0]: high.outputs[0]}, node, (node,))
        return True


def stopped(transformer: GraphTransformer, rewrites: int) -> tuple[GraphTransformerManager, ir.Model]:
    token, model = CancellationToken(), parse(CHAIN)
    manager = GraphTransformerManager(observers=[StopsAfter(token, rewrites)])
    manager.register(transformer)
    with pytest.raises(OptimizationCancelled):
        manager.apply_transformers(model, 1, cancellation=token)
    return manager, model


@pytest.mark.parametrize(("kind", "more"), [(Limited, 0), (Unbinds, 1)])
def test_what_a_stopped_run_has_kept_is_in_the_history(kind: type[GraphTransformer], more: int) -> None:
    manager, model = stopped(kind(), 1)
    assert manager.is_graph_modified
    (entry,) = manager.history
    assert (entry.transformer, entry.modified, entry.rewrites) == (kind().name, True, 1)
    assert (entry.nodes_before, entry.nodes_after) == (5, 5 + more)
    assert len(model.graph) == 5 + more


def test_what_was_stopped_before_it_did_anything_has_modified_nothing() -> None:
    class Stops(GraphTransformer):
        """Stop in the middle of an edit."""

        def apply(self, graph: ir.Graph, context: Context) -> bool:
            context.edit.insert([ir.node("Abs", [graph.inputs[0]])], graph[0])
            context.cancellation.cancel()
            context.cancellation.check()
            return True

    manager, model = GraphTransformerManager(), parse(CHAIN)
    manager.register(Stops())
    with pytest.raises(OptimizationCancelled):
        manager.apply_transformers(model, 1, cancellation=CancellationToken())
    assert not manager.is_graph_modified
    (entry,) = manager.history
    assert (entry.modified, entry.rewrites, entry.nodes_before, entry.nodes_after) == (False, 0, 5, 5)
    assert len(model.graph) == 5


@pytest.mark.parametrize("kind", [Limited, Unbinds])
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
def test_the_summary_of_a_stopped_run_counts_what_it_kept(how: str, kind: type[GraphTransformer]) -> None:
    token = CancellationToken()
    name = kind().name

    class Expires(StopsAfter):
        """Lets the deadline pass."""

        def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
            if transformer.name == name:
                self.token.deadline = 0.0

    observer = StopsAfter(token, 1) if how == "cancelled" else Expires(token, 1)
    options: dict[str, Any] = {"level": 1, "only": [name], "transformers": [kind()], "verify": False}
    options |= {"observers": [observer], "cancellation": token}
    if how == "cancelled":
        with pytest.raises(OptimizationCancelled) as caught:
            optimize(parse(CHAIN), **options)
        result = caught.value.result
    else:
        result = optimize(parse(CHAIN), timeout=1000.0, **options)
        assert result.stopped
    assert [(total.transformer, total.rewrites) for total in result.summary.passes] == [(name, 1)]
    assert [entry.rewrites for entry in result.history] == [1]
    assert len(result.model.graph) == result.history[-1].nodes_after
    assert ops(result.model).count("Relu") == 2
