"""Conv and AveragePool can pad with zeros themselves, MaxPool with what is never the largest."""

import math

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis import targets
from ortopt.graph import scope
from ortopt.graph.match import (
    FLOATS,
    Code,
    Refusal,
    array_of,
    attribute,
    dtype,
    inputs,
    need,
    opset,
    optional,
    plain_attributes,
    producer,
    scalar,
)
from ortopt.options import Numerics
from ortopt.patterns.quantization import dequantizer, is_dequantizer, is_faithful, quantizer, same_scale, scaling
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.opset_changes import PADS_ARE_AN_INPUT_FROM


class PadFusion(RewriteRule[Match]):
    """``Conv(Pad(x))``, ``AveragePool(Pad(x))`` with zeros around the image → one op with ``pads``.

    And ``MaxPool(Pad(x))`` with -inf around it, as TensorFlow pads; with zeros around it, it is left alone. In
    quantized graphs, the result of the Pad is quantized again with the same scale; this changes no number, so that
    pair is removed too.

    Kernels that compute padded columns one by one are slower with many of them: with targets on which that was measured
    a long padding stays in its Pad. On the CPU `conv_pad_decomposition` decides.
    """

    numerics = Numerics.REORDERED
    roots = ("AveragePool", "Conv", "MaxPool")
    needs = ("Pad",)
    lookback = 4
    opsets = (7, NEWEST_OPSET)  # before, an AveragePool never counted its padding

    def match(self, root: ir.Node) -> Match:
        """A Pad by known numbers of zeros, along spatial axes only."""
        (padded,) = inputs(root, 1)
        padded, between = _before_quantization(padded)
        pad = producer(padded, "Pad")
        (x,) = inputs(pad, 1)
        if between:
            _check_quantized_before(x, between)
        need(dtype(x) in FLOATS, "it pads no floats", pad)
        need(ops.Pad(pad).mode == "constant", "it does not pad with a constant", pad)
        wanted = -math.inf if root.op_type == "MaxPool" else 0
        need(_filling(pad) == wanted, f"it does not pad with {wanted}", pad)
        window = ops.Window(root)
        need(window.auto_pad in ("NOTSET", "VALID"), "the padding depends on the size", root)
        amounts = ops.Pad(pad).amounts
        spatial = len(amounts) // 2 - 2
        need(spatial >= 1, "there are no spatial axes", pad)
        begins, ends = amounts[: spatial + 2], amounts[spatial + 2 :]
        need(begins[:2] == (0, 0) == ends[:2], "it pads batch or channels", pad)
        need(min(amounts) >= 0, "it takes something away", pad)
        slow = targets.is_slow_padding(scope.of_node(root).options.target, max(amounts))
        need(root.op_type != "Conv" or not slow, "the target is slow with so much padding", pad, code=Code.COST)
        own = window.pads if window.auto_pad == "NOTSET" else (0,) * 2 * spatial
        need(len(own) == 2 * spatial, "the paddings do not fit one another", root)
        added = begins[2:] + ends[2:]
        pads = tuple(more + less for more, less in zip(added, own, strict=True))
        if root.op_type != "Conv":
            _check_windows(root, pads)
        if root.op_type == "AveragePool":
            need(ops.Pool(root).counts_padding or not any(own), "it does not count its own padding", root)
        plain_attributes(root)
        counts = 1 if root.op_type == "AveragePool" else None  # it counts the zeros as the Pad's users did
        operands, changed = [x, *root.inputs[1:]], {"auto_pad": None, "pads": pads, "count_include_pad": counts}
        return Match((pad, *between, root), lambda: ops.copied(root, operands, **changed))


def _before_quantization(padded: ir.Value) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """A value before it was quantized and dequantized, and the two nodes; the value itself and none if it was not."""
    try:
        dequantize = dequantizer(padded)
        quantize = quantizer(inputs(dequantize, 1)[0])
    except Refusal:
        return padded, ()
    return inputs(quantize, 1)[0], (quantize, dequantize)


def _check_quantized_before(x: ir.Value, between: tuple[ir.Node, ...]) -> None:
    """Refuse where what is padded was not quantized in the same way: then the second quantization rounds."""
    mappings = [scaling(node) for node in (dequantizer(x), *between)]
    first = mappings[0]
    for mapping in mappings:
        same = mapping.scale.size == 1 and same_scale(first, mapping) and first.integers == mapping.integers
        need(same and mapping.zero_point == first.zero_point, "the padded image is quantized otherwise", x)
    need(is_faithful(first), "the scale is too large or too small to be exact", x)


def _filling(pad: ir.Node) -> float:
    """The number that a Pad puts around."""
    if opset(pad) < PADS_ARE_AN_INPUT_FROM["Pad"]:
        return attribute(pad, "value", 0.0)
    value = optional(pad, 2)
    if value is None:
        return 0.0
    node = value.producer()
    return _dequantized(node) if node is not None and is_dequantizer(node) else scalar(value)


def _dequantized(node: ir.Node) -> float:
    """The number that a DequantizeLinear makes of one constant: some quantizers have one for what is padded with."""
    mapping, integer = scaling(node), array_of(inputs(node, 1)[0])
    need(integer.size == 1 and mapping.scale.size == 1, "the padding has several numbers", node)
    return float((integer.astype(np.int64).reshape(()) - mapping.zero_point.reshape(())) * mapping.scale.reshape(()))


def _check_windows(root: ir.Node, pads: tuple[int, ...]) -> None:
    """Refuse where a pooling would have a window without pixels, or give places, or where no kernel pads so far."""
    pool = ops.Pool(root)
    need(not pool.rounds_up, "a window may begin in the padding", root)
    need(len(root.outputs) == 1, "places among padded pixels are given, too", root)
    averages = root.op_type == "AveragePool"
    need(averages or set(pool.dilations) <= {1}, "a window may leave out all pixels", root)
    kernel = pool.kernel
    need(2 * len(kernel) == len(pads), "the kernel does not fit the paddings", root)
    need(all(more < size for more, size in zip(pads, kernel * 2, strict=True)), "a window may lie in the padding", root)
