"""Quantized units in ONNX's text form, and how far the kernels that stand for them are off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.testing import parse
from tests.sessions import unoptimized

Check = Callable[..., ir.Model]


class Tensor(NamedTuple):
    """A tensor of a unit: its type, dimensions, scale and zero point; None where the zero point is left out."""

    dims: str
    scale: float | str = 0.05
    zero: int | None = 7
    dtype: str = "uint8"


def unit(op: str, y: Tensor, more: str = "", inputs: str = "", **operands: Tensor) -> str:
    """A unit whose op reads the dequantized operands by their names: ``t = Add (a_x, b_x)``, and gives t.

    Args:
        op: The statement of the op.
        y: The result, which is quantized, and dequantized for the model's output.
        more: More constants, each with a comma behind it.
        inputs: More inputs of the model, each with a comma before it.
        operands: The operands, inputs of the model.
    """
    constants = [constant for name, tensor in {**operands, "y": y}.items() for constant in _mapping(name, tensor)]
    nodes = [f"{name}_x = DequantizeLinear ({_arguments(name, tensor)})" for name, tensor in operands.items()]
    given = ", ".join(f"{tensor.dtype}[{tensor.dims}] {name}" for name, tensor in operands.items())
    end = _arguments("y", y)
    return f"""main ({given}{inputs}) => (float[{y.dims}] out) <{more}{", ".join(constants)}> {{
        {" ".join(nodes)} {op} y = QuantizeLinear ({end.replace("y,", "t,", 1)}) out = DequantizeLinear ({end}) }}"""


def _mapping(name: str, tensor: Tensor) -> list[str]:
    scale = tensor.scale if isinstance(tensor.scale, str) else f"float {name}_s = {{{tensor.scale}}}"
    zero = [] if tensor.zero is None else [f"{tensor.dtype} {name}_z = {{{tensor.zero}}}"]
    return [scale, *zero]


def _arguments(name: str, tensor: Tensor) -> str:
    return f"{name}, {name}_s" if tensor.zero is None else f"{name}, {name}_s, {name}_z"


def check_unit(
    check: Check, name: str, text: str, kernel: str, *, exact: bool = False, opset: int = 17, seed: int = 0
) -> ir.Model:
    """Check that a pass makes one kernel of a unit, and that its integers are the unit's, or their neighbours.

    The bound is closer than that of verification, which does not know where a step is right.

    Args:
        check: `ortopt.testing.check_rewrites`, as the test has imported it: others record what it is called with.
        name: The pass.
        text: The model, see `unit`.
        kernel: The kernel's op.
        exact: Whether neighbours are a mistake.
        opset: The version of ai.onnx.
        seed: What to draw the inputs from.
    """
    original = parse(text, opset)
    feeds = {value.name or "": drawn(value, seed) for value in original.graph.inputs}
    if {np.dtype(np.uint8), np.dtype(np.int8)} <= {array.dtype for array in feeds.values()}:
        # Of 7 bits: pairs of unsigned by signed products saturate on x86 processors without VNNI.
        feeds = {name: array // 2 if array.dtype == np.int8 else array for name, array in feeds.items()}
    result = check(name, text, ops={kernel: 1}, opset=opset, inputs=feeds, numbers=exact)
    (wanted,), (got,) = (run(model, feeds) for model in (original, result))
    step = float(next(v for v in original.graph.initializers.values() if v.name == "y_s").const_value.numpy())  # type: ignore[union-attr]
    off = np.abs(np.rint((wanted - got) / step))
    assert wanted.shape == got.shape
    assert off.max(initial=0) <= (0 if exact else 1), f"{off.max()} steps"
    assert (off > 0).mean() <= 0.05 if off.size else True, "too many neighbours for ties"
    return result


def drawn(value: ir.Value, seed: int, sizes: Mapping[str, int] | None = None) -> np.ndarray:
    """Numbers of the whole range of a type; a symbol is 3 unless it has a size."""
    random = np.random.default_rng(seed)
    assert value.shape is not None
    assert value.dtype is not None
    dims = [dim if isinstance(dim, int) else (sizes or {}).get(str(dim), 3) for dim in value.shape]
    dtype = value.dtype.numpy()
    if dtype == np.bool_:
        return random.integers(0, 2, dims).astype(np.bool_)
    if dtype == np.float32:
        return random.standard_normal(dims).astype(np.float32)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max + 1, dims).astype(dtype)


def run(model: ir.Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What a model gives under ONNX Runtime without its optimizations."""
    return [np.asarray(result) for result in unoptimized(model).run(None, feeds)]
