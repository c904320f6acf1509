"""Ops whose kernel on the CPU takes elements one by one, as ops whose kernels take many at a time."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.blocked_layout import ALIGNED
from ortopt.analysis.blocked_values import is_in_blocks
from ortopt.analysis.costs import Form
from ortopt.analysis.kernel_history import ROOT_OF_INFINITY
from ortopt.analysis.kernels import CPU
from ortopt.analysis.magnitudes import need_near
from ortopt.framework.fusions import check_apart, check_faster, is_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    array_of,
    attribute,
    dims,
    inputs,
    is_constant,
    is_never_zero,
    is_op,
    keeps_rank,
    need,
    need_fixed,
    need_float32,
    only_user,
    opset,
    plain_attributes,
    scalar,
)
from ortopt.graph.provenance import NEEDS_KEY
from ortopt.linear.channels import of_channels
from ortopt.linear.folding import Place, layer_alone, node_alone, rebuilt
from ortopt.linear.weights import scaled
from ortopt.options import MEASURED_TARGETS, Numerics, TransformerLevel
from ortopt.patterns.convolutions import elements_of_an_image
from ortopt.patterns.slopes import ROOTS, SlopedRelu, sloped_relu
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import BROADCASTING, BROADCASTING_ONE_WAY
from ortopt.semantics.opset_changes import BROADCASTS_FROM
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import convolved
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule

RANK = 4
POOL = Form("", "AveragePool", "in place of LRN")

LARGEST = 2.0**60
"""The largest scale: what is infinite after it has an infinite square without it."""

SMALLEST = float(np.finfo(np.float32).tiny)


class LrnDecomposition(CpuRule[Match]):
    """``LRN(x)`` → ``x / (AveragePool(alpha · x · x) + bias)^beta`` with a pool that takes channels for depth.

    The CPU's kernel for LRN raises every element to a power, one by one; roots and a pool take many at a time.

    A power of ¾ is two roots, ½ is one, 1 is none. For few elements, more kernels cost more than they save; of a large
    window, the pool adds up more than the kernel for LRN, which adds one channel and takes one away. What is not finite
    stays in its window, as the specification has it: ONNX Runtime's kernel carries it on to all channels that follow.
    """

    targets = MEASURED_TARGETS
    roots = ("LRN",)
    opsets = (7, NEWEST_OPSET)  # before, a number broadcasts by an attribute
    weighs = (POOL,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """An image of enough elements, and a sum that is never 0."""
        check_apart(root)
        (x,) = inputs(root, 1)
        need_float32(x)
        image = dims(x, RANK)[1:]
        need(all(is_never_zero(dim, root) for dim in image), "a pool refuses an image without pixels", x)
        check_faster(root, POOL, image=elements_of_an_image(x, root), window=_numbers(root)[0])
        return Match((root,), lambda: _normalized(x, root))


def _normalized(x: ir.Value, root: ir.Node) -> ir.Node:
    """Build the sums, and divide by their power."""
    size, alpha, power, bias = _numbers(root)
    scaled = ir.node("Mul", [x, constant(alpha, FLOAT)]).outputs[0]
    squares = ir.node("Mul", [scaled, x]).outputs[0]
    sums = ir.node("Add", [_means(squares, size, opset(root)), constant(bias, FLOAT)]).outputs[0]
    if power not in (0.5, 0.75, 1.0):
        return ir.node("Mul", [x, ir.node("Pow", [sums, constant(-power, FLOAT)]).outputs[0]])
    return ir.node("Div", [x, _power(sums, power)])


def _numbers(root: ir.Node) -> tuple[int, float, float, float]:
    """Channels of a window, factor of the squares' mean, power and bias, where ONNX Runtime has a kernel for them.

    Raises:
        Refusal: If a sum might be 0, negative or no number.
    """
    attributes = plain_attributes(root)
    size = attributes["size"].as_int()
    alpha, power, bias = (
        attributes[name].as_float() if name in attributes else default
        for name, default in (("alpha", 0.0001), ("beta", 0.75), ("bias", 1.0))
    )
    need(size > 0 and size % 2 == 1, "ONNX Runtime has no kernel for a window of an even number of channels", root)
    need(all(map(math.isfinite, (alpha, power, bias))) and power > 0, "it divides by no power", root)
    need(alpha <= LARGEST, "what it scales may be infinite before its square is", root)
    need(bias >= SMALLEST and alpha / size >= SMALLEST, "a sum may be 0 or negative", root)
    return size, alpha, power, bias


def _means(squares: ir.Value, size: int, version: int) -> ir.Value:
    """The mean over the window around each channel; beyond the first and the last one are zeros."""
    depth, side = ops.unsqueezed(squares, [1], version), size // 2
    pads = [side, 0, 0, side, 0, 0]
    window: dict[str, int | list[int]] = {"kernel_shape": [size, 1, 1], "pads": pads, "count_include_pad": 1}
    return ops.squeezed(ir.node("AveragePool", [depth], window).outputs[0], [1], version)


def _power(sums: ir.Value, power: float) -> ir.Value:
    """A power that is made of square roots: ½, ¾ or 1."""
    if power == 1.0:
        return sums
    needs = {NEEDS_KEY: ROOT_OF_INFINITY}
    root = ir.node("Sqrt", [sums], metadata_props=needs).outputs[0]
    if power == 0.5:
        return root
    return ir.node("Mul", [root, ir.node("Sqrt", [root], metadata_props=needs).outputs[0]]).outputs[0]


PRODUCTS = Form("", "Mul", "in place of Pow")
LEAST_POWER, LARGEST_POWER = 4, 16
"""Squares and cubes are multiplied by the kernel of Pow itself; beyond, rounding adds up."""


class PowDecomposition(CpuRule[Match]):
    """``Pow(x, n)`` with n from 4 to 16 → squares and products: ``x⁹ = ((x²)²)² · x``.

    The CPU's kernel for Pow computes each element by itself, by logarithms. Hashed attention (YOSO) has such powers.
    """

    targets = MEASURED_TARGETS
    roots = ("Pow",)
    opsets = (BROADCASTS_FROM, NEWEST_OPSET)
    weighs = (PRODUCTS,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A constant whole exponent that does not enlarge the result, and enough elements."""
        x, exponent = inputs(root, 2)
        power = scalar(exponent)
        whole = LEAST_POWER <= power <= LARGEST_POWER and power == int(power)
        need(whole, f"the exponent is not a whole number from {LEAST_POWER} to {LARGEST_POWER}", exponent)
        need(keeps_rank(exponent, x), "the exponent would raise the rank", exponent)
        need_float32(x, MEASURED)
        check_faster(root, PRODUCTS, elements=dims(x))
        return Match((root,), lambda: _multiplied(x, int(power)))


