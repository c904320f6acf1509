"""Large weights that are moved or cast: known by shape and dtype at once, computed when they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortopt.evaluation.call import Call, Operand, UnsupportedHereError, check_signature
from ortopt.evaluation.numpy_kernels import (
    LAZY_BYTES,
    RESHAPES,
    cast,
    cast_target,
    permutation,
    reshaped_dims,
    tensor_of,
)


def on_demand(call: Call, from_bytes: int = LAZY_BYTES) -> list[Operand] | None:
    """Large weights that are moved or cast: known by shape and dtype, computed when they are read.

    Args:
        call: What would be computed.
        from_bytes: Operands and results that are smaller are computed at once.

    Raises:
        UnsupportedHereError: It is not computed here.
        HazardError: It must not be computed.
    """
    name = call.node.op_type
    if name not in RESHAPES and name not in ("Transpose", "Cast", "CastLike"):
        return None
    check_signature(call)
    operand = call.operand(0)
    if operand.nbytes < from_bytes or operand.dtype == ir.DataType.STRING:
        return None
    source = operand.tensor if operand.tensor is not None else tensor_of(operand.array)
    if name in RESHAPES:
        shape = reshaped_dims(call)
        return [_lazy_tensor(lambda: tensor_of(source.numpy().reshape(shape)), source.dtype, shape)]
    if name == "Transpose":
        axes = permutation(call)
        shape = tuple(operand.shape[axis] for axis in axes)
        return [
            _lazy_tensor(lambda: tensor_of(np.ascontiguousarray(source.numpy().transpose(axes))), source.dtype, shape)
        ]
    target = cast_target(call)
    call.allow(operand.shape, target.itemsize)
    if target.itemsize * math.prod(operand.shape) < from_bytes or not _casts_whatever_it_holds(operand, target):
        return None
    dtype = ir.DataType.from_numpy(target)
    return [_lazy_tensor(lambda: tensor_of(cast(source.numpy(), target)), dtype, operand.shape)]


def _lazy_tensor(compute: Callable[[], ir.TensorProtocol], dtype: ir.DataType, shape: Sequence[int]) -> Operand:
    return Operand(ir.LazyTensor(compute, dtype, ir.Shape(shape)))


def _casts_whatever_it_holds(operand: Operand, target: np.dtype[Any]) -> bool:
    """Whether `cast` will do it; asked on a large weight, so that dtypes decide where they can."""
    source = np.dtype(operand.dtype.numpy())
    if source.kind in "biu" and target.kind in "biuf" and target != np.float16:
        return True
    try:
        cast(operand.array, target)
    except UnsupportedHereError:
        return False
    return True
