"""A copy of a quantized model in which every quantizer may round to the step beside.

What a quantizer rounds is moved by up to half a step, at random: about a quarter of its numbers goes to the step above
or below. A right result may round elsewhere, too (a fused kernel requantizes with a multiplier of its own, and the last
place decides between two steps), but at few places. So what these copies move by is a bound for all of them, whatever
ops the result computes with; and it is a property of the original alone.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.serialization.load import load
from ortopt.verification.node_writer import NodeWriter
from ortopt.verification.quantizers import DYNAMIC, OUTPUT_SCALES, is_blockwise, quantizers

_BEFORE_ROUNDING: Final = 0.5
_AFTER_ROUNDING: Final = 2 / 3
"""Steps by which what has been rounded is moved: so that rounding again lets as many go to the step beside."""

_LEVELS: Final = 127
"""Steps of a block of MatMulNBits on either side of zero."""

_AXES_AS_INPUT: Final = 18


def stepped(model: ir.Model, seed: int, token: CancellationToken = NEVER) -> ir.Model:
    """A copy whose quantizers round to the step beside, at random.

    Args:
        model: The model.
        seed: Of what is random.
        token: Cancellation token.
    """
    copy = load(model, token)
    infer_model(copy, token)
    for number, node in enumerate(list(quantizers(copy, token))):
        write = _Stepping(node, copy.opset_imports.get("", 1), seed * 100_003 + number + 1)
        write.step()
    return copy


class _Stepping(NodeWriter):
    """Moves what one quantizer rounds.

    Args:
        node: The quantizer.
        opset: The opset of ai.onnx.
        seed: Of what is random.
    """

    def __init__(self, node: ir.Node, opset: int, seed: int) -> None:
        super().__init__(node, opset)
        self._seed = seed

    def step(self) -> None:
        """Move what the node takes, or else what it gives."""
        key, node = (self.node.domain, self.node.op_type), self.node
        data = node.inputs[0]
        if key in OUTPUT_SCALES:
            self._step_output(OUTPUT_SCALES[key])
        elif data is None or data.const_value is not None or (data.dtype is not None and data.dtype.is_integer()):
            return  # what is constant may be folded, and then nothing rounds
        elif key == ("", "DynamicQuantizeLinear"):
            self._step_dynamic(data)
        elif is_blockwise(node):
            self._step_blocks(data)
        elif key in DYNAMIC:
            _, step, _ = self.several(3, "DynamicQuantizeLinear", data)
            node.replace_input_with(0, self._moved(data, step))
        elif (scale := self._scale(data)) is not None:
            node.replace_input_with(0, self._moved(data, scale))

    def _moved(self, data: ir.Value, step: ir.Value, steps: float = _BEFORE_ROUNDING) -> ir.Value:
        drawn = self(
            "RandomUniformLike", data, low=-steps, high=steps, seed=float(self._seed), dtype=ir.DataType.FLOAT.value
        )
        return self("Add", data, self("Mul", self.cast_like(drawn, step), step))

    def _scale(self, data: ir.Value) -> ir.Value | None:
        """The scale of a QuantizeLinear, as it broadcasts to what is rounded; None where that is not known."""
        node = self.node
        scale: ir.Value | None = node.inputs[1]
        shape = None if scale is None else scale.shape
        if scale is None or shape is None or "block_size" in node.attributes:
            return None
        if len(shape) == 0 or (len(shape) == 1 and shape[0] == 1):
            return scale
        if data.shape is None:
            return None
        after = (len(data.shape) - 1 - node.attributes.get_int("axis", 1)) % len(data.shape)
        return self("Reshape", scale, self.constant([-1, *[1] * after], np.int64))

    def _step_dynamic(self, data: ir.Value) -> None:
        """The scale and the zero point stay; what is rounded by them moves."""
        node = self.node
        self.node = self._after(node)
        scale, zero_point = node.outputs[1], node.outputs[2]
        old = node.outputs[0]
        new = self("QuantizeLinear", self._moved(data, scale), scale, zero_point)
        old.replace_all_uses_with(new, replace_graph_outputs=False)

    def _step_output(self, number: int) -> None:
        node = self.node
        scale: ir.Value | None = node.inputs[number]
        zero_point: ir.Value | None = node.inputs[number + 1] if len(node.inputs) > number + 1 else None
        assert scale is not None
        self.node = self._after(node)
        old = node.outputs[0]
        floats = self("DequantizeLinear", old, scale, zero_point)
        new = self("QuantizeLinear", self._moved(floats, scale, _AFTER_ROUNDING), scale, zero_point)
        keeps = floats.producer()
        assert keeps is not None
        old.replace_all_uses_with(new, replace_graph_outputs=False)
        keeps.replace_input_with(0, old)

    def _after(self, node: ir.Node) -> ir.Node:
        """The node before which stands what comes behind another one."""
        assert node.graph is not None
        end = ir.node("Identity", [node.outputs[0]])
        node.graph.insert_after(node, end)
        return end

    def _step_blocks(self, data: ir.Value) -> None:
        size, columns = self.node.attributes.get_int("block_size", 32), self.node.attributes.get_int("K", 1)
        block = math.gcd(size, columns)
        blocks = self("Reshape", data, self.constant([-1, columns // block, block], np.int64))
        sizes = self("Abs", blocks)
        if self.opset >= _AXES_AS_INPUT:
            largest = self("ReduceMax", sizes, self.constant([-1], np.int64), keepdims=1)
        else:
            largest = self("ReduceMax", sizes, axes=[-1], keepdims=1)
        levels = self.cast_like(self.constant(1 / _LEVELS, np.float32), data)
        moved = self._moved(blocks, self("Mul", largest, levels))
        self.node.replace_input_with(0, self("Reshape", moved, self("Shape", data)))