def _multiplied(x: ir.Value, power: int) -> ir.Value:
    """A power by squares: the digits of the exponent say where x is a factor, too."""
    result = x
    for digit in f"{power:b}"[1:]:
        result = ir.node("Mul", [result, result]).outputs[0]
        if digit == "1":
            result = ir.node("Mul", [result, x]).outputs[0]
    return result


MAXIMUM = Form("", "Max", "in place of PRelu")
ANY_SLOPE = Form("", "Min", "in place of PRelu")
IN_BLOCKS = Form("", "Conv", "in place of PRelu in blocks")


class PreluDecomposition(CpuRule[SlopedRelu]):
    """``PRelu(x, A)`` → ``Max(x, A · x)`` for constants A of 0 to 1, else ``Relu(x) + A · Min(x, 0)``, on the CPU.

    The CPU's kernel for a PRelu takes its elements one by one; products, sums and maxima take many at a time. Behind a
    convolution in ONNX Runtime's blocked layout it is ``Relu(x) - A · Relu(-x)``, with a convolution of single channels
    for each product: the image stays in blocks, which it leaves for a PRelu and for a Max. A PRelu that is spelled out
    in more ops than these becomes one of them, too.

    The bits of the first are the same for every x, also for NaN, infinities and zeros of both signs; those of the
    others but for the signs of zeros. For few elements, several kernels cost more than they save.
    """

    roots = ("PRelu", *ROOTS)
    opsets = (9, NEWEST_OPSET)
    lookback = 3
    looks_downstream = True
    weighs = (MAXIMUM, ANY_SLOPE, IN_BLOCKS)

    def match(self, root: ir.Node) -> SlopedRelu:
        """Constant slopes, and enough elements. For a Max slopes are above 0, as 0 times an infinity is NaN."""
        check_apart(root)
        sloped = _of_prelu(root) if is_op(root, "PRelu") else sloped_relu(root)
        need_float32(sloped.x)
        if _stays_in_blocks(sloped):
            _by_channel(sloped)
            return sloped
        is_maximum = _is_maximum(sloped.slope)
        if is_op(root, "PRelu"):
            check_faster(root, MAXIMUM if is_maximum else ANY_SLOPE, image=elements_of_an_image(sloped.x, root))
        else:
            need(len(sloped.nodes) > (2 if is_maximum else 4), "it is in few ops", root)
        return sloped

    def rewrite(self, found: SlopedRelu) -> dict[ir.Value, ir.Value]:
        """The form that pays."""
        (y,) = found.replaced
        slope = constant(found.slope, FLOAT)
        if _stays_in_blocks(found):
            return {y: _of_blocks(found.x, _by_channel(found)).outputs[0]}
        if _is_maximum(found.slope):
            return {y: ir.node("Max", [found.x, ir.node("Mul", [found.x, slope]).outputs[0]]).outputs[0]}
        return {y: _parts(found.x, slope).outputs[0]}

    def numerics_of(self, found: SlopedRelu) -> Numerics:
        """Whether the signs of zeros may be others, or infinities."""
        if found.finite:
            return Numerics.FINITE
        is_prelu = is_op(found.nodes[0], "PRelu")
        exact = is_prelu and _is_maximum(found.slope) and not _stays_in_blocks(found)
        return Numerics.EXACT if exact else Numerics.REORDERED


