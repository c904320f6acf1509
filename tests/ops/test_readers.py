"""Readers tell what the specification says of a node: defaults, forms of opsets, axes from the end."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest

from ortopt import ops
from ortopt.framework.workspace import Workspace
from ortopt.graph.match import Refusal
from ortopt.options import Options
from ortopt.testing import parse

CONSTANTS = "<int64[1] one = {1}, int64[2] pair = {-1, 0}, int64[4] pads = {1, 2, 3, 4}, int64[2] named = {-1, 1}>"


def node_of(text: str, opset: int = 18) -> ir.Node:
    """The one node of a graph with an image x, weights w and v, matrices m and s, indices at, and lists."""
    images = "float[1,4,9,9] x, float[8,4,3,3] w, float[8,1,3,3] v"
    inputs = f"{images}, float[4,5] m, float[5,5] s, int64[2,3] at, int64[1] unknown"
    workspace = Workspace(parse(f"main ({inputs}) => (y) {CONSTANTS} {{ {text} }}", opset), Options())
    (node,) = workspace.model.graph
    return node


@pytest.mark.parametrize(
    ("text", "opset", "read", "expected"),
    [
        ("y = Transpose (m)", 18, lambda n: ops.Transpose(n).order, (1, 0)),
        ("y = Transpose <perm = [0, 2, 3, 1]> (x)", 18, lambda n: ops.Transpose(n).order, (0, 2, 3, 1)),
        ("y = Transpose <perm = [0, 1]> (x)", 18, lambda n: ops.Transpose(n).order, "it is no permutation"),
        ("y = Softmax (m)", 13, lambda n: (ops.Softmax(n).axis, ops.Softmax(n).flattens), (1, False)),
        ("y = Softmax (x)", 11, lambda n: (ops.Softmax(n).axis, ops.Softmax(n).flattens), (1, True)),
        ("y = Softmax <axis = -4> (x)", 11, lambda n: ops.Softmax(n).axis, 0),
        ("y = Softmax <axis = 4> (x)", 13, lambda n: ops.Softmax(n).axis, "the axis is out of range"),
        ("y = Gather <axis = -1> (x, at)", 18, lambda n: ops.Gather(n).axis, 3),
        ("y = Gather <axis = -1> (x, at)", 18, lambda n: ops.Gather(n).stated_axis, -1),
        ("y = Concat <axis = -2> (x, x)", 18, lambda n: ops.Concat(n).axis, 2),
        ("y = OneHot (at, one, one)", 18, lambda n: ops.OneAxis(n).axis, 2),
        ("y = Flatten (x)", 18, lambda n: ops.Flatten(n).axis, 1),
        ("y = Flatten <axis = 4> (x)", 18, lambda n: ops.Flatten(n).axis, 4),
        ("y = Flatten <axis = -1> (x)", 18, lambda n: ops.Flatten(n).axis, 3),
        ("y = Flatten <axis = 5> (x)", 18, lambda n: ops.Flatten(n).axis, "the axis is out of range"),
        ("y = SplitToSequence (x)", 18, lambda n: ops.SplitToSequence(n).keeps_axis, True),
        ("y = ReduceMax (x)", 18, lambda n: (ops.Reduce(n).axes, ops.Reduce(n).keeps_axes), ((0, 1, 2, 3), True)),
        ("y = ReduceMax <noop_with_empty_axes = 1> (x)", 18, lambda n: ops.Reduce(n).axes, ()),
        ("y = ReduceMax <axes = [-1], keepdims = 0> (x)", 13, lambda n: ops.Reduce(n).axes, (3,)),
        ("y = ReduceMax <axes = [-1], keepdims = 0> (x)", 13, lambda n: ops.Reduce(n).keeps_axes, False),
        ("y = ReduceMax <axes = [-1], keepdims = 2> (x)", 13, lambda n: ops.Reduce(n).keeps_axes, False),
        ("y = ReduceSum <noop_with_empty_axes = 2> (x)", 13, lambda n: ops.Reduce(n).does_nothing, False),
        ("y = ReduceSum (x, pair)", 13, lambda n: ops.Reduce(n).axes, (0, 3)),
        ("y = ReduceSum (x, unknown)", 13, lambda n: ops.Reduce(n).axes, "the axes are not known"),
        ("y = ReduceMax <axes = [4]> (x)", 13, lambda n: ops.Reduce(n).axes, "an axis is out of range"),
        ("y = ArgMax <axis = -1> (x)", 18, lambda n: ops.Reduce(n).axes, (3,)),
        ("y = Squeeze (x)", 18, lambda n: ops.Squeeze(n).axes, "it names no axes"),
        ("y = Squeeze <axes = [-4]> (x)", 11, lambda n: ops.Squeeze(n).axes, (0,)),
        ("y = Unsqueeze (m, pair)", 18, lambda n: ops.Unsqueeze(n).axes, (0, 3)),
        ("y = Unsqueeze <axes = [-1]> (m)", 11, lambda n: ops.Unsqueeze(n).axes, (2,)),
        ("y = Pad (m, pads)", 18, lambda n: ops.Pad(n).amounts, (1, 2, 3, 4)),
        ("y = Pad (x, pads, , named)", 18, lambda n: ops.Pad(n).amounts, (0, 2, 0, 1, 0, 4, 0, 3)),
        ("y = Pad (x, pads, , pair)", 18, lambda n: ops.Pad(n).amounts, (2, 0, 0, 1, 4, 0, 0, 3)),
        ("y = Pad <pads = [0, 1, 2, 3]> (m)", 10, lambda n: ops.Pad(n).amounts, (0, 1, 2, 3)),
        ("y = Pad (m, unknown)", 18, lambda n: ops.Pad(n).amounts, "the paddings are not known"),
        ("y = Slice (x, one, one)", 18, lambda n: ops.Slice(n).cuts, ((0, 1, 1, 1),)),
        ("y = Slice <starts = [0], ends = [9]> (x)", 9, lambda n: ops.Slice(n).bounds, ((0, 0, 9, 1),)),
        ("y = Slice <starts = [0], ends = [9]> (x)", 9, lambda n: ops.Slice(n).cuts, ()),
        ("y = Slice <axes = [-1], starts = [1], ends = [3]> (x)", 9, lambda n: ops.Slice(n).block, (3, 1, 3)),
        ("y = Gemm (s, s)", 18, lambda n: (ops.Gemm(n).transposes_a, ops.Gemm(n).beta), (False, 1.0)),
        ("y = Gemm <transB = 1> (s, s)", 18, lambda n: (ops.Gemm(n).transposes_b, ops.Gemm(n).alpha), (True, 1.0)),
        ("y = MatMul (s, s)", 18, lambda n: (ops.MatMul(n).transposes_b, ops.MatMul(n).moves_batches), (False, False)),
    ],
)  # fmt: skip
def test_read(text: str, opset: int, read: Callable[[ir.Node], object], expected: object) -> None:
    node = node_of(text, opset)
    if isinstance(expected, str):
        with pytest.raises(Refusal, match=expected):
            read(node)
    else:
        assert read(node) == expected


def test_a_convolution_without_attributes() -> None:
    conv = ops.Conv(node_of("y = Conv (x, w)"))
    assert (conv.kernel, conv.strides, conv.dilations, conv.pads) == ((3, 3), (1, 1), (1, 1), (0, 0, 0, 0))
    assert conv.is_plain and not conv.is_padded and conv.group == 1 and conv.spatial == 2


@pytest.mark.parametrize(
    ("attributes", "plain", "padded"),
    [
        ("strides = [1, 1], dilations = [1, 1]", True, False),
        ("strides = [1, 2]", False, False),
        ("dilations = [2, 1]", False, False),
        ("group = 4", False, False),
        ("pads = [0, 0, 0, 1]", True, True),
        ('auto_pad = "VALID"', True, False),
        ('auto_pad = "SAME_LOWER"', True, True),
    ],
)
def test_a_convolution(attributes: str, plain: bool, padded: bool) -> None:
    weight = "v" if "group" in attributes else "w"
    conv = ops.Conv(node_of(f"y = Conv <{attributes}> (x, {weight})"))
    assert (conv.is_plain, conv.is_padded) == (plain, padded)
    if "auto_pad" in attributes:
        with pytest.raises(Refusal, match="not written out"):
            _ = conv.pads


def test_pooling() -> None:
    pool = ops.Pool(node_of("y = AveragePool <kernel_shape = [3, 2], ceil_mode = 1> (x)"))
    assert (pool.kernel, pool.strides, pool.pads) == ((3, 2), (1, 1), (0, 0, 0, 0))
    assert pool.rounds_up and not pool.counts_padding


@pytest.mark.parametrize("op", ["ArgMax", "Flatten", "Gather", "OneHot", "QuantizeLinear", "Split", "TopK"])
@pytest.mark.parametrize("version", [13, 18])
def test_the_default_axis_is_that_of_the_schema(op: str, version: int) -> None:
    default = onnx.defs.get_schema(op, version).attributes["axis"].default_value
    assert onnx.helper.get_attribute_value(default) == ops.OneAxis(ir.node(op, [ir.Value(name="x")])).stated_axis


def test_copies() -> None:
    node = node_of("y = Conv <strides = [2, 2], group = 1, pads = [1, 1, 1, 1]> (x, w)")
    copy = ops.copied(node, node.inputs, pads=(0, 0, 0, 0), group=None, auto_pad="NOTSET")
    assert {name: entry.value for name, entry in copy.attributes.items()} == {
        "strides": (2, 2),
        "pads": (0, 0, 0, 0),
        "auto_pad": "NOTSET",
    }
    assert list(copy.inputs) == list(node.inputs) and copy.op_type == "Conv"
    assert ops.Conv(node).pads == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("opset", "call", "sizes"),
    [
        (11, "a, b = Split <axis = 1, split = [2, 4]> (x)", (2, 4)),
        (11, "a, b = Split <axis = 1> (x)", (3, 3)),
        (13, "a, b = Split <axis = 1> (x, s)", (2, 4)),
        (18, "a, b, c, d = Split <axis = 1, num_outputs = 4> (x)", (2, 2, 2, 0)),
    ],
)
def test_sizes_of_a_split(opset: int, call: str, sizes: tuple[int, ...]) -> None:
    constant = "<int64[2] s = {2, 4}>" if "s)" in call else ""
    text = f"main (float[N,6] x) => (float[] y) {constant} {{ {call} y = Neg (a) }}"
    workspace = Workspace(parse(text, opset), Options())
    split, _ = workspace.model.graph
    assert ops.Split(split).sizes_of(6) == sizes
