"""Nodes along axes are written as each opset wants them, and read back."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ortopt import ops
from ortopt.framework.workspace import Workspace
from ortopt.graph.match import Refusal, attribute
from ortopt.options import Options
from ortopt.semantics.opset_changes import AXES_ARE_AN_INPUT_FROM
from ortopt.testing import parse


@pytest.mark.parametrize("version", [11, 12, 13, 17, 18])
@pytest.mark.parametrize("op", ["Squeeze", "Unsqueeze", "ReduceSum", "ReduceMax"])
def test_as_the_opset_wants_them(op: str, version: int) -> None:
    flags = {"keepdims": 0} if op.startswith("Reduce") else {}
    node = ops.node_along(op, ir.Value(name="x"), (1, -1), version, flags)
    by_input = version >= AXES_ARE_AN_INPUT_FROM[op]
    schema = onnx.defs.get_schema(op, version)
    assert by_input == ("axes" not in schema.attributes)
    assert set(node.attributes) <= set(schema.attributes)
    assert len(node.inputs) == (2 if by_input else 1)
    if by_input:
        (axes,) = node.inputs[1:]
        assert axes is not None and axes.const_value is not None
        assert axes.const_value.dtype == ir.DataType.INT64
        assert axes.const_value.numpy().tolist() == [1, -1]
    else:
        assert tuple(node.attributes["axes"].as_ints()) == (1, -1)
    assert attribute(node, "keepdims", 1) == (0 if flags else 1)


def test_values() -> None:
    x = ir.Value(name="x")
    for value, op in ((ops.squeezed(x, [0], 13), "Squeeze"), (ops.unsqueezed(x, range(2), 11), "Unsqueeze")):
        node = value.producer()
        assert node is not None and node.op_type == op and node.inputs[0] is x


@pytest.mark.parametrize(
    ("text", "opset", "axes"),
    [
        ("y = Squeeze <axes = [1]> (x)", 11, (1,)),
        ("y = Squeeze (x)", 11, ()),
        ("y = Squeeze (x, at)", 13, (1,)),
        ("y = Squeeze (x)", 13, ()),
        ("y = ReduceSum (x, at)", 13, (1,)),
        ("y = ReduceMax <axes = [-1, 0]> (x)", 17, (-1, 0)),
        ("y = ReduceMax (x, at)", 18, (1,)),
        ("y = ReduceMax (x, where)", 18, None),
    ],
)
def test_read(text: str, opset: int, axes: tuple[int, ...] | None) -> None:
    body = f"main (float[2,1,3] x, int64[1] where) => (float[?,?] y) <int64[1] at = {{1}}> {{ {text} }}"
    workspace = Workspace(parse(body, opset), Options())
    (node,) = workspace.model.graph
    if axes is None:
        with pytest.raises(Refusal):
            _ = ops.Axes(node).stated_axes
    else:
        assert ops.Axes(node).stated_axes == axes
