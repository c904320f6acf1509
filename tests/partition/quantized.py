"""Quantized models as quantizers write them, for the tests: DequantizeLinear, an op, QuantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortopt.testing import parse


def mobile_net(blocks: int = 4, *, between: str = "", opset: int = 17) -> ir.Model:
    """A small MobileNet: expanding, depthwise and projecting Convs with weights and biases of integers, residual Adds.

    Args:
        blocks: How many blocks of three Convs.
        between: Of the op after each block but the last: ``{op}``, spelled as in ONNX's text; none if empty.
        opset: The opset of ai.onnx.
    """
    generator = np.random.default_rng(0)
    values: list[str] = []
    body: list[str] = []

    def integers(name: str, dtype: str, shape: tuple[int, ...]) -> str:
        drawn = generator.integers(-20, 20, shape).reshape(-1).tolist()
        values.append(f"{dtype}[{','.join(map(str, shape))}] {name} = {{{', '.join(map(str, drawn))}}}")
        return name

    def scale(name: str, count: int = 0) -> str:
        drawn = ", ".join(f"{one:.4f}" for one in generator.uniform(0.02, 0.1, count or 1))
        values.append(f"float{f'[{count}]' if count else ''} {name} = {{{drawn}}}")
        return name

    def quantized(name: str, source: str) -> str:
        body.append(f"{name} = QuantizeLinear ({source}, {scale(f'{name}_s')}, zero)")
        body.append(f"{name}_d = DequantizeLinear ({name}, {name}_s, zero)")
        return f"{name}_d"

    def conv(name: str, source: str, taken: int, given: int, kernel: int, group: int, *, clips: bool) -> str:
        weight = integers(f"{name}_w", "int8", (given, taken // group, kernel, kernel))
        bias = integers(f"{name}_b", "int32", (given,))
        body.append(f"{name}_wd = DequantizeLinear <axis = 0> ({weight}, {scale(f'{name}_ws', given)})")
        body.append(f"{name}_bd = DequantizeLinear <axis = 0> ({bias}, {scale(f'{name}_bs', given)})")
        pads = kernel // 2
        body.append(
            f"{name}_c = Conv <group = {group}, pads = [{pads}, {pads}, {pads}, {pads}]>"
            f" ({source}, {name}_wd, {name}_bd)"
        )
        if clips:
            body.append(f"{name}_r = Clip ({name}_c, low, high)")
        return quantized(f"{name}_q", f"{name}_{'r' if clips else 'c'}")

    values += ["uint8 zero = {128}", "float low = {0}", "float high = {6}"]
    found = quantized("in", "x")
    for i in range(blocks):
        wide = conv(f"e{i}", found, 4, 8, 1, 1, clips=True)
        deep = conv(f"d{i}", wide, 8, 8, 3, 8, clips=True)
        narrow = conv(f"p{i}", deep, 8, 4, 1, 1, clips=False)
        body.append(f"a{i} = Add ({found}, {narrow})")
        found = quantized(f"a{i}_q", f"a{i}")
        if between and i < blocks - 1:
            body.append(f"h{i} = {between} ({found})")
            found = quantized(f"h{i}_q", f"h{i}")
    body.append(f"y = Identity ({found})" if not blocks else f"y = GlobalAveragePool ({found})")
    return parse(
        f'<ir_version: 10, opset_import: ["" : {opset}, "my" : 1]> main (float[N,4,6,6] x) => (float[N,4,1,1] y)'
        f" <{', '.join(values)}> {{ {' '.join(body)} }}"
    )


def image(count: int = 2) -> Any:
    """What the model takes."""
    return np.random.default_rng(1).standard_normal((count, 4, 6, 6)).astype(np.float32)
