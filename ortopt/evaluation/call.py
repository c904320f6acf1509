"""What a numpy kernel is given: a node, its operands as constants, and whether the op's schema takes them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortopt.semantics import strings_of
from ortopt.serialization.checks.signatures import signature, type_name

Array = np.ndarray[Any, Any]


class UnsupportedHereError(Exception):
    """This op with these operands is not computed here; ONNX Runtime may."""


class HazardError(Exception):
    """This must not be computed: it kills the process, is undefined, or asks for more memory than allowed."""


class Operand:
    """A constant as an op sees it: shape and dtype at once, contents when they are asked for."""

    __slots__ = ("_array", "shape", "tensor")

    def __init__(self, constant: Array | ir.TensorProtocol) -> None:
        self._array = constant if isinstance(constant, np.ndarray) else None
        self.tensor = None if isinstance(constant, np.ndarray) else constant
        self.shape: tuple[int, ...] = (
            constant.shape if isinstance(constant, np.ndarray) else tuple(int(dim) for dim in constant.shape)  # type: ignore[arg-type]
        )

    @property
    def array(self) -> Array:
        """The contents; of a memory-mapped tensor a view, of a string tensor an object array of bytes."""
        if self._array is None:
            assert self.tensor is not None
            strings = self.tensor.dtype == ir.DataType.STRING
            self._array = strings_of(self.tensor) if strings else self.tensor.numpy()
        return self._array

    @property
    def dtype(self) -> ir.DataType:
        """The ONNX element type."""
        return self.tensor.dtype if self.tensor is not None else dtype_of(self.array)

    @property
    def nbytes(self) -> int:
        """Bytes in memory or in the file."""
        return self.tensor.nbytes if self.tensor is not None else self.array.nbytes


class Call:
    """A node, its operands, and how large a result may be."""

    __slots__ = ("_limit", "attributes", "node", "operands", "opset")

    def __init__(self, node: ir.Node, operands: Sequence[Operand | None], opset: int, limit_bytes: int) -> None:
        self.node = node
        self.attributes = node.attributes
        self.operands = operands
        self.opset = opset
        self._limit = limit_bytes

    def has(self, index: int) -> bool:
        """Whether an operand is there."""
        return index < len(self.operands) and self.operands[index] is not None

    def operand(self, index: int) -> Operand:
        """An operand that must be there."""
        operand = self.operands[index] if index < len(self.operands) else None
        if operand is None:
            raise HazardError(f"input {index} of {self.node.op_type} is missing")
        return operand

    def array(self, index: int) -> Array:
        """The contents of an operand that must be there."""
        return self.operand(index).array

    def integers(self, index: int) -> list[int]:
        """The contents of a vector of integers."""
        array = self.array(index)
        if array.dtype.kind not in "iu":
            raise HazardError(f"input {index} of {self.node.op_type} is not of integers")
        return [int(number) for number in array.reshape(-1)]

    def allow(self, shape: Sequence[int], itemsize: int) -> None:
        """Refuse a result that is too large, before it is allocated."""
        if any(dim < 0 for dim in shape) or math.prod(shape) * itemsize > self._limit:
            raise HazardError(f"{self.node.op_type} asks for a result of shape {list(shape)}")


def dtype_of(array: Array) -> ir.DataType:
    """The ONNX element type of an array; object arrays are strings."""
    return ir.DataType.STRING if array.dtype.kind in "OSU" else ir.DataType.from_numpy(array.dtype)


def check_signature(call: Call) -> None:
    """Ask the op's schema whether it takes these operands and attributes.

    Raises:
        HazardError: It does not: no runtime loads such a model, and without the node one would.
    """
    node = call.node
    dtypes = tuple(None if operand is None else operand.dtype for operand in call.operands)
    if not _is_allowed(node.op_type, call.opset, dtypes, tuple(call.attributes), len(node.outputs)):
        raise HazardError(f"{node.op_type} of opset {call.opset} does not take these operands and attributes")


_EVERY = frozenset({"tensor(string)", "tensor(bool)", "tensor(complex64)", "tensor(float16)", "tensor(int8)"})


@functools.lru_cache(1 << 12)
def _is_allowed(
    op: str, opset: int, dtypes: tuple[ir.DataType | None, ...], attributes: tuple[str, ...], outputs: int
) -> bool:
    expected = signature("", op, opset)
    if expected is None or not expected.least_inputs <= len(dtypes) <= expected.most_inputs:
        return False
    if outputs > expected.most_outputs or not expected.required <= set(attributes) <= expected.attributes.keys():
        return False
    bound: dict[str, ir.DataType] = {}
    for index, dtype in enumerate(dtypes):
        formal = expected.inputs[min(index, len(expected.inputs) - 1)]
        if dtype is None:
            if formal.required:
                return False
            continue
        allowed = expected.types.get(formal.variable, frozenset({formal.variable}))
        # What took every dtype of its time takes the later ones too: four bits are moved as eight are.
        if type_name(dtype) not in allowed and not _EVERY.issubset(allowed):
            return False
        if formal.bound and bound.setdefault(formal.variable, dtype) != dtype:
            return False
    return True