def _of_prelu(root: ir.Node) -> SlopedRelu:
    x, slope = inputs(root, 2)
    content = array_of(slope)
    need(bool(np.isfinite(content).all()), "a slope is not finite", slope)
    return SlopedRelu((root,), x, content)


def _by_channel(sloped: SlopedRelu) -> np.ndarray:
    (channels,) = need_fixed(dims(sloped.x)[1:2], "the channels are not fixed", sloped.x)
    return of_channels(constant(sloped.slope, FLOAT), channels, RANK)


def _stays_in_blocks(sloped: SlopedRelu) -> bool:
    """Whether it reads an image in blocks, with a slope for each channel at most, and it pays to keep it there."""
    x, own = sloped.x, sloped.slope.shape
    shape = dims(x)
    if len(shape) != RANK or not isinstance(shape[1], int) or shape[1] % ALIGNED or not is_in_blocks(x):
        return False
    one_a_channel = all(dim == 1 for axis, dim in enumerate(reversed(own)) if axis != RANK - 2)
    root = sloped.nodes[-1]
    return one_a_channel and is_faster(root, IN_BLOCKS, image=elements_of_an_image(x, root))


def _of_blocks(x: ir.Value, slopes: np.ndarray) -> ir.Node:
    """What is above 0, and what is below it, with its slope, in convolutions of single channels."""

    def scaled_by(value: ir.Value, factors: np.ndarray) -> ir.Value:
        return convolved(value, factors.astype(np.float32).reshape(-1, 1, 1, 1), None, {"group": len(factors)})

    below = ir.node("Relu", [scaled_by(x, np.full(len(slopes), -1.0))]).outputs[0]
    return ir.node("Add", [scaled_by(below, -slopes), ir.node("Relu", [x]).outputs[0]])


def _is_maximum(slopes: np.ndarray) -> bool:
    return bool(((slopes > 0) & (slopes <= 1)).all())


