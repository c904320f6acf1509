"""Quantized kernels want a DequantizeLinear before each operand, which nothing else reads.

Both passes are off by default: they add nodes, and ONNX Runtime does the same when it loads a model.
"""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import Editor, constant
from ortopt.graph.match import FLOAT, FLOAT16, dtype, inputs, is_constant, need, scalar, tensor_of, users
from ortopt.onnx_ir_internals import use_count
from ortopt.options import TransformerLevel
from ortopt.patterns.quantization import dequantizer, has_one_scale, is_dequantizer, is_quantized
from ortopt.rule import Match, RewriteRule
from ortopt.transformer import Context, GraphTransformer

INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)


class EnsureUniqueDq(GraphTransformer):
    """``a(DequantizeLinear(q))``, ``b(the same)`` → ``a(DequantizeLinear(q))``, ``b(DequantizeLinear(q))``.

    It is off by default, because it adds nodes, and because ONNX Runtime does the same when it loads a model. Integers,
    scales and zero points stay shared. An output of the graph keeps its DequantizeLinear. Level 1 joins the copies
    again, so another run gives the same file.
    """

    levels = (TransformerLevel.LEVEL3,)
    apply_once = True
    needs = ("DequantizeLinear", "com.microsoft::DequantizeLinear")
    enabled = False
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Give each use but the first a DequantizeLinear of its own; each use, if there is a graph output."""
        if graph is context.model.graph:
            context.edit.forget_names()  # level 1 has joined those of an earlier run: these get the same names
        changed = False
        for node, behind in itertools.pairwise(
            context.cancellation.checked(tuple(context.cancellation.checked(graph)))
        ):  # the last one has no user
            if not is_dequantizer(node):
                continue
            result = node.outputs[0]
            if use_count(result) + result.is_graph_output() < 2:
                context.refuse(node, "it has one user")
                continue
            changed |= context.attempt([node], partial(_multiply, node, behind, context.edit))
        return changed


class WhereDummyDq(RewriteRule[Match]):
    """``Quantize(Where(c, DequantizeLinear(q), number))`` → the number, too, comes from a DequantizeLinear.

    The result is exact: the number is (1 - 0) * number if it is positive, (0 - 1) * -number if it is negative, and (0 -
    0) * 1 if it is zero; products with 1 and -1 do not round. It is off by default, because it adds a node, and because
    ONNX Runtime does the same when it loads a model.
    """

    enabled = False
    after = ("constant_folding", "qdq_propagation")
    roots = ("Where",)

    def match(self, root: ir.Node) -> Match:
        """One operand dequantized, the other one number, the result quantized to integers of the same type."""
        _, *operands = inputs(root, 3)
        constants = [position for position, value in enumerate(operands) if is_constant(value)]
        need(len(constants) == 1, "not exactly one operand is a constant", root)
        (index,) = constants
        dequantize = dequantizer(operands[1 - index])
        need(dequantize.domain == "", "the DequantizeLinear is not that of ai.onnx", dequantize)
        need(has_one_scale(dequantize), "there are several scales", dequantize)
        integers = dtype(inputs(dequantize, 1)[0])
        need(integers in INTEGERS, "no integers of 8 or 16 bits", dequantize)
        number = scalar(operands[index])
        floats = dtype(operands[index])
        need(floats in (FLOAT, FLOAT16), "the numbers are neither float32 nor float16", root)
        need(dtype(inputs(dequantize, 2)[1]) == floats, "numbers and scales are of different types", dequantize)
        need(bool(np.isfinite(number)), "the number is not finite", root)
        need(number != 0 or not np.signbit(number), "no integer becomes a negative zero", root)
        least = np.finfo(floats.numpy()).smallest_normal
        need(number == 0 or abs(number) >= least, "the number is subnormal: processors may take it for zero", root)
        result = root.outputs[0]
        need(is_quantized(result), "the result is not quantized", root)
        alike = all(user.outputs[0].dtype == integers for user in users(result))
        need(alike, "the quantized types differ", root)
        return Match((root,), lambda: _with_dequantizer(root, index + 1, number, integers))


def _with_dequantizer(where: ir.Node, position: int, number: float, integers: ir.DataType) -> ir.Node:
    """The Where with a DequantizeLinear of the number at a place of its operands."""
    tensor = tensor_of(inputs(where, 3)[position])
    code = constant(np.full(tensor.shape.numpy(), int(number > 0)), integers)
    scale = constant(np.array(abs(number) or 1.0), tensor.dtype)
    zero_point = constant(np.array(int(number < 0)), integers)
    operands = list(where.inputs)
    operands[position] = ir.Node("", "DequantizeLinear", [code, scale, zero_point]).outputs[0]
    return ir.Node("", "Where", operands)


def _multiply(node: ir.Node, behind: ir.Node, edit: Editor) -> list[ir.Node]:
    """Give uses of a node copies of their own, in front of the node that follows; returns the copies."""
    result = node.outputs[0]
    uses = tuple(result.uses())
    copies = []
    for use in uses if result.is_graph_output() else uses[1:]:
        own = ops.copied(node, node.inputs)
        edit.insert([own], before=behind, origin=[node])
        edit.set_input(use.node, use.idx, own.outputs[0])
        copies.append(own)
    return copies
