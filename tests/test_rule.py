"""The worklist driver: what it visits, what it checks for a rule, and how often."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import pytest

from ortopt import (
    GraphTransformerManager,
    RegistrationError,
    RewriteRule,
    TransformerError,
    TransformerLevel,
)
from ortopt import rule as rule_module
from ortopt.cancellation import CancellationToken
from ortopt.framework.workspace import Workspace
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    choose,
    dims_broadcast_to,
    first_match,
    inputs,
    is_scalar,
    need,
    operand_constant,
    operand_from,
    producer,
)
from ortopt.instrumentation.explanation import Explanation
from ortopt.optimization.replay import RewriteLimit
from ortopt.options import Numerics, Options
from ortopt.rule import Forwarded
from ortopt.serialization.checks.structure import validate
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.rules import Swap, SwapByHand, applied, ops


class Pair(NamedTuple):
    nodes: tuple[ir.Node, ...]
    value: ir.Value


class NegNeg(RewriteRule[Pair]):
    """Neg(Neg(x)) becomes x."""

    roots = ("Neg",)

    def match(self, root: ir.Node) -> Pair:
        inner = producer(root.inputs[0], "Neg")
        return Pair((inner, root), inputs(inner, 1)[0])

    def rewrite(self, found: Pair) -> ir.Value:
        return found.value


class Sandwich(NamedTuple):
    nodes: tuple[ir.Node, ...]
    x: ir.Value
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        return (self.y,)


class AbsBetween(RewriteRule[Sandwich]):
    """Relu(Abs(Neg(x))) becomes Abs(x): the root stands in the middle."""

    roots = ("Abs",)

    def match(self, root: ir.Node) -> Sandwich:
        above = producer(root.inputs[0], "Neg")
        below = next((use.node for use in root.outputs[0].uses() if use.node.op_type == "Relu"), None)
        if below is None:
            raise Refusal("no Relu comes after", root)
        return Sandwich((above, root, below), inputs(above, 1)[0], below.outputs[0])

    def rewrite(self, found: Sandwich) -> dict[ir.Value, ir.Value]:
        return {found.y: ir.node("Abs", [found.x]).outputs[0]}


def test_a_root_in_the_middle() -> None:
    body = "n = Neg (x) a = Abs (n) y = Relu (a)"
    check_rewrites(AbsBetween(), f"main (float[N] x) => (float[N] y) {{ {body} }}", "y = Abs (x)")
    outputs = "(float[N] y, float[N] z)"
    check_keeps(
        AbsBetween(), f"main (float[N] x) => {outputs} {{ {body} z = Exp (a) }}", "Abs's result is used elsewhere"
    )
    returned = outputs.replace(" z", " a")
    check_keeps(AbsBetween(), f"main (float[N] x) => {returned} {{ {body} }}", "Abs's result is used elsewhere")


def chain(length: int, op: str = "Neg") -> str:
    body = " ".join(f"v{i + 1} = {op} (v{i})" for i in range(length))
    return f"main (float[N] v0) => (float[N] y) {{ {body} y = Relu (v{length}) }}"


def visits(text: str) -> int:
    """How many nodes a rule is offered in a model."""
    manager, _ = applied(text, NegNeg())
    return sum(entry.visits for entry in manager.history)


def test_rules_run_to_the_fixed_point_in_one_sweep() -> None:
    check_rewrites(NegNeg(), chain(9), "t = Neg (v0) y = Relu (t)")


@pytest.mark.parametrize("length", [50, 100, 200, 400])
def test_visits_grow_with_the_nodes_and_not_faster(length: int) -> None:
    assert visits(chain(length)) <= 4 * length


def test_nodes_of_other_ops_are_never_offered() -> None:
    assert visits(chain(30, "Abs")) == 0


@pytest.mark.parametrize(
    "graph",
    [
        "(float[N] x) => (float[N] y, float[N] t) { t = Neg (x) u = Neg (t) y = Relu (u) }",
        "(float[N] x) => (float[N] y) { t = Neg (x) u = Neg (t) y = Add (u, t) }",
        """(float[N] x, bool c) => (float[N] y) { t = Neg (x) u = Neg (t)
        y = If (c) < then_branch = a () => (float[N] p) { p = Relu (t) },
                     else_branch = b () => (float[N] q) { q = Relu (u) }> }""",
    ],
    ids=["output", "node", "subgraph"],
)
def test_a_value_between_matched_nodes_that_is_needed_elsewhere_refuses(graph: str) -> None:
    check_keeps(NegNeg(), f"main {graph}", "Neg's result is used elsewhere")


def test_a_root_outside_the_opsets_is_not_offered() -> None:
    class Late(NegNeg):
        """Neg(Neg(x)) becomes x, from opset 18."""

        name = "late"
        opsets = (18, 99)

    check_keeps(Late(), chain(4), opset=17)
    check_rewrites(Late(), chain(4), "y = Relu (v0)", opset=18)


def test_after_ranks_rules_at_a_node() -> None:
    class First(Swap):
        """Neg becomes Abs."""

        name = "z_first"
        roots = ("Neg",)
        becomes = "Abs"

    class Second(First):
        """Neg becomes Ceil."""

        name = "a_second"
        after = ("z_first",)
        becomes = "Ceil"

    _, model = applied(chain(3), Second(), First())
    assert set(ops(model)) == {"Abs", "Relu"}


class Sigmoids(Swap):
    """Relu becomes Sigmoid."""

    becomes = "Sigmoid"


def test_a_rewrite_without_a_kernel_is_refused() -> None:
    check_keeps(Sigmoids(), "main (int32[N] x) => (int32[N] y) { y = Relu (x) }", "no provider has a kernel of Sigmoid")


class QuickGelus(Swap):
    """Relu becomes com.microsoft QuickGelu."""

    becomes = "com.microsoft::QuickGelu"


def test_new_nodes_of_a_new_domain_are_imported() -> None:
    class Contrib(QuickGelus):
        """Relu becomes com.microsoft QuickGelu, as it says."""

        levels = (TransformerLevel.LEVEL2,)
        produces = (("com.microsoft", "QuickGelu"),)

    text = "main (float[N] x) => (float[N] y) { y = Relu (x) }"
    model = check_rewrites(Contrib(), text, numbers=False)
    assert model.opset_imports["com.microsoft"] == 1
    check_keeps(Contrib(), text, "QuickGelu is no op of the ONNX specification", target="onnx")
    check_keeps(Contrib(), text, "QuickGelu is no op of the ONNX specification", level=1)


def test_an_op_that_was_there_may_stay_at_every_level() -> None:
    class Deeper(RewriteRule[Forwarded]):
        """The com.microsoft QuickGelu of a Neg of x becomes that of x."""

        roots = ("com.microsoft::QuickGelu",)

        def match(self, root: ir.Node) -> Forwarded:
            negated = producer(inputs(root, 1)[0], "Neg")
            return Forwarded((negated, root), inputs(negated, 1)[0])

        def rewrite(self, found: Forwarded) -> ir.Node:
            return ir.node("QuickGelu", [found.value], domain="com.microsoft")

    text = "main (float[N] x) => (float[N] y) { t = Neg (x) y = com.microsoft.QuickGelu (t) }"
    check_rewrites(Deeper(), text, after="y = com.microsoft.QuickGelu (x)", numbers=False)
    check_rewrites(Deeper(), text, after="y = com.microsoft.QuickGelu (x)", numbers=False, target="onnx")


def test_ops_that_the_models_opset_does_not_define_are_refused() -> None:
    class Newer(Swap):
        """Relu becomes Gelu, which is of opset 20."""

        becomes = "Gelu"

    check_keeps(Newer(), "main (float[N] x) => (float[N] y) { y = Relu (x) }", "opset 17 has no Gelu")


def test_an_op_of_another_domain_that_is_not_declared_is_a_broken_promise() -> None:
    with pytest.raises(TransformerError, match="does not declare"):
        applied("main (float[N] x) => (float[N] y) { y = Relu (x) }", QuickGelus())


def test_every_rewrite_is_numbered_and_can_be_left_out() -> None:
    for limit, left in (
        (RewriteLimit(2), ["Sigmoid", "Sigmoid", "Relu", "Relu"]),
        (RewriteLimit(without=frozenset({2})), ["Sigmoid", "Relu", "Sigmoid", "Sigmoid"]),
    ):
        explanation = Explanation()
        _, model = applied(chain(3, "Relu"), Sigmoids(), observers=[limit, explanation])
        assert [rewrite.number for rewrite in explanation.rewrites][:4] == [1, 2, 3, 4]
        assert ops(model) == left


def test_alternatives_are_tried_until_a_match_holds() -> None:
    class Second(RewriteRule[Pair]):
        """Add(Neg(x), Neg(y)) with the other operand a graph input becomes Sub."""

        roots = ("Add",)

        def match(self, root: ir.Node) -> Pair:
            neg, other = operand_from(root, "Neg")
            need(neg.name == "wanted", "it is not the one", neg)
            return Pair((neg, root), other)

        def rewrite(self, found: Pair) -> ir.Node:
            return ir.node("Sub", [found.value, found.nodes[0].inputs[0]])

    model = parse("main (float[N] a, float[N] b) => (float[N] y) { p = Neg (a) q = Neg (b) y = Add (p, q) }")
    model.graph[1].name = "wanted"
    check_rewrites(Second(), model, "main (float[N] a, float[N] b) => (float[N] y) { p = Neg (a) y = Sub (p, b) }")


def test_choices_are_explored_in_order_and_the_first_reason_is_told() -> None:
    tried: list[tuple[int, str]] = []

    def match(node: ir.Node) -> None:
        pair = (choose([1, 2]), choose(["a", "b"]))
        tried.append(pair)
        raise Refusal(f"not {pair}")

    with pytest.raises(Refusal, match=r"not \(1, 'a'\)"):
        first_match(match, ir.node("X", []))
    assert tried == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


def test_broadcast_proofs_hold_for_every_size() -> None:
    n, unknown = ir.SymbolicDim("N"), ir.SymbolicDim(None)
    assert dims_broadcast_to((1, n), (4, n))
    assert dims_broadcast_to((), (n,))
    assert not dims_broadcast_to((n,), (4,))
    assert not dims_broadcast_to((unknown,), (unknown,))
    assert not dims_broadcast_to((4,), (n,))
    assert not dims_broadcast_to((1, 1), (4,))


def test_scalars_are_compared_in_their_own_type() -> None:
    assert is_scalar(constant(0.5), 0.5)
    assert is_scalar(constant([2**-0.5]), 2**-0.5)
    assert not is_scalar(constant(0.7072), 2**-0.5)
    assert not is_scalar(constant([0.5, 0.5]), 0.5)
    assert is_scalar(constant(0.7071, ir.DataType.FLOAT16), 2**-0.5)
    assert is_scalar(constant(2), 2)
    assert not is_scalar(constant(2), 2.5)


@pytest.mark.parametrize("operands", ["x", "x, zero, z"])
def test_questions_about_two_operands_refuse_other_numbers(operands: str) -> None:
    text = f"main (float[N] x, float[N] z) => (float[N] y) <float zero = {{0}}> {{ y = Max ({operands}) }}"
    (node,) = parse(text).graph
    for question in (operand_constant, lambda root: operand_from(root, "Neg")):
        with pytest.raises(Refusal, match="Max has not two operands"):
            first_match(question, node)


def test_declarations_that_make_no_sense_are_refused() -> None:
    class Rootless(NegNeg):
        """No roots."""

        roots = ()

    class Undocumented(NegNeg):
        __doc__ = ""

    for kind, reason in ((Rootless, "roots must be"), (Undocumented, "the first docstring line is the formula")):
        with pytest.raises(RegistrationError, match=reason):
            GraphTransformerManager().register(kind())


@pytest.mark.parametrize(
    ("declaration", "value"),
    [
        ("levels", TransformerLevel.LEVEL1),
        ("levels", (1,)),
        ("roots", "Neg"),
        ("needs", "Abs"),
        ("after", "constant_folding"),
        ("providers", "CPUExecutionProvider"),
        ("produces", ("com.microsoft", "Gelu")),
    ],
)
def test_a_forgotten_comma_is_refused(declaration: str, value: object) -> None:
    kind = type("Commaless", (NegNeg,), {declaration: value, "__doc__": "Nothing."})
    with pytest.raises(RegistrationError, match=f"{declaration} must be a tuple"):
        GraphTransformerManager().register(kind())


@pytest.mark.parametrize(
    ("declaration", "value", "remedy"),
    [
        ("reach", 3, "lookback"),
        ("wide", True, "looks_downstream"),
        ("edits", "raw", "bypasses_editor = True"),
        ("alike_at_all_levels", True, "level_independent"),
    ],
)
def test_a_declaration_by_its_former_name_is_refused_with_the_new_one(
    declaration: str, value: object, remedy: str
) -> None:
    kind = type("Former", (NegNeg,), {declaration: value, "__doc__": "Nothing."})
    with pytest.raises(RegistrationError, match=f"{declaration} is called otherwise now: write {remedy}"):
        GraphTransformerManager().register(kind())


def test_what_is_returned_that_makes_no_sense_is_named() -> None:
    class MatchesNothing(NegNeg):
        """Returns None from match."""

        def match(self, root: ir.Node) -> Any:
            return None

    class RewritesNothing(NegNeg):
        """Returns None from rewrite."""

        def rewrite(self, found: Any) -> Any:
            return None

    class RefusesTooLate(NegNeg):
        """Asks in rewrite what match has to ask."""

        def rewrite(self, found: Any) -> Any:
            ir.node("Neg", [found.nodes[0].inputs[0]])
            raise Refusal("it is no good")

    text = "main (float[N] x) => (float[N] y) { a = Neg (x) y = Neg (a) }"
    for kind, reason in (
        (RefusesTooLate, "it is no good"),
        (MatchesNothing, "match returned a NoneType, which has no nodes"),
        (RewritesNothing, "rewrite returned a NoneType: it must be a node, a value or a mapping"),
    ):
        with pytest.raises(TransformerError, match=reason):
            applied(text, kind())


class NegAsProduct(Swap):
    """Neg(x) becomes a product with a matrix, whose zeros make NaN of all that is beside one."""

    roots = ("Neg",)
    numerics = Numerics.REORDERED
    says_so = True

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("MatMul", [found.value, constant(-np.eye(3, dtype=np.float32))])

    def numerics_of(self, found: Forwarded) -> Numerics:
        return Numerics.FINITE if self.says_so else self.numerics


class NegAsProductInSecret(NegAsProduct):
    """The same, unsaid."""

    says_so = False


def test_what_is_not_finite_may_spread_where_a_match_says_so() -> None:
    text = "main (float[2,3] x) => (float[2,3] y) { y = Neg (x) }"
    given = {"x": np.array([[1, np.nan, 2], [3, 4, 5]], np.float32)}
    check_rewrites(NegAsProduct(), text, ops={"MatMul": 1}, inputs=given)
    with pytest.raises(AssertionError, match="differ"):
        check_rewrites(NegAsProductInSecret(), text, inputs=given)


class Grows(Swap):
    """Abs becomes Abs of Abs, for ever."""

    roots = ("Abs",)

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Abs", [ir.node("Abs", [found.value]).outputs[0]])


def test_a_rule_that_rewrites_its_own_result_for_ever_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_module, "MAX_REWRITES", 50)
    text = "main (float[N] x) => (float[N] y) { a = Neg (x) b = Neg (a) y = Abs (b) }"
    with pytest.warns(RuntimeWarning, match="level 1 stopped in step 1: rules made 110 rewrites on main .* grows"):
        manager, model = applied(text, Grows(), NegNeg())
    assert manager.is_graph_modified
    assert manager.bound_reached == [TransformerLevel.LEVEL1]
    assert ops(model) == ["Abs"] * 110  # the first one makes two of NegNeg's one
    validate(model)


def test_the_bound_of_rewrites_is_far_from_what_an_honest_rule_makes() -> None:
    manager, _ = applied(chain(400), NegNeg())
    assert sum(entry.rewrites for entry in manager.history) < 400 < rule_module.MAX_REWRITES
    assert not manager.bound_reached


class SqueezesByAnInput(Swap):
    """``Neg(x)`` → ``Squeeze(x, axes)``, as opset 13 writes it."""

    roots = ("Neg",)

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Squeeze", [found.value, constant([0])])


class SqueezesByAnAttribute(SqueezesByAnInput):
    """``Neg(x)`` → ``Squeeze(x)``, as opset 11 writes it."""

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Squeeze", [found.value], {"axes": [0]})


@pytest.mark.parametrize(
    ("rule", "opset", "because"),
    [
        (SqueezesByAnInput, 11, "Squeeze of opset 11 has another number of inputs than 2"),
        (SqueezesByAnAttribute, 13, "Squeeze of opset 13 has no attribute axes"),
    ],
)
def test_a_new_node_has_the_form_of_its_opset(rule: type[RewriteRule[Forwarded]], opset: int, because: str) -> None:
    text = "main (float[1,2] x) => (float[A] z) { y = Neg (x) z = Abs (y) }"
    check_keeps(rule(), text, because, opset=opset)


class Shortens(SwapByHand):
    """Sqrt(Abs(x)) becomes Sqrt(x), after the rules have seen all nodes."""

    after = ("counts_near", "counts_far", "counts_further", "counts_below")


class _Counting(Swap):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def match(self, root: ir.Node) -> Forwarded:
        self.asked.append(root.outputs[0].name or "")
        raise Refusal("it only counts", root)


class CountsNear(_Counting):
    """Looks at its operand."""

    lookback = 1


class CountsFar(_Counting):
    """Looks further up."""

    lookback = 3


class CountsFurther(_Counting):
    """Looks up still further."""

    lookback = 4


class CountsBelow(_Counting):
    """Looks at what follows."""

    lookback = 1
    looks_downstream = True


def test_a_rule_is_offered_again_what_has_changed_as_far_above_as_it_looks() -> None:
    text = (
        "a (float[3] x) => (float[3] z) { p = Abs (x) q = Sqrt (p) r = Relu (q) s = Neg (r) t = Neg (s) z = Relu (t) }"
    )
    near, far, further, below = CountsNear(), CountsFar(), CountsFurther(), CountsBelow()
    applied(text, near, far, further, below, Shortens())
    assert near.asked == ["r", "z", "r"]  # the Sqrt has changed, and z is four nodes below it
    assert far.asked == ["r", "z", "r"]
    assert further.asked == ["r", "z", "r", "z"]
    assert below.asked == ["r", "z", "r", "z"]


class Turns(SwapByHand):
    """Abs(x) becomes Sign(x), once the rules have run."""

    after = ("counts_near", "counts_far", "follows")
    becomes = "Sign"


class Follows(RewriteRule[Forwarded]):
    """Neg(Sqrt(Sign(x))) becomes Ceil(Sqrt(Sign(x)))."""

    roots = ("Neg",)
    lookback = 2

    def match(self, root: ir.Node) -> Forwarded:
        (operand,) = inputs(root, 1)
        producer(inputs(producer(operand, "Sqrt"), 1)[0], "Sign")
        return Forwarded((root,), operand)

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Ceil", [found.value])


def test_what_changes_nearer_to_a_node_that_waits_counts_instead() -> None:
    """A node waits because of a change three nodes above it; then the node above it is rewritten."""
    text = "a (float[3] x) => (float[3] z) { p = Abs (x) q = Sqrt (p) r = Neg (q) s = Floor (r) z = Relu (s) }"
    near, far = CountsNear(), CountsFar()
    _, model = applied(text, near, far, Follows(), Turns())
    assert ops(model) == ["Sign", "Sqrt", "Ceil", "Floor", "Relu"]
    assert far.asked == ["z", "z"], "the Sqrt has changed, three nodes above it"
    assert near.asked == ["z", "z"], "the Neg has become a Ceil, one node above what it looks at"


class GrowsAtFirst(Swap):
    """Adds a large constant where there is room: Abs(x) becomes Max(x, c)."""

    roots = ("Abs",)
    after = ("upper",)
    lookback = 0

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Max", [found.value, constant(np.ones(1024, np.float32))])


class Frees(SwapByHand):
    """Takes a large constant away: Add(x, 0) becomes x."""

    after = ("grows_at_first",)
    op = "Add"


def test_what_was_too_large_is_tried_again_once_there_is_room() -> None:
    zeros = ", ".join(["0"] * 1024)
    model = parse(
        f"a (float[1024] x) => (float[1024] y, float[1024] z) <float[1024] zeros = {{{zeros}}}>"
        " { y = Abs (x) s = Add (x, zeros) z = Neg (s) }"
    )
    manager = GraphTransformerManager()
    for transformer in (GrowsAtFirst(), Frees()):
        manager.register(transformer, TransformerLevel.LEVEL1)
    workspace = Workspace(model, Options(), allowance=100)
    manager.run(workspace, TransformerLevel.LEVEL1, CancellationToken())
    assert [node.op_type for node in model.graph] == ["Max", "Neg"]


class NeedsAbs(NegNeg):
    """Neg(Neg(x)) becomes x, where there is an Abs."""

    needs = ("Abs",)


class Removes(SwapByHand):
    """Abs(x) becomes Relu(x)."""

    after = ("needs_abs",)
    becomes = "Relu"


@pytest.mark.parametrize(("op", "left"), [("Abs", []), ("Sqrt", ["Neg", "Neg"])])
def test_a_rule_is_offered_nothing_without_an_op_that_it_needs(op: str, left: list[str]) -> None:
    text = f"a (float[3] x) => (float[3] y) {{ p = Neg (x) q = Neg (p) r = {op} (q) y = Sign (r) }}"
    _, model = applied(text, NeedsAbs())
    assert ops(model) == [*left, op, "Sign"]


def test_an_op_that_a_rule_needs_may_come_and_go() -> None:
    model = parse("a (float[3] x) => (float[3] y) { p = Abs (x) q = Sqrt (p) y = Sign (q) }")
    index = Workspace(model, Options()).edit.index
    before = index.ops_changed
    (node, *_) = index.nodes(model.graph, "Abs")
    index.discard(model.graph, node)
    assert index.ops_changed == before + 1
    assert not index.has_any_anywhere(NeedsAbs.needs)
    index.add(model.graph, node)
    assert index.ops_changed == before + 2
    assert index.has_any_anywhere(NeedsAbs.needs)
    applied(model, NeedsAbs(), Removes())
    assert ops(model) == ["Relu", "Sqrt", "Sign"]


def test_a_rule_that_is_asked_for_its_reasons_is_offered_all() -> None:
    text = "a (float[3] x) => (float[3] y) { p = Neg (x) y = Sqrt (p) }"
    check_keeps(NeedsAbs(), text, "no Neg comes before")
