"""Every node that comes into a graph is checked, by whatever door: kernel, opset, target, level, declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
import pytest

from ortopt.errors import TransformerError
from ortopt.graph import scope
from ortopt.instrumentation.explanation import Explanation
from ortopt.manager import GraphTransformerManager
from ortopt.options import Options, Target, TransformerLevel
from ortopt.rule import Forwarded
from ortopt.serialization.checks.structure import validate
from ortopt.serialization.save import to_bytes
from ortopt.testing import all_fusions, parse
from ortopt.transformer import Context, GraphTransformer
from tests.rules import Swap

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
MICROSOFT = "com.microsoft"
TEXT = """main (float[2] x, bool c) => (float[2] y) { a = Relu (x) b = Abs (a) y = If (c) <
    then_branch = t () => (float[2] s) { s = Neg (b) }, else_branch = e () => (float[2] u) { u = Exp (b) } > }"""


class Case:
    """A node that is to come in for a Relu of a model, and what is wrong with it.

    Args:
        make: Makes the node from the operand.
        because: Part of the reason; empty where nothing is wrong.
        options: Options of the run.
        level: The level.
        produces: What the transformer declares.
    """

    def __init__(
        self,
        make: Callable[[ir.Value], ir.Node],
        because: str = "",
        *,
        options: Options | None = None,
        level: int = 1,
        produces: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.make = make
        self.because = because
        self.options = options or all_fusions()
        self.level = TransformerLevel(level)
        self.produces = produces


def op(name: str, domain: str = "", **attributes: float) -> Callable[[ir.Value], ir.Node]:
    return lambda x: ir.node(name, [x], attributes, domain=domain)


QUICK = ((MICROSOFT, "QuickGelu"),)
CASES = {
    "an op of the opset": Case(op("Tanh")),
    "an op of a newer opset": Case(op("Gelu"), "opset 17 has no Gelu"),
    "an op that does not exist": Case(op("Rleu"), "opset 17 has no Rleu"),
    "an attribute that the op does not have": Case(op("Tanh", alpha=1.0), "has no attribute alpha"),
    "no kernel for the type": Case(op("Not"), "no provider has a kernel of Not for float"),
    "no kernel on the provider": Case(
        op("Sinh"), f"{CUDA}, where it is to run, has no kernel of Sinh", options=Options(providers=(CUDA, CPU))
    ),
    "an op that nobody declares": Case(op("QuickGelu", MICROSOFT), "which it does not declare (produces)", level=2),
    "a declared op": Case(op("QuickGelu", MICROSOFT), level=2, produces=QUICK),
    "a declared op at level 1": Case(op("QuickGelu", MICROSOFT), "level 1 keeps to it", produces=QUICK),
    "a declared op for any runtime": Case(
        op("QuickGelu", MICROSOFT),
        "is no op of the ONNX specification",
        level=2,
        produces=QUICK,
        options=Options(target=Target.ONNX),
    ),
    "an op of nobody": Case(op("Twist", "my.domain"), "which it does not declare (produces)"),
}


def by_substitute(case: Case, node: ir.Node, context: Context) -> bool:
    return context.substitute(_new(case, node), before=node, origin=(node,))


def by_substitute_without_origin(case: Case, node: ir.Node, context: Context) -> bool:
    return context.substitute(_new(case, node), before=node)


def by_replace(case: Case, node: ir.Node, context: Context) -> bool:
    return context.attempt((node,), lambda: context.replace(_new(case, node), node, (node,)))


def by_replace_of_the_editor(case: Case, node: ir.Node, context: Context) -> bool:
    return context.attempt((node,), lambda: context.edit.replace(_new(case, node), node, (node,)))


def by_insert(case: Case, node: ir.Node, context: Context) -> bool:
    return context.attempt((node,), lambda: _insert(case, node, context))


def by_insert_after_removal(case: Case, node: ir.Node, context: Context) -> bool:
    def change() -> list[ir.Node]:
        (x,), (result,), behind = node.inputs, node.outputs, tuple(context.edit.model.graph)[1]
        assert x is not None
        context.edit.replace_uses(result, x)
        context.edit.remove(node)
        new = case.make(x)
        context.edit.insert([new], behind)
        context.edit.set_input(behind, 0, new.outputs[0])
        return [new]

    return context.attempt((node,), change)


def by_append(case: Case, node: ir.Node, context: Context) -> bool:
    (x,) = node.inputs
    assert x is not None
    new = case.make(x)
    graph = scope.graph_of(node)

    def change() -> list[ir.Node]:
        context.edit.append(graph, new)
        return [new]

    return context.attempt((node,), change)


def by_hand(case: Case, node: ir.Node, context: Context) -> bool:
    return context.offer((node,)) and bool(_insert(case, node, context))


def in_a_batch(case: Case, node: ir.Node, context: Context) -> bool:
    return context.offer((node,)) and context.attempt_all([(node,)], lambda: [_insert(case, node, context)])


def in_a_branch(case: Case, node: ir.Node, context: Context) -> bool:
    """A new If, whose branches hold the node."""
    (x,), condition = node.inputs, context.model.graph.inputs[1]
    assert x is not None

    def branch(name: str) -> ir.Attr:
        inner = case.make(x)
        inner.outputs[0].name = f"{name}_result"
        return ir.AttrGraph(name, ir.Graph([], inner.outputs, nodes=[inner], name=name))

    new = ir.Node("", "If", [condition], [branch("then_branch"), branch("else_branch")], num_outputs=1)
    return context.substitute({node.outputs[0]: new.outputs[0]}, before=node, origin=(node,))


def in_a_function(case: Case, node: ir.Node, context: Context) -> bool:
    """A new function of the node, and one that has come along."""
    (x,) = node.inputs
    assert x is not None
    imports = context.model.opset_imports
    inner = ir.Value(name="inner", type=x.type, shape=x.shape)
    extra = case.make(inner)
    extra.outputs[0].name = "extra"
    body = ir.Graph([inner], [], nodes=[extra], opset_imports={**imports, "my.domain": 1}, name="block")
    function = ir.Function("my.functions", "block", graph=body, attributes=())
    call = ir.Node("my.functions", "block", [x], num_outputs=1, name="call")

    def change() -> list[ir.Node]:
        context.edit.set_opset(imports, "my.functions", 1)
        context.edit.outline([node], function, call, {x: inner}, [node.outputs[0]], context.cancellation)
        return [call]

    return context.attempt((node,), change)


def _new(case: Case, node: ir.Node) -> dict[ir.Value, ir.Value]:
    (x,) = node.inputs
    assert x is not None
    return {node.outputs[0]: case.make(x).outputs[0]}


def _insert(case: Case, node: ir.Node, context: Context) -> list[ir.Node]:
    (x,) = node.inputs
    assert x is not None
    new = case.make(x)
    context.edit.insert([new], node, [node])
    context.edit.replace_uses(node.outputs[0], new.outputs[0])
    context.edit.remove(node)
    return [new]


DOORS = {
    door.__name__: door
    for door in (
        by_substitute,
        by_substitute_without_origin,
        by_replace,
        by_replace_of_the_editor,
        by_insert,
        by_insert_after_removal,
        by_append,
        by_hand,
        in_a_batch,
        in_a_branch,
        in_a_function,
    )
}


class Brings(GraphTransformer):
    """Relu → what a case says."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2)
    apply_once = True
    offers_rewrites = True

    def __init__(self, case: Case, door: Callable[[Case, ir.Node, Context], bool]) -> None:
        super().__init__()
        self.case, self.door = case, door
        self.__class__ = type("Brings", (type(self),), {"produces": case.produces, "__doc__": type(self).__doc__})

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        found = next((node for node in graph if node.op_type == "Relu"), None)
        return found is not None and self.door(self.case, found, context)


