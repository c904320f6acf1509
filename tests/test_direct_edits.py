"""Edits past the editor: found after a return, an exception, a stop; all is as it was, or the run fails by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
import pytest

from ortopt import CancellationToken, GraphTransformerManager, OptimizationCancelled, TransformerError, optimize
from ortopt.framework.direct_edits import REMEDY, Guard
from ortopt.graph import scope
from ortopt.graph.match import Refusal
from ortopt.rule import Forwarded
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from ortopt.transformer import Context, GraphTransformer
from tests.rules import Swap, applied

MODEL = """main (float[N] x, bool c) => (float[N] y, float[N] z) <float[1] w = {2}> {
    a = Relu (x) b = Abs (a) d = LeakyRelu <alpha = 0.5> (b) y = Mul (d, w)
    z = If (c) < then_branch = t () => (float[N] p) { p = Neg (b) },
                 else_branch = e () => (float[N] q) { r = Exp (b) q = Relu (r) } > }"""

Edit = Callable[[ir.Graph, Context], None]


def node_of(graph: ir.Graph, op: str) -> ir.Node:
    return next(node for node in graph if node.op_type == op)


def takes_out(graph: ir.Graph, context: Context) -> None:
    node = node_of(graph, "Relu")
    assert node.inputs[0] is not None
    node.outputs[0].replace_all_uses_with(node.inputs[0])
    graph.remove(node, safe=True)


def puts_in(graph: ir.Graph, context: Context) -> None:
    graph.append(ir.node("Abs", [graph.inputs[0]]))


def rewires(graph: ir.Graph, context: Context) -> None:
    node_of(graph, "Abs").replace_input_with(0, graph.inputs[0])


def another_op(graph: ir.Graph, context: Context) -> None:
    node_of(graph, "Abs").op_type = "Neg"


def another_attribute(graph: ir.Graph, context: Context) -> None:
    node_of(graph, "LeakyRelu").attributes["alpha"] = ir.AttrFloat32("alpha", 0.25)


def another_name(graph: ir.Graph, context: Context) -> None:
    node_of(graph, "Abs").outputs[0].name = "other"


def another_order(graph: ir.Graph, context: Context) -> None:
    node = node_of(graph, "Mul")
    graph.remove(node)
    graph.append(node)


def another_constant(graph: ir.Graph, context: Context) -> None:
    graph.initializers["w"].const_value = ir.tensor([3.0], name="w")


def another_graph(graph: ir.Graph, context: Context) -> None:
    branch = node_of(graph, "If").attributes["else_branch"].as_graph()
    node_of(branch, "Relu").replace_input_with(0, graph[1].outputs[0])


def another_output(graph: ir.Graph, context: Context) -> None:
    graph.outputs[1] = graph[2].outputs[0]


def another_shape(graph: ir.Graph, context: Context) -> None:
    graph[0].outputs[0].shape = ir.Shape([3])


def another_type(graph: ir.Graph, context: Context) -> None:
    graph[0].outputs[0].type = ir.TensorType(ir.DataType.INT32)


def another_type_in_place(graph: ir.Graph, context: Context) -> None:
    graph[0].outputs[0].dtype = ir.DataType.INT32


def another_input(graph: ir.Graph, context: Context) -> None:
    graph.inputs[0].name = "other"


def another_shape_of_an_input(graph: ir.Graph, context: Context) -> None:
    graph.inputs[0].shape = ir.Shape([3])


def another_overload(graph: ir.Graph, context: Context) -> None:
    node_of(graph, "Abs").overload = "other"


def another_opset(graph: ir.Graph, context: Context) -> None:
    graph.opset_imports[""] = 11


def another_function(graph: ir.Graph, context: Context) -> None:
    scope.of(graph).model.functions["local", "other", ""] = function("other")


def function(name: str) -> ir.Function:
    operand = ir.Value(name="p")
    node = ir.node("Neg", [operand])
    body = ir.Graph([operand], node.outputs, nodes=[node], opset_imports={"": 17})
    return ir.Function("local", name, "", graph=body, attributes=[])


EDITS: dict[str, Edit] = {
    edit.__name__: edit
    for edit in (
        takes_out,
        puts_in,
        rewires,
        another_op,
        another_attribute,
        another_name,
        another_order,
        another_constant,
        another_graph,
        another_output,
        another_shape,
        another_type,
        another_type_in_place,
        another_input,
        another_shape_of_an_input,
        another_overload,
        another_opset,
        another_function,
    )
}


def by_the_editor(graph: ir.Graph, context: Context) -> None:
    """An edit as it should be, of another node."""
    node = node_of(graph, "Mul")
    assert context.attempt((node,), lambda: context.edit.set_attribute(node, ir.AttrInt64("seen", 1)))


class Edits(GraphTransformer):
    """Edit past the editor, before or after an edit as it should be, and end in some way."""

    apply_once: ClassVar[bool] = True
    offers_rewrites: ClassVar[bool] = True

    def __init__(self, edit: Edit, end: str, beside: str = "") -> None:
        super().__init__()
        self.edit, self.end, self.beside = edit, end, beside

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        if graph is not context.model.graph:
            return False
        if self.beside == "before":
            by_the_editor(graph, context)
        self.edit(graph, context)
        if self.beside == "after":
            by_the_editor(graph, context)
        if self.end == "raises":
            raise ValueError("no luck")
        if self.end == "is stopped":
            context.cancellation.cancel()
            context.cancellation.check()
        return self.end == "returns True"


ENDS = ("raises", "returns True", "returns False", "is stopped")


def skipping(
    *transformers: GraphTransformer, model: str | ir.Model = MODEL
) -> tuple[GraphTransformerManager, ir.Model]:
    """A run that leaves out who fails."""
    return applied(model, *transformers, on_error="skip", cancellation=CancellationToken())


@pytest.mark.parametrize("beside", ["", "before", "after"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("edit", EDITS)
def test_the_run_ends_with_the_name_of_who_did_it(edit: str, end: str, beside: str) -> None:
    with pytest.raises(TransformerError) as caught:
        skipping(Edits(EDITS[edit], end, beside))
    assert (caught.value.transformer, caught.value.corrupted) == ("edits", True)
    assert REMEDY in caught.value.reason
    assert ("no luck" in caught.value.reason) is (end == "raises")


@pytest.mark.parametrize("end", ["raises", "returns True", "returns False"])
@pytest.mark.parametrize("edit", EDITS)
def test_no_other_pass_is_blamed_and_the_result_is_that_without_it(edit: str, end: str) -> None:
    result = optimize(parse(MODEL), level=1, transformers=[Edits(EDITS[edit], end)], strict=False, verify=False)
    assert [failure.transformer for failure in result.summary.failures] == ["edits"]
    assert to_bytes(result.model) == to_bytes(optimize(parse(MODEL), level=1, verify=False).model)


@pytest.mark.parametrize("edit", EDITS)
def test_who_is_stopped_after_it_leaves_nothing_of_it(edit: str) -> None:
    transformer = Edits(EDITS[edit], "is stopped")
    with pytest.raises(OptimizationCancelled) as caught:
        optimize(parse(MODEL), level=1, transformers=[transformer], strict=False, verify=False)
    assert caught.value.result is not None
    assert to_bytes(caught.value.result.model) == to_bytes(optimize(parse(MODEL), level=0, verify=False).model)


def test_who_raises_and_has_edited_through_the_editor_alone_is_left_out() -> None:
    def nothing(graph: ir.Graph, context: Context) -> None:
        pass

    manager, model = skipping(Edits(nothing, "raises", "before"))
    assert [(failure.transformer, failure.corrupted) for failure in manager.failures] == [("edits", False)]
    assert to_bytes(model) == to_bytes(parse(MODEL))


class RuleThatEdits(Swap):
    """Edit past the editor while an Abs is matched."""

    roots = ("Abs",)
    apply_once = False

    def __init__(self, edit: Edit, end: str) -> None:
        super().__init__()
        self.edit, self.end, self.done = edit, end, False

    def match(self, root: ir.Node) -> Forwarded:
        graph = root.graph
        assert isinstance(graph, ir.Graph)
        if not self.done:
            self.done = True
            self.edit(graph, None)  # type: ignore[arg-type]
        if self.end == "raises":
            raise ValueError("no luck")
        raise Refusal("it stays", root)


class Innocent(Swap):
    """Exp becomes Sigmoid."""

    roots = ("Exp",)
    becomes = "Sigmoid"


@pytest.mark.parametrize("end", ["raises", "refuses"])
@pytest.mark.parametrize("edit", EDITS)
def test_rules_are_watched_as_well(edit: str, end: str) -> None:
    with pytest.raises(TransformerError) as caught:
        skipping(RuleThatEdits(EDITS[edit], end))
    assert (caught.value.transformer, caught.value.corrupted) == ("rule_that_edits", True)
    assert REMEDY in caught.value.reason


@pytest.mark.parametrize("edit", EDITS)
def test_of_several_rules_the_one_that_raised_is_blamed_and_else_all_are_named(edit: str) -> None:
    with pytest.raises(TransformerError, match="rule_that_edits failed"):
        skipping(RuleThatEdits(EDITS[edit], "raises"), Innocent())
    with pytest.raises(TransformerError) as caught:
        skipping(RuleThatEdits(EDITS[edit], "refuses"), Innocent())
    assert "one of innocent, rule_that_edits changed" in caught.value.reason


def test_a_pass_of_ours_that_stumbles_over_it_is_not_blamed() -> None:
    """A rule of ortopt's own in the same sweep raises, because of what the caller's rule has done."""

    def breaks(graph: ir.Graph, _: Context) -> None:
        node_of(graph, "Mul").op_type = "Relu"
        node_of(graph, "Relu").resize_inputs(0)

    result = optimize(
        parse(MODEL), level=3, transformers=[RuleThatEdits(breaks, "refuses")], strict=False, verify=False
    )
    assert [failure.transformer for failure in result.summary.failures] == ["rule_that_edits"]
    assert to_bytes(result.model) == to_bytes(optimize(parse(MODEL), level=3, verify=False).model)


def test_only_where_there_are_strangers_the_model_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = Guard.begin

    def begin(guard: Guard, strangers: Any, *arguments: Any) -> None:
        original(guard, strangers, *arguments)
        asked.append(guard._graphs is not None)

    monkeypatch.setattr(Guard, "begin", begin)
    optimize(parse(MODEL), level=3, verify=False)
    assert asked
    assert not any(asked)
    optimize(parse(MODEL), level=3, verify=False, transformers=[Innocent()])
    assert any(asked)


FUNCTIONS = """<ir_version: 10, opset_import: ["" : 17, "local" : 1]>
    main (float[N] x) => (float[N] y) { a = local.twice (x) y = Relu (a) }
    <domain: "local", opset_import: ["" : 17]> twice (p) => (q) { q = Add (p, p) }"""


def functions_go(graph: ir.Graph, context: Context) -> None:
    context.model.functions.clear()


def functions_change(graph: ir.Graph, context: Context) -> None:
    context.model.functions["local", "twice", ""] = function("twice")


def functions_mean_other_opsets(graph: ir.Graph, context: Context) -> None:
    context.model.functions["local", "twice", ""].opset_imports[""] = 11


def the_file_is_older(graph: ir.Graph, context: Context) -> None:
    context.model.ir_version = 3


@pytest.mark.parametrize("end", ["raises", "returns False"])
@pytest.mark.parametrize("edit", [functions_go, functions_change, functions_mean_other_opsets, the_file_is_older])
def test_what_belongs_to_the_model_is_watched_as_well(edit: Edit, end: str) -> None:
    with pytest.raises(TransformerError) as caught:
        skipping(Edits(edit, end), model=FUNCTIONS)
    assert (caught.value.transformer, caught.value.corrupted) == ("edits", True)


class EditsAClone(Edits):
    """The same on a clone."""

    bypasses_editor: ClassVar[bool] = True
    offers_rewrites: ClassVar[bool] = False


@pytest.mark.parametrize("end", ["raises", "returns True", "returns False"])
@pytest.mark.parametrize("kind", [Edits, EditsAClone])
@pytest.mark.parametrize("place", ["initializer", "attribute"])
def test_nobody_writes_into_constants(place: str, kind: type[Edits], end: str) -> None:
    """A clone shares them: what is written there is in the model, whatever becomes of the clone."""
    whole = np.ones(4, np.float32)
    model = parse(
        "main (float[2] x) => (float[2] y) { k = Constant <value_float = 1.0> () a = Add (x, k) y = Neg (a) }"
    )
    tensor = ir.Tensor(whole[1:3], name="k")
    node = model.graph[0]
    if place == "attribute":
        node.attributes.clear()
        node.attributes["value"] = ir.AttrTensor("value", tensor)
    else:
        value = ir.Value(name="w", const_value=tensor, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
        model.graph.register_initializer(value)
        model.graph[1].replace_input_with(1, value)
        model.graph.remove(node, safe=True)

    def writes(graph: ir.Graph, context: Context) -> None:
        constants = [value.const_value for value in graph.initializers.values()]
        constants += [node.attributes["value"].as_tensor() for node in graph if node.op_type == "Constant"]
        for constant in constants:
            assert constant is not None
            constant.numpy()[...] = 7.0

    manager, _ = skipping(kind(writes, end), model=model)
    assert ["read-only" in failure.reason for failure in manager.failures] == [True]
    assert whole.tolist() == [1.0] * 4
    whole[1] = 2.0  # the caller's array is the caller's again
    tensor.numpy()[1] = 3.0
    assert whole.tolist() == [1.0, 2.0, 3.0, 1.0]
