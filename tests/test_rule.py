"""The worklist driver: what it visits, what it checks for a rule, and how often."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import pytest

from ortopt import (
    GraphTransformer,
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
from ortopt.instrumentation.limit import RewriteLimit
from ortopt.options import Numerics, Options
from ortopt.rule import Forwarded
from ortopt.serialization.checks.structure import validate
from ortopt.testing import check_keeps, check_rewrites, parse


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


def visits(manager: GraphTransformerManager) -> int:
    return sum(entry.visits for entry in manager.history)


def test_rules_run_to_the_fixed_point_in_one_sweep() -> None:
    check_rewrites(NegNeg(), chain(9), "t = Neg (v0) y = Relu (t)")


@pytest.mark.parametrize("length", [50, 100, 200, 400])
def test_visits_grow_with_the_nodes_and_not_faster(length: int) -> None:
    manager = GraphTransformerManager()
    manager.register(NegNeg())
    manager.apply_transformers(parse(chain(length)), 1)
    assert visits(manager) <= 4 * length


def test_nodes_of_other_ops_are_never_offered() -> None:
    manager = GraphTransformerManager()
    manager.register(NegNeg())
    manager.apply_transformers(parse(chain(30, "Abs")), 1)
    assert visits(manager) == 0


def test_a_value_between_matched_nodes_that_is_needed_elsewhere_refuses() -> None:
    check_keeps(
        NegNeg(),
        "main (float[N] x) => (float[N] y, float[N] t) { t = Neg (x) u = Neg (t) y = Relu (u) }",
        "Neg's result is used elsewhere",
    )
    check_keeps(
        NegNeg(),
        "main (float[N] x) => (float[N] y) { t = Neg (x) u = Neg (t) y = Add (u, t) }",
        "Neg's result is used elsewhere",
    )


def test_a_use_in_a_subgraph_counts() -> None:
    check_keeps(
        NegNeg(),
        """main (float[N] x, bool c) => (float[N] y) { t = Neg (x) u = Neg (t)
        y = If (c) < then_branch = a () => (float[N] p) { p = Relu (t) },
                     else_branch = b () => (float[N] q) { q = Relu (u) }> }""",
        "Neg's result is used elsewhere",
    )


def test_a_root_outside_the_opsets_is_not_offered() -> None:
    class Late(NegNeg):
        """Neg(Neg(x)) becomes x, from opset 18."""

        name = "late"
        opsets = (18, 99)

    check_keeps(Late(), chain(4), opset=17)
    check_rewrites(Late(), chain(4), "y = Relu (v0)", opset=18)


def test_after_ranks_rules_at_a_node() -> None:
    class First(RewriteRule[Forwarded]):
        """Neg becomes Abs."""

        name = "z_first"
        roots = ("Neg",)
        op = "Abs"

        def match(self, root: ir.Node) -> Forwarded:
            return Forwarded((root,), inputs(root, 1)[0])

        def rewrite(self, found: Forwarded) -> ir.Node:
            return ir.node(self.op, [found.value])

    class Second(First):
        """Neg becomes Ceil."""

        name = "a_second"
        after = ("z_first",)
        op = "Ceil"

    manager, model = GraphTransformerManager(), parse(chain(3))
    manager.register(Second())
    manager.register(First())
    manager.apply_transformers(model, 1)
    assert {node.op_type for node in model.graph} == {"Abs", "Relu"}


def test_a_rewrite_without_a_kernel_is_refused() -> None:
    class ToInt(RewriteRule[Forwarded]):
        """Relu of int64 becomes Sigmoid, which has no such kernel."""

        roots = ("Relu",)

        def match(self, root: ir.Node) -> Forwarded:
            return Forwarded((root,), inputs(root, 1)[0])

        def rewrite(self, found: Forwarded) -> ir.Node:
            return ir.node("Sigmoid", [found.value])

    check_keeps(ToInt(), "main (int32[N] x) => (int32[N] y) { y = Relu (x) }", "no provider has a kernel of Sigmoid")


def test_new_nodes_of_a_new_domain_are_imported() -> None:
    class Contrib(RewriteRule[Forwarded]):
        """Relu becomes com.microsoft QuickGelu."""

        levels = (TransformerLevel.LEVEL2,)
        roots = ("Relu",)
        produces = (("com.microsoft", "QuickGelu"),)

        def match(self, root: ir.Node) -> Forwarded:
            return Forwarded((root,), inputs(root, 1)[0])

        def rewrite(self, found: Forwarded) -> ir.Node:
            return ir.node("QuickGelu", [found.value], domain="com.microsoft")

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
    class Newer(RewriteRule[Forwarded]):
        """Relu becomes Gelu, which is of opset 20."""

        roots = ("Relu",)

        def match(self, root: ir.Node) -> Forwarded:
            return Forwarded((root,), inputs(root, 1)[0])

        def rewrite(self, found: Forwarded) -> ir.Node:
            return ir.node("Gelu", [found.value])

    check_keeps(Newer(), "main (float[N] x) => (float[N] y) { y = Relu (x) }", "opset 17 has no Gelu")


def test_an_op_of_another_domain_that_is_not_declared_is_a_broken_promise() -> None:
    class Undeclared(RewriteRule[Forwarded]):
        """Relu becomes com.microsoft QuickGelu."""

        roots = ("Relu",)

        def match(self, root: ir.Node) -> Forwarded:
            return Forwarded((root,), inputs(root, 1)[0])

        def rewrite(self, found: Forwarded) -> ir.Node:
            return ir.node("QuickGelu", [found.value], domain="com.microsoft")

    manager = GraphTransformerManager()
    manager.register(Undeclared())
    with pytest.raises(TransformerError, match="does not declare"):
        manager.apply_transformers(parse("main (float[N] x) => (float[N] y) { y = Relu (x) }"), 1)


def test_every_rewrite_is_numbered_and_can_be_left_out() -> None:
    class Sigmoids(RewriteRule[Forwarded]):
        """Relu becomes Sigmoid."""

        roots = ("Relu",)

        def match(self, root: ir.Node) -> Forwarded:
            return Forwarded((root,), inputs(root, 1)[0])

        def rewrite(self, found: Forwarded) -> ir.Node:
            return ir.node("Sigmoid", [found.value])

    def ops(limit: RewriteLimit) -> list[str]:
        explanation = Explanation()
        manager, model = GraphTransformerManager(observers=[limit, explanation]), parse(chain(3, "Relu"))
        manager.register(Sigmoids())
        manager.apply_transformers(model, 1)
        numbers = [rewrite.number for rewrite in explanation.rewrites]
        assert numbers[:4] == [1, 2, 3, 4]
        return [node.op_type for node in model.graph]

    assert ops(RewriteLimit(2)) == ["Sigmoid", "Sigmoid", "Relu", "Relu"]
    assert ops(RewriteLimit(without=frozenset({2}))) == ["Sigmoid", "Relu", "Sigmoid", "Sigmoid"]


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
        manager = GraphTransformerManager()
        manager.register(kind())
        with pytest.raises(TransformerError, match=reason):
            manager.apply_transformers(parse(text), TransformerLevel.LEVEL1)


class NegAsProduct(RewriteRule[Forwarded]):
    """Neg(x) becomes a product with a matrix, whose zeros make NaN of all that is beside one."""

    roots = ("Neg",)
    numerics = Numerics.REORDERED
    says_so = True

    def match(self, root: ir.Node) -> Forwarded:
        return Forwarded((root,), inputs(root, 1)[0])

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


class Grows(RewriteRule[Forwarded]):
    """Abs becomes Abs of Abs, for ever."""

    roots = ("Abs",)

    def match(self, root: ir.Node) -> Forwarded:
        return Forwarded((root,), inputs(root, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Abs", [ir.node("Abs", [found.value]).outputs[0]])


def test_a_rule_that_rewrites_its_own_result_for_ever_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_module, "MAX_REWRITES", 50)
    manager = GraphTransformerManager()
    manager.register(Grows())
    manager.register(NegNeg())
    model = parse("main (float[N] x) => (float[N] y) { a = Neg (x) b = Neg (a) y = Abs (b) }")
    with pytest.warns(RuntimeWarning, match="level 1 stopped in step 1: rules made 110 rewrites on main .* grows"):
        assert manager.apply_transformers(model, 1)
    assert manager.bound_reached == [TransformerLevel.LEVEL1]
    assert [node.op_type for node in model.graph] == ["Abs"] * 110  # the first one makes two of NegNeg's one
    validate(model)


def test_the_bound_of_rewrites_is_far_from_what_an_honest_rule_makes() -> None:
    manager = GraphTransformerManager()
    manager.register(NegNeg())
    manager.apply_transformers(parse(chain(400)), 1)
    assert sum(entry.rewrites for entry in manager.history) < 400 < rule_module.MAX_REWRITES
    assert not manager.bound_reached


class SqueezesByAnInput(RewriteRule[Forwarded]):
    """``Neg(x)`` → ``Squeeze(x, axes)``, as opset 13 writes it."""

    roots = ("Neg",)

    def match(self, root: ir.Node) -> Forwarded:
        (x,) = inputs(root, 1)
        return Forwarded((root,), x)

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


class Shortens(GraphTransformer):
    """Sqrt(Abs(x)) becomes Sqrt(x), after the rules have seen all nodes."""

    after = ("counts_near", "counts_far", "counts_further", "counts_below")

    def apply(self, graph: ir.Graph, context: Any) -> bool:
        changed = False
        for node in tuple(graph):
            if node.op_type == "Abs":
                changed |= context.substitute({node.outputs[0]: node.inputs[0]}, before=node, origin=(node,))
        return changed


class _Counting(RewriteRule[Forwarded]):
    roots = ("Relu",)

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def match(self, root: ir.Node) -> Forwarded:
        self.asked.append(root.outputs[0].name or "")
        raise Refusal("it only counts", root)

    def rewrite(self, found: Forwarded) -> ir.Node:
        raise AssertionError


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
    manager = GraphTransformerManager()
    for transformer in (near, far, further, below, Shortens()):
        manager.register(transformer, TransformerLevel.LEVEL1)
    manager.apply_transformers(parse(text), TransformerLevel.LEVEL1)
    assert near.asked == ["r", "z", "r"]  # the Sqrt has changed, and z is four nodes below it
    assert far.asked == ["r", "z", "r"]
    assert further.asked == ["r", "z", "r", "z"]
    assert below.asked == ["r", "z", "r", "z"]


class Turns(GraphTransformer):
    """Abs(x) becomes Sign(x), once the rules have run."""

    after = ("counts_near", "counts_far", "follows")

    def apply(self, graph: ir.Graph, context: Any) -> bool:
        changed = False
        for node in tuple(graph):
            if node.op_type == "Abs":
                new = ir.node("Sign", list(node.inputs)).outputs[0]
                changed |= context.substitute({node.outputs[0]: new}, before=node, origin=(node,))
        return changed


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
    manager = GraphTransformerManager()
    for transformer in (near, far, Follows(), Turns()):
        manager.register(transformer, TransformerLevel.LEVEL1)
    model = parse(text)
    manager.apply_transformers(model, TransformerLevel.LEVEL1)
    assert [node.op_type for node in model.graph] == ["Sign", "Sqrt", "Ceil", "Floor", "Relu"]
    assert far.asked == ["z", "z"], "the Sqrt has changed, three nodes above it"
    assert near.asked == ["z", "z"], "the Neg has become a Ceil, one node above what it looks at"


class GrowsAtFirst(RewriteRule[Forwarded]):
    """Adds a large constant where there is room: Abs(x) becomes Max(x, c)."""

    roots = ("Abs",)
    after = ("upper",)
    lookback = 0

    def match(self, root: ir.Node) -> Forwarded:
        return Forwarded((root,), inputs(root, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Max", [found.value, constant(np.ones(1024, np.float32))])


class Frees(GraphTransformer):
    """Takes a large constant away: Add(x, 0) becomes x."""

    after = ("grows_at_first",)

    def apply(self, graph: ir.Graph, context: Any) -> bool:
        changed = False
        for node in tuple(graph):
            if node.op_type == "Add":
                changed |= context.substitute({node.outputs[0]: node.inputs[0]}, before=node, origin=(node,))
        return changed


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


class Removes(GraphTransformer):
    """Abs(x) becomes Relu(x)."""

    after = ("needs_abs",)

    def apply(self, graph: ir.Graph, context: Any) -> bool:
        changed = False
        for node in tuple(graph):
            if node.op_type == "Abs":
                new = ir.node("Relu", list(node.inputs)).outputs[0]
                changed |= context.substitute({node.outputs[0]: new}, before=node, origin=(node,))
        return changed


@pytest.mark.parametrize(("op", "left"), [("Abs", []), ("Sqrt", ["Neg", "Neg"])])
def test_a_rule_is_offered_nothing_without_an_op_that_it_needs(op: str, left: list[str]) -> None:
    model = parse(f"a (float[3] x) => (float[3] y) {{ p = Neg (x) q = Neg (p) r = {op} (q) y = Sign (r) }}")
    manager = GraphTransformerManager()
    manager.register(NeedsAbs(), TransformerLevel.LEVEL1)
    manager.apply_transformers(model, TransformerLevel.LEVEL1)
    assert [node.op_type for node in model.graph] == [*left, op, "Sign"]


def test_an_op_that_a_rule_needs_may_come_and_go() -> None:
    model = parse("a (float[3] x) => (float[3] y) { p = Abs (x) q = Sqrt (p) y = Sign (q) }")
    manager = GraphTransformerManager()
    for transformer in (NeedsAbs(), Removes()):
        manager.register(transformer, TransformerLevel.LEVEL1)
    index = Workspace(model, Options()).edit.index
    before = index.ops_changed
    (node, *_) = index.nodes(model.graph, "Abs")
    index.discard(model.graph, node)
    assert index.ops_changed == before + 1
    assert not index.has_any_anywhere(NeedsAbs.needs)
    index.add(model.graph, node)
    assert index.ops_changed == before + 2
    assert index.has_any_anywhere(NeedsAbs.needs)
    manager.apply_transformers(model, TransformerLevel.LEVEL1)
    assert [node.op_type for node in model.graph] == ["Relu", "Sqrt", "Sign"]


def test_a_rule_that_is_asked_for_its_reasons_is_offered_all() -> None:
    text = "a (float[3] x) => (float[3] y) { p = Neg (x) y = Sqrt (p) }"
    check_keeps(NeedsAbs(), text, "no Neg comes before")
