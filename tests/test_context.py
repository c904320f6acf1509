"""The door for rewrites: offered, made, counted and announced, or refused; and no way around the editor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import onnx_ir as ir
import pytest

from ortopt.api import optimize
from ortopt.errors import RegistrationError, TransformerError
from ortopt.framework.direct_edits import REMEDY
from ortopt.graph.edit import Conflict
from ortopt.graph.match import Refusal
from ortopt.instrumentation.explanation import Explanation
from ortopt.manager import GraphTransformerManager
from ortopt.observers import Observer
from ortopt.onnx_ir_internals import use_count
from ortopt.optimization.replay import RewriteLimit
from ortopt.options import Options, Target
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from ortopt.transformer import Context, GraphTransformer
from tests.rules import Swap, applied, ops

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
MODEL = "main (float[N] x) => (float[N] y) { a = Relu (x) b = Abs (a) c = Relu (b) y = Neg (c) }"

Body = Callable[[ir.Graph, Context], bool]


class Announced(Observer):
    """Writes down the numbers and nodes of announcements."""

    def __init__(self) -> None:
        self.told: list[tuple[int, list[str]]] = []

    def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
        self.told.append((number, [node.op_type for node in nodes]))


class Door(GraphTransformer):
    """Does what it is told."""

    offers_rewrites: ClassVar[bool] = True
    apply_once = True

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        return self.body(graph, context)


class Whole(Door):
    """Does what it is told; a run is one rewrite."""

    offers_rewrites = False


def run(
    body: Body, *more: Observer, kind: type[Door] = Door, model: ir.Model | None = None, options: Options | None = None
) -> tuple[ir.Model, Announced, Explanation, int]:
    """The model afterwards, what was announced and refused, and how many rewrites were counted."""
    announced, explanation = Announced(), Explanation()
    observers = [announced, explanation, *more]
    manager, model = applied(model or MODEL, kind(body), observers=observers, options=options)
    return model, announced, explanation, sum(entry.rewrites for entry in manager.history)


def relus(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if node.op_type == "Relu"]


def sigmoid(node: ir.Node) -> dict[ir.Value, ir.Value]:
    return {node.outputs[0]: ir.node("Sigmoid", node.inputs).outputs[0]}


# -- substitute -------------------------------------------------------------------------------------------------------


def test_substitute_replaces_counts_and_announces() -> None:
    def body(graph: ir.Graph, context: Context) -> bool:
        done = [context.substitute(sigmoid(n), before=n, origin=(n,), why="it is better") for n in relus(graph)]
        assert done == [True, True]
        return True

    model, announced, explanation, rewrites = run(body)
    assert ops(model) == ["Sigmoid", "Abs", "Sigmoid", "Neg"]
    assert announced.told == [(1, ["Sigmoid"]), (2, ["Sigmoid"])]
    assert rewrites == 2
    assert [rewrite.why for rewrite in explanation.rewrites] == ["it is better"] * 2


def test_substitute_tells_a_conflict_and_counts_nothing() -> None:
    def body(graph: ir.Graph, context: Context) -> bool:
        (node, _) = relus(graph)
        wrong = ir.node("Shape", node.inputs).outputs[0]
        return context.substitute({node.outputs[0]: wrong}, before=node, origin=(node,))

    model, announced, explanation, rewrites = run(body)
    assert ops(model) == ["Relu", "Abs", "Relu", "Neg"]
    assert (announced.told, rewrites, explanation.rewrites) == ([], 0, [])
    assert [refusal.reason for refusal in explanation.refusals] == ["the result would be int64 instead of float"]
    assert use_count(model.graph.inputs[0]) == 1


def test_what_is_not_accepted_leaves_no_new_node_behind() -> None:
    def body(graph: ir.Graph, context: Context) -> bool:
        done = [context.substitute(sigmoid(node), before=node, origin=(node,)) for node in relus(graph)]
        assert done == [False, True]
        return True

    model, announced, _, rewrites = run(body, RewriteLimit(without=frozenset({1})))
    assert ops(model) == ["Relu", "Abs", "Sigmoid", "Neg"]
    assert announced.told == [(2, ["Sigmoid"])], "an offer that was refused has its number"
    assert rewrites == 1
    assert use_count(model.graph.inputs[0]) == 1


def test_what_is_built_on_demand_is_built_once_it_is_accepted() -> None:
    built: list[str] = []

    def body(graph: ir.Graph, context: Context) -> bool:
        def builder(node: ir.Node) -> Callable[[], dict[ir.Value, ir.Value]]:
            def build() -> dict[ir.Value, ir.Value]:
                built.append(node.inputs[0].name)
                return sigmoid(node)

            return build

        done = [context.substitute(builder(node), before=node, origin=(node,)) for node in relus(graph)]
        assert done == [False, True]
        return True

    model, announced, _, _ = run(body, RewriteLimit(without=frozenset({1})))
    assert built == ["b"]
    assert ops(model) == ["Relu", "Abs", "Sigmoid", "Neg"]
    assert announced.told == [(2, ["Sigmoid"])]


def test_a_builder_may_refuse_and_leaves_nothing_behind() -> None:
    def body(graph: ir.Graph, context: Context) -> bool:
        above, node = relus(graph)

        def build() -> dict[ir.Value, ir.Value]:
            sigmoid(node)
            raise Refusal("it cannot be")

        return context.substitute(build, before=above, nodes=(above, node), candidate=node)

    model, announced, explanation, rewrites = run(body)
    assert (announced.told, rewrites, explanation.rewrites) == ([], 0, [])
    assert [(refusal.reason, refusal.node) for refusal in explanation.refusals] == [("it cannot be", "c")]
    assert [use_count(node.outputs[0]) for node in model.graph] == [1, 1, 1, 0]


# -- attempt ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [Conflict("it cannot be"), Refusal("it cannot be")])
def test_an_attempt_that_fails_is_taken_back_and_counts_nothing(reason: Exception) -> None:
    before = to_bytes(parse(MODEL))

    def body(graph: ir.Graph, context: Context) -> bool:
        (node, _) = relus(graph)
        clock = context.edit.clock

        def change() -> None:
            ir.node("Tanh", node.inputs)
            context.replace(sigmoid(node), before=node, origin=(node,))
            context.edit.rename(graph[-2].outputs[0], "half_way")
            raise reason

        done = context.attempt((node,), change)
        assert context.edit.clock == clock, "what was taken back is no change"
        assert [use.node.op_type for use in graph.inputs[0].uses()] == ["Relu"]
        return done

    model, announced, explanation, rewrites = run(body)
    assert to_bytes(model) == before
    assert (announced.told, rewrites, explanation.rewrites) == ([], 0, [])
    assert [refusal.reason for refusal in explanation.refusals] == ["it cannot be"]


@pytest.mark.parametrize(("returned", "told"), [(None, ["Sigmoid"]), ("all", ["Sigmoid", "Neg"])])
def test_an_attempt_announces_what_it_returns_or_what_is_new(returned: str | None, told: list[str]) -> None:
    def body(graph: ir.Graph, context: Context) -> bool:
        node = relus(graph)[0]

        def change() -> list[ir.Node] | None:
            new = context.replace(sigmoid(node), before=node, origin=(node,))
            return None if returned is None else [*new, node, graph[-1]]  # the Relu has gone

        return context.attempt((node,), change)

    _, announced, _, rewrites = run(body)
    assert announced.told == [(1, told)]
    assert rewrites == 1


def test_an_attempt_that_does_nothing_is_no_rewrite() -> None:
    _, announced, _, rewrites = run(lambda graph, context: context.attempt((graph[0],), lambda: None))
    assert (announced.told, rewrites) == ([], 0)


def test_a_change_makes_no_offers_of_its_own() -> None:
    def body(graph: ir.Graph, context: Context) -> bool:
        return context.attempt((graph[0],), lambda: [graph[0]] if context.offer((graph[1],)) else None)

    with pytest.raises(TransformerError, match="makes no offers of its own"):
        run(body)


# -- offer ------------------------------------------------------------------------------------------------------------


def test_what_was_offered_with_others_is_not_offered_again() -> None:
    def body(graph: ir.Graph, context: Context) -> bool:
        found = relus(graph)
        assert [context.offer((node,)) for node in found] == [True, True]
        first, second = found
        assert context.substitute(sigmoid(second), before=second, origin=(second,))
        return context.attempt((first,), lambda: context.replace(sigmoid(first), before=first, origin=(first,)))

    model, announced, _, rewrites = run(body)
    assert ops(model) == ["Sigmoid", "Abs", "Sigmoid", "Neg"]
    assert announced.told == [(2, ["Sigmoid"]), (1, ["Sigmoid"])]
    assert rewrites == 2


def test_what_was_offered_and_has_gone_with_another_was_made_too() -> None:
    def body(graph: ir.Graph, context: Context) -> bool:
        a, b, c, _ = graph
        assert all(context.offer((node,)) for node in (a, b, c))
        return context.substitute({c.outputs[0]: graph.inputs[0]}, before=c, nodes=(c,))

    model, announced, _, rewrites = run(body)
    assert ops(model) == ["Neg"]
    assert [number for number, _ in announced.told] == [3, 1, 2]
    assert rewrites == 3


def test_what_was_only_offered_is_no_rewrite() -> None:
    _, announced, _, rewrites = run(lambda graph, context: not context.offer((graph[0],)))
    assert (announced.told, rewrites) == ([], 0)


def test_a_change_made_by_hand_is_announced_once_and_counted_once() -> None:
    def body(graph: ir.Graph, context: Context) -> bool:
        for node in relus(graph):
            assert context.offer((node,))
            context.replace(sigmoid(node), before=node, origin=(node,))
            context.edit.set_attribute(graph[-1], ir.AttrInt64("seen", 1))
        return True

    _, announced, _, rewrites = run(body)
    assert announced.told == [(1, ["Sigmoid"]), (2, ["Sigmoid"])]
    assert rewrites == 2


def test_a_run_of_one_that_offers_nothing_is_one_rewrite() -> None:
    def body(graph: ir.Graph, context: Context) -> bool:
        for node in relus(graph):
            context.replace(sigmoid(node), before=node, origin=(node,))
        return True

    _, announced, _, rewrites = run(body, kind=Whole)
    assert announced.told == [(1, ["Sigmoid", "Sigmoid"])]
    assert rewrites == 1
    _, announced, _, rewrites = run(lambda *_: False, kind=Whole)
    assert (announced.told, rewrites) == ([], 0)


# -- past the editor --------------------------------------------------------------------------------------------------


def takes_out(graph: ir.Graph, context: Context) -> bool:
    node = relus(graph)[0]
    node.outputs[0].replace_all_uses_with(node.inputs[0])
    graph.remove(node, safe=True)
    return True


def takes_out_in_silence(graph: ir.Graph, context: Context) -> bool:
    takes_out(graph, context)
    return False


def takes_out_beside_an_edit(graph: ir.Graph, context: Context) -> bool:
    context.edit.rename(graph[1].outputs[0], "renamed")
    return takes_out(graph, context)


def puts_in(graph: ir.Graph, context: Context) -> bool:
    graph.append(ir.node("Abs", [graph.inputs[0]]))
    return False


def exchanges(graph: ir.Graph, context: Context) -> bool:
    new = ir.node("Abs", [graph.inputs[0]])
    graph.insert_before(graph[0], new)
    graph[1].outputs[0].replace_all_uses_with(new.outputs[0])
    graph.remove(graph[1], safe=True)
    return False


def changes_an_op(graph: ir.Graph, context: Context) -> bool:
    relus(graph)[0].op_type = "Tanh"
    return False


def rewires(graph: ir.Graph, context: Context) -> bool:
    graph[-1].replace_input_with(0, graph.inputs[0])
    return True


def changes_and_takes_back(graph: ir.Graph, context: Context) -> bool:
    version = context.edit.version
    context.edit.rename(graph[1].outputs[0], "renamed")
    context.edit.rollback(version)
    return True


DIRECT = {
    takes_out: "took some out",
    takes_out_in_silence: "took some out",
    takes_out_beside_an_edit: "took some out",
    puts_in: "put nodes into the graph",
    exchanges: "changed nodes of the graph",
    changes_an_op: "changed nodes of the graph",
    rewires: "the editor has recorded no change",
    changes_and_takes_back: "the editor has recorded no change",
}


@pytest.mark.parametrize("kind", [Door, Whole])
@pytest.mark.parametrize("body", DIRECT, ids=lambda body: body.__name__)
def test_edits_past_the_editor_are_an_error_that_names_the_remedy(body: Body, kind: type[Door]) -> None:
    with pytest.raises(TransformerError) as caught:
        run(body, kind=kind)
    assert DIRECT[body] in caught.value.reason
    assert REMEDY in caught.value.reason
    assert "bypasses_editor = True" in REMEDY
    assert caught.value.corrupted, "what the editor has not seen cannot be taken back"


@pytest.mark.parametrize("body", DIRECT, ids=lambda body: body.__name__)
def test_who_edits_past_the_editor_is_left_out_and_costs_only_itself(body: Body) -> None:
    result = optimize(parse(MODEL), level=1, transformers=[Door(body)], strict=False, verify=False)
    (failure,) = result.summary.failures
    assert failure.transformer == "door"
    assert REMEDY in failure.reason
    assert to_bytes(result.model) == to_bytes(optimize(parse(MODEL), level=1, verify=False).model)


def test_who_changes_nothing_and_says_so_is_no_error() -> None:
    _, announced, _, rewrites = run(lambda *_: False)
    assert (announced.told, rewrites) == ([], 0)


def test_what_goes_away_with_its_graph_is_no_direct_edit() -> None:
    text = """main (float[N] x, bool c) => (float[N] y) { y = If (c) <
        then_branch = t () => (float[N] a) { a = Relu (x) }, else_branch = e () => (float[N] b) { b = Neg (x) } > }"""

    def body(graph: ir.Graph, context: Context) -> bool:
        if graph is not context.model.graph:
            return False
        node = graph[0]
        return context.substitute(
            {node.outputs[0]: ir.node("Abs", [graph.inputs[0]]).outputs[0]}, before=node, origin=(node,)
        )

    model, announced, _, _ = run(body, model=parse(text))
    assert ops(model) == ["Abs"]
    assert announced.told == [(1, ["Abs"])]


# -- providers --------------------------------------------------------------------------------------------------------

PLACED = "main (float[N] x) => (float[N] y) { a = Acos (x) b = Relu (a) y = Neg (b) }"  # no Acos on CUDA
BOTH = Options(providers=(CUDA, CPU), target=Target.ORT)


class OnCuda(Door):
    """Does what it is told, to nodes on CUDA."""

    providers = (CUDA,)


@pytest.mark.parametrize("way", ["offer", "substitute", "attempt"])
def test_nodes_that_are_placed_elsewhere_are_refused(way: str) -> None:
    def body(graph: ir.Graph, context: Context) -> bool:
        acos, relu, _ = graph
        changed = False
        for node in (acos, relu):
            new = {node.outputs[0]: ir.node("Tanh", node.inputs).outputs[0]}
            if way == "substitute":
                changed |= context.substitute(new, before=node, origin=(node,))
            elif way == "attempt":
                changed |= context.attempt((node,), lambda new=new, node=node: context.replace(new, node, (node,)))  # type: ignore[misc]
            elif context.offer((node,)):
                changed |= bool(context.replace(new, node, (node,)))
        return changed

    model, announced, explanation, rewrites = run(body, kind=OnCuda, model=parse(PLACED), options=BOTH)
    assert ops(model) == ["Acos", "Tanh", "Neg"]
    assert announced.told == [(1, ["Tanh"])], "who was never asked has no number"
    assert rewrites == 1
    assert [refusal.reason for refusal in explanation.refusals] == [ONLY_CUDA]


def test_one_node_that_is_placed_elsewhere_is_enough() -> None:
    _, _, explanation, _ = run(
        lambda graph, context: context.offer(tuple(graph)[:2]) and False,
        kind=OnCuda, model=parse(PLACED), options=BOTH,
    )  # fmt: skip
    assert [(refusal.op, refusal.reason) for refusal in explanation.refusals] == [("Acos", ONLY_CUDA)]


def test_who_is_for_some_providers_must_offer() -> None:
    class Silent(Whole):
        """Does what it is told, to nodes on CUDA, and asks nobody."""

        providers = (CUDA,)

    with pytest.raises(RegistrationError, match="must offer its rewrites"):
        GraphTransformerManager().register(Silent(lambda *_: False))


def into(op: str, *nodes: int, candidate: int | None = None) -> Body:
    """Let one op stand for some nodes of the graph, the last of them the root."""

    def body(graph: ir.Graph, context: Context) -> bool:
        origin = tuple(graph[number] for number in nodes)
        root = origin[-1]
        new = ir.node(op, origin[0].inputs)
        return context.substitute({root.outputs[0]: new.outputs[0]}, before=root, origin=origin, nodes=origin)

    return body


ONLY_CUDA = "it serves CUDA, and this node runs on the CPU (--provider cuda makes a result for CUDA)"
ELSEWHERE = f"{CUDA}, where it is to run, has no kernel of Sinh for float"
PLACES: dict[str, tuple[Body, Options, str | None]] = {
    "the first provider has a kernel": (into("Tanh", 1), BOTH, None),
    "what runs on the first would run on the second": (into("Sinh", 1), BOTH, ELSEWHERE),
    "what runs on the second goes on there": (into("Sinh", 0), BOTH, None),
    "what runs on the second may run on the first": (into("Tanh", 0), BOTH, None),
    "of two the first counts": (into("Sinh", 0, 1), BOTH, ELSEWHERE),
    "the same op goes on where it ran": (into("Acos", 0, 1), BOTH, None),
    "one provider": (into("Sinh", 1), Options(), None),
    "nobody": (into("BitwiseNot", 1), BOTH, "no provider has a kernel of BitwiseNot for float"),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_new_node_is_checked_against_the_provider_of_what_it_replaces(case: str) -> None:
    body, options, reason = PLACES[case]
    model = parse(PLACED, opset=18)
    before = ops(model)
    model, _, explanation, rewrites = run(body, model=model, options=options)
    assert [refusal.reason for refusal in explanation.refusals] == ([] if reason is None else [reason])
    assert rewrites == (reason is None)
    assert (ops(model) == before) == (reason is not None)


class ToSinh(Swap):
    """Relu becomes Sinh."""

    becomes = "Sinh"


def test_a_rule_is_checked_the_same_way() -> None:
    explanation = Explanation()
    applied(PLACED, ToSinh(), observers=[explanation], options=BOTH)
    assert [refusal.reason for refusal in explanation.refusals] == [ELSEWHERE]


# -- many at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_is_made_as_a_whole_or_not_at_all(fails: bool) -> None:
    def body(graph: ir.Graph, context: Context) -> bool:
        found = relus(graph)
        assert all(context.offer((node,)) for node in found)

        def change() -> list[list[ir.Node]]:
            new = [context.replace(sigmoid(node), before=node, origin=(node,)) for node in found]
            if fails:
                raise Conflict("not all of them can be")
            return new

        return context.attempt_all([(node,) for node in found], change)

    model, announced, explanation, rewrites = run(body)
    if fails:
        assert ops(model) == ["Relu", "Abs", "Relu", "Neg"]
        assert (announced.told, rewrites) == ([], 0)
        assert [refusal.reason for refusal in explanation.refusals] == ["not all of them can be"] * 2
    else:
        assert ops(model) == ["Sigmoid", "Abs", "Sigmoid", "Neg"]
        assert announced.told == [(1, ["Sigmoid"]), (2, ["Sigmoid"])]
        assert rewrites == 2


def test_a_batch_holds_only_what_was_accepted() -> None:
    with pytest.raises(TransformerError, match="has not been accepted"):
        run(lambda graph, context: context.attempt_all([(graph[0],)], lambda: [[graph[0]]]))