def _parts(x: ir.Value, slope: ir.Value) -> ir.Node:
    """What is above 0, and what is below it, with its slope."""
    below = ir.node("Min", [x, constant(np.array(0, np.float32))])
    return ir.node("Add", [ir.node("Relu", [x]).outputs[0], ir.node("Mul", [below.outputs[0], slope]).outputs[0]])


SILU = Form(MICROSOFT, "QuickGelu", "with its scale in the layers")
SCALE_OF_THE_OP = 1.702
"""What QuickGelu's attribute is where it is left out."""


class QuickGeluScaleFolding(RewriteRule[Match]):
    """``QuickGelu<alpha>(x·W + b)·V`` → ``QuickGelu<1>(x·(W * alpha) + b * alpha)·(V / alpha)``.

    QuickGELU of a scale is SiLU between two scaled layers, and ONNX Runtime's kernel of SiLU is the faster one.

    ONNX Runtime computes SiLU in one vectorized pass.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = (f"{MICROSOFT}::QuickGelu",)
    looks_downstream = True
    providers = (CPU,)
    produces = ((MICROSOFT, "QuickGelu"),)
    weighs = (SILU,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """An activation between two layers with constant weights, which nothing else reads."""
        alpha = float(attribute(root, "alpha", SCALE_OF_THE_OP))
        need(alpha != 1, "its scale is 1", root)
        need(math.isfinite(alpha) and alpha != 0, "its scale is no factor", root)
        check_faster(root, SILU)
        (x,) = inputs(root, 1)
        need_float32(x)
        need_near(1.0, (alpha,), FLOAT, root)
        above, places = layer_alone(node_alone(x, root), root)
        below = only_user(root.outputs[0], "Gemm", "MatMul")
        need(below.inputs[0] is root.outputs[0], "the layer below has no constant weights", below)
        places.append((above[-1], 1))
        contents: dict[Place, np.ndarray] = {
            (node, place): scaled(node.inputs[place], np.asarray(alpha, np.float32)) for node, place in places
        }
        contents[below, 1] = scaled(below.inputs[1], np.asarray(1 / alpha, np.float32))
        nodes, y = (*reversed(above), root, below), below.outputs[0]
        return Match(nodes, lambda: {y: rebuilt(nodes, contents, {root: {"alpha": 1.0}})[y]}, (y,))


LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")


class ScalarRankConversion(RewriteRule[Match]):
    """``Mul(x[…, n, 1], c)`` → ``Mul(x, c)`` with c of the rank of x, likewise other ops that broadcast.

    ONNX Runtime's CPU kernels go element by element where a number broadcasts along a last dimension of 1.

    They take the dimensions that operands share from the end on as one. A number of no rank, or of a lower one, has a
    last dimension of 1 as the other operand does: that is the part they share, and all other elements are taken one at
    a time.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("constant_folding",)
    roots = tuple(sorted(BROADCASTING | BROADCASTING_ONE_WAY))
    opsets = (7, NEWEST_OPSET)  # before, an attribute said how the second operand broadcasts
    providers = (CPU,)

    def match(self, root: ir.Node) -> Match:
        """A constant of one element beside an operand of a higher rank whose last dimension is 1."""
        operands = [value for value in root.inputs if value is not None]
        shape = max((dims(value) for value in operands), key=len)
        need(shape[-1:] == (1,), "the last dimension is not 1", root)
        need(any(dim != 1 for dim in shape), "there is one element", root)
        producers = [value.producer() for value in operands]
        taken = is_op(root, "Add") and any(is_op(node, *LINEAR) for node in producers)
        need(not taken, "it may become the bias of a product", root)
        low = [value for value in operands if len(dims(value)) < len(shape) and _is_number(value)]
        need(bool(low), "no constant of one element has a lower rank", root)
        return Match((root,), lambda: ops.copied(root, [_raised(value, len(shape), low) for value in root.inputs]))


def _is_number(value: ir.Value) -> bool:
    return is_constant(value) and array_of(value).size == 1


def _raised(value: ir.Value | None, rank: int, low: list[ir.Value]) -> ir.Value | None:
    return constant(array_of(value).reshape((1,) * rank)) if value is not None and value in low else value