def run(transformer: GraphTransformer, case: Case, model: ir.Model) -> str:
    """Why a run does not make its change; empty where it does."""
    explanation = Explanation()
    manager = GraphTransformerManager(options=case.options, observers=[explanation])
    manager.register(transformer, case.level)
    try:
        manager.apply_transformers(model, case.level)
    except TransformerError as error:
        return error.reason
    return "; ".join(refusal.reason for refusal in explanation.refusals)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("door", DOORS)
def test_a_new_node_is_checked_by_whatever_door_it_comes(door: str, name: str) -> None:
    case, model = CASES[name], parse(TEXT)
    before = to_bytes(model)
    because = run(Brings(case, DOORS[door]), case, model)
    if case.because:
        assert case.because in because
        assert to_bytes(model) == before
    else:
        assert because == ""
        assert to_bytes(model) != before
        validate(model)


class BringsAsRule(Swap):
    """Relu → what a case says."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2)

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.__class__ = type("BringsAsRule", (type(self),), {"produces": case.produces, "__doc__": type(self).__doc__})

    def rewrite(self, found: Forwarded) -> ir.Node:
        return self.case.make(found.value)


@pytest.mark.parametrize("name", CASES)
def test_so_is_what_a_rule_makes(name: str) -> None:
    case, model = CASES[name], parse(TEXT)
    because = run(BringsAsRule(case), case, model)
    assert (case.because in because) if case.because else because == ""
    assert ("Relu" in [node.op_type for node in model.graph]) is bool(case.because)


class BringsOnAClone(GraphTransformer):
    """Relu → what a case says, on a clone; by another node, or by another op of the same node."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2)
    apply_once = True
    bypasses_editor = True

    def __init__(self, case: Case, way: str) -> None:
        super().__init__()
        self.case, self.way = case, way
        kind = {"produces": case.produces, "__doc__": type(self).__doc__}
        self.__class__ = type("BringsOnAClone", (type(self),), kind)

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        node = graph[0]
        (x,) = node.inputs
        assert x is not None
        new = self.case.make(x)
        if self.way == "same node":
            node.op_type, node.domain = new.op_type, new.domain
            for attribute in new.attributes.values():
                node.attributes[attribute.name] = attribute
            new.replace_input_with(0, None)
            return True
        graph.insert_before(node, new)
        node.outputs[0].replace_all_uses_with(new.outputs[0])
        graph.remove(node, safe=True)
        return True


