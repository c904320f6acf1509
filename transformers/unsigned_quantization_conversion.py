"""The kernels of x86 processors multiply unsigned by signed integers; activations may be shifted to be unsigned."""

from __future__ import annotations

import platform
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, need, plain_attributes, users
from ortopt.options import Target, TransformerLevel
from ortopt.patterns.quantization import has_one_scale, is_dequantizer, scaling
from ortopt.patterns.quantized_kernels import QUANTIZERS
from ortopt.rule import RewriteRule
from ortopt.semantics.op_traits import PERMUTING, SELECTING

SHIFT = 128
MOVING = (PERMUTING | SELECTING | {"MaxPool"}) - {"Split"}
X86 = frozenset({"AMD64", "i386", "i686", "x86_64"})


class Found(NamedTuple):
    """The nodes in topological order: what quantizes, what moves the integers, what dequantizes them."""

    nodes: tuple[ir.Node, ...]

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """What is dequantized."""
        return tuple(node.outputs[0] for node in self.nodes if is_dequantizer(node))


class UnsignedQuantizationConversion(RewriteRule[Found]):
    """``Dequantize(Quantize(x))`` by int8 → by uint8, with zero points that are 128 more.

    Exact: the same steps have other names. With ``--native`` on x86 processors only, whose kernels for two signed
    operands are several times slower. Integers may be moved between the two, where nobody else sees them.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = QUANTIZERS
    looks_downstream = True
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Found:
        """Integers of 8 bits with a sign, all of which are dequantized again."""
        _check_machine(root)
        _check_shiftable(root)
        nodes: dict[ir.Node, None] = {root: None}
        pending = [root]
        while pending:
            value = pending.pop().outputs[0]
            need(not value.is_graph_output(), "the integers are a result of the model", value)
            for user in users(value):
                if user in nodes:
                    continue
                need(user.graph is root.graph, "a subgraph uses the integers", value)
                need(user.inputs[0] is value, "the integers are used as something else", user)
                nodes[user] = None
                if is_dequantizer(user):
                    _check_shiftable(user)
                    continue
                if user.domain or user.op_type not in MOVING:
                    raise Refusal("the integers are not only moved and dequantized", user)
                plain_attributes(user)
                pending.append(user)
        need(len(nodes) > 1, "nobody dequantizes the integers", root)
        return Found(tuple(sorted(nodes, key=list(root.graph or ()).index)))

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build all of them anew, for unsigned integers."""
        shifted: dict[ir.Value, ir.Value] = {}
        for node in found.nodes:
            first, *others = node.inputs
            assert first is not None
            if node is found.nodes[0] or is_dequantizer(node):
                zero = np.asarray(scaling(node).zero_point + SHIFT, np.uint8)
                others = [node.inputs[1], constant(zero.reshape(_shape_of_scale(node)))]
            kept = [item for name, item in node.attributes.items() if name != "output_dtype"]
            new = ir.Node(node.domain, node.op_type, [shifted.get(first, first), *others], kept)
            shifted[node.outputs[0]] = new.outputs[0]
        return {value: shifted[value] for value in found.replaced}


def _check_machine(root: ir.Node) -> None:
    options = scope.of(scope.graph_of(root)).options
    need(options.native, "that is faster on some processors only, and --native is not given", root)
    need(platform.machine() in X86, "this processor has kernels for signed integers", root)


def _check_shiftable(node: ir.Node) -> None:
    plain_attributes(node)
    need(has_one_scale(node), "there are several scales", node)
    need(scaling(node).integers == ir.DataType.INT8, "the integers are not of 8 bits with a sign", node)


def _shape_of_scale(node: ir.Node) -> tuple[int, ...]:
    scale = node.inputs[1]
    assert scale is not None
    assert scale.shape is not None
    return tuple(int(dim) for dim in scale.shape if isinstance(dim, int))
