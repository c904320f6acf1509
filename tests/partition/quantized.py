"""Quantized models as quantizers write them, for the tests: DequantizeLinear, an op, QuantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortopt.testing import parse


class _Writer:
    """Writes the text of a quantized model.

    Attributes:
        values: The initializers.
        body: The nodes.
    """

    def __init__(self) -> None:
        self._generator = np.random.default_rng(0)
        self.values: list[str] = []
        self.body: list[str] = []

    def integers(self, name: str, dtype: str, shape: tuple[int, ...]) -> str:
        drawn = self._generator.integers(-20, 20, shape).reshape(-1).tolist()
        self.values.append(f"{dtype}[{','.join(map(str, shape))}] {name} = {{{', '.join(map(str, drawn))}}}")
        return name

    def scale(self, name: str, count: int = 0) -> str:
        drawn = ", ".join(f"{number:.4f}" for number in self._generator.uniform(0.02, 0.1, count or 1))
        self.values.append(f"float{f'[{count}]' if count else ''} {name} = {{{drawn}}}")
        return name

    def quantized(self, name: str, source: str) -> str:
        self.body.append(f"{name} = QuantizeLinear ({source}, {self.scale(f'{name}_s')}, zero)")
        self.body.append(f"{name}_d = DequantizeLinear ({name}, {name}_s, zero)")
        return f"{name}_d"

    def conv(self, name: str, source: str, channels: tuple[int, int], kernel: int, group: int, *, clips: bool) -> str:
        taken, given = channels
        weight = self.integers(f"{name}_w", "int8", (given, taken // group, kernel, kernel))
        bias = self.integers(f"{name}_b", "int32", (given,))
        self.body.append(f"{name}_wd = DequantizeLinear <axis = 0> ({weight}, {self.scale(f'{name}_ws', given)})")
        self.body.append(f"{name}_bd = DequantizeLinear <axis = 0> ({bias}, {self.scale(f'{name}_bs', given)})")
        pads = [kernel // 2] * 4
        self.body.append(f"{name}_c = Conv <group = {group}, pads = {pads}> ({source}, {name}_wd, {name}_bd)")
        if clips:
            self.body.append(f"{name}_r = Clip ({name}_c, low, high)")
        return self.quantized(f"{name}_q", f"{name}_{'r' if clips else 'c'}")


def mobile_net(blocks: int = 4, *, between: str = "", opset: int = 17) -> ir.Model:
    """A small MobileNet: expanding, depthwise and projecting Convs with weights and biases of integers, residual Adds.

    Args:
        blocks: How many blocks of three Convs.
        between: Of the op after each block but the last: ``{op}``, spelled as in ONNX's text; none if empty.
        opset: The opset of ai.onnx.
    """
    writer = _Writer()
    body = writer.body
    writer.values += ["uint8 zero = {128}", "float low = {0}", "float high = {6}"]
    last = writer.quantized("in", "x")
    for i in range(blocks):
        wide = writer.conv(f"e{i}", last, (4, 8), 1, 1, clips=True)
        deep = writer.conv(f"d{i}", wide, (8, 8), 3, 8, clips=True)
        narrow = writer.conv(f"p{i}", deep, (8, 4), 1, 1, clips=False)
        body.append(f"a{i} = Add ({last}, {narrow})")
        last = writer.quantized(f"a{i}_q", f"a{i}")
        if between and i < blocks - 1:
            body.append(f"h{i} = {between} ({last})")
            last = writer.quantized(f"h{i}_q", f"h{i}")
    body.append(f"y = Identity ({last})" if not blocks else f"y = GlobalAveragePool ({last})")
    return parse(
        f'<ir_version: 10, opset_import: ["" : {opset}, "my" : 1]> main (float[N,4,6,6] x) => (float[N,4,1,1] y)'
        f" <{', '.join(writer.values)}> {{ {' '.join(body)} }}"
    )


def image(count: int = 2) -> Any:
    """What the model takes."""
    return np.random.default_rng(1).standard_normal((count, 4, 6, 6)).astype(np.float32)
