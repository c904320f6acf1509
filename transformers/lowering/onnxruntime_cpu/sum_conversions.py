"""Sums for which ONNX Runtime joins no nodes when it loads a model, where the joined kernel is slower."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import preferred
from ortopt.graph.match import (
    FLOAT,
    FLOAT16,
    dims,
    dtype,
    inputs,
    is_op,
    need,
    need_float32,
    need_present,
    only_user,
    operand_constant,
    rank,
    same_dim,
)
from ortopt.graph.symbolic import product
from ortopt.patterns.quantization import dequantizer, is_quantizer
from ortopt.patterns.quantized_kernels import BYTES
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.lowering.onnxruntime_cpu._rules import CpuRule


class BiasSumConversion(CpuRule[Match]):
    """``Gelu(Add(x, bias))`` → ``Gelu(Sum(x, bias))``, which ONNX Runtime does not join.

    ONNX Runtime joins a bias with the Gelu behind it when it loads a model, which is slower on one kind of processor.

    Its kernel of BiasGelu takes longer than Add and Gelu on a Xeon, and as long on an EPYC. It knows the bias by its
    Add alone: a Sum computes the same, at the same speed.
    """

    roots = ("Add",)
    opsets = (8, NEWEST_OPSET)  # before, Sum did not broadcast
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """A bias, before a Gelu that nothing else shares it with."""
        total = root.outputs[0]
        user = only_user(total)
        need_present(is_op(user, "Gelu") or is_op(user, "Gelu", domain=MICROSOFT), "no Gelu comes after", user)
        bias, x = operand_constant(root)
        need_float32(total)
        need(rank(x) > 1 and dims(bias) == dims(x)[-1:], "it is no bias of the last dimension", bias)
        return Match((root,), lambda: ir.node("Sum", [x, bias]))


class ResidualSumConversion(CpuRule[Match]):
    """``LayerNormalization(Add(x, skip))`` → ``LayerNormalization(Sum(x, skip))``, in three dimensions.

    ONNX Runtime joins a residual Add with the normalization behind it when it loads a model, which is slower.

    On the CPU its kernel of SkipLayerNormalization takes longer than Add and LayerNormalization, which are vectorized.
    It knows the residual connection by its Add alone: a Sum computes the same, at the same speed. Halves it converts to
    single precision at load, and joins then.

    This is done only if ONNX Runtime would join the two: the shapes are equal, and nothing else uses the sum.
    """

    roots = ("Add",)
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """A sum that ONNX Runtime would take for a residual connection."""
        total = root.outputs[0]
        terms = inputs(root, 2)
        normalization = only_user(total, "LayerNormalization")
        need(normalization.inputs[0] is total, "it is a parameter of the normalization", root)
        need(dtype(total) in (FLOAT, FLOAT16), "ONNX Runtime joins no others", root)
        shapes = [dims(term, 3) for term in terms]
        need(all(map(same_dim, *shapes)), "its operands differ in shape", root)
        return Match((root,), lambda: ir.node("Sum", list(terms)))


APART = "apart from its quantization"
"""The variant of both ops in the table of costs."""


class UnitSumConversion(CpuRule[Match]):
    """``Quantize(Softmax(Dequantize(q)))`` → ``Quantize(Softmax(Sum(Dequantize(q))))``, which stays in floats.

    ONNX Runtime makes slow kernels of integers of two kinds of quantized units when it loads a model.

    Its QLinearSoftmax looks each exponential up and divides one element after the other, and its QLinearAveragePool
    turns integers into floats and back for itself: both take longer than the ops on floats. It knows a unit by its
    DequantizeLinear and QuantizeLinear, right beside the op. A Sum of one operand between them is a copy.

    So for AveragePool, whose result is the smaller: it goes through the Sum. The result is exact.
    """

    roots = ("AveragePool", "Softmax")
    looks_downstream = True
    weighs = tuple(Form("", op, APART) for op in roots)

    def match(self, root: ir.Node) -> Match:
        """An op between 8-bit integers of one type."""
        (numbers,) = inputs(root, 1)
        dequantize = dequantizer(numbers)
        quantize = only_user(root.outputs[0])
        need_present(is_quantizer(quantize), "no QuantizeLinear comes after", quantize)
        need_float32(numbers)
        before, after = dtype(inputs(dequantize, 1)[0]), dtype(quantize.outputs[0])
        need(before in BYTES and before == after, "ONNX Runtime has no kernel of these integers", root)
        preferred(root, [Form("", root.op_type, APART)], {"elements": product(dims(numbers))})
        if root.op_type == "AveragePool":
            return Match((root,), lambda: ir.node("Sum", ops.copied(root, root.inputs).outputs))
        return Match((root,), lambda: ops.copied(root, ir.node("Sum", [numbers]).outputs))