CLONED: Mapping[str, Sequence[str]] = {
    "other node": tuple(CASES),
    "same node": tuple(CASES),
}


@pytest.mark.parametrize(("way", "name"), [(way, name) for way, names in CLONED.items() for name in names])
def test_so_is_what_comes_with_a_clone(way: str, name: str) -> None:
    case, model = CASES[name], parse(TEXT)
    before = to_bytes(model)
    because = run(BringsOnAClone(case, way), case, model)
    if case.because.startswith(CUDA):  # which nodes a new one stands for is not known: some provider has to have it
        assert because == ""
    elif case.because:
        assert case.because in because
        assert to_bytes(model) == before
    else:
        assert because == ""
        assert to_bytes(model) != before
        validate(model)


def test_copies_of_what_only_the_model_knows_may_come() -> None:
    """Such as an op of the user's own, in the body of a function that is inlined."""
    model = parse(
        TEXT.replace("a = Relu (x)", "r = Relu (x) a = my.domain.Twist (r)").replace(
            "main",
            """<
        ir_version: 10, opset_import: ["" : 17, "my.domain" : 1]> main""",
            1,
        )
    )

    def copy(_: Case, node: ir.Node, context: Context) -> bool:
        case = Case(op("Twist", "my.domain"))
        return context.attempt((node,), lambda: _insert(case, node, context))

    assert run(Brings(CASES["an op of the opset"], copy), CASES["an op of the opset"], model) == ""
    assert [node.op_type for node in model.graph][:2] == ["Twist", "Twist"]


def test_a_graph_cannot_come_in_as_an_attribute() -> None:
    def door(_: Case, node: ir.Node, context: Context) -> bool:
        attribute = ir.AttrGraph("body", ir.Graph([], [], nodes=[], name="body"))
        return context.attempt((node,), lambda: context.edit.set_attribute(node, attribute))

    case = CASES["an op of the opset"]
    assert "body holds a graph: build a new node with it" in run(Brings(case, door), case, parse(TEXT))


def test_a_node_that_moves_to_where_it_is_another_op_is_checked() -> None:
    """From a function of another opset."""
    model = parse("""<ir_version: 10, opset_import: ["" : 17, "local" : 1]>
        main (float[2] x) => (float[2] y) { a = Relu (x) y = local.f (a) }
        <domain: "local", opset_import: ["" : 20]> f (p) => (q) { r = Gelu (p) q = Relu (r) }""")

    def door(_: Case, node: ir.Node, context: Context) -> bool:
        (function,) = context.model.functions.values()
        gelu = function.graph[0]
        if gelu.op_type != "Gelu" or scope.of(scope.graph_of(node)).function is not None:
            return False
        return context.attempt((node,), lambda: context.edit.move_before(gelu, node))

    case = CASES["an op of the opset"]
    before = to_bytes(model)
    assert "opset 17 has no Gelu" in run(Brings(case, door), case, model)
    assert to_bytes(model) == before
