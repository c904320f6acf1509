"""Sparse tensors of a file: sparse initializers, and sparse values of Constant nodes.

In memory both are Constant nodes with an attribute ``sparse_value``: constants that are not looked into, for a few
stored bytes may stand for any number of zeros. `make_dense` makes plain constants of them within a limit; `encode`
writes those that were initializers, and still are sparse, as such again.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError
from ortopt.graph import scope
from ortopt.terminal_text import quoted

SPARSE_KEY: Final = "ortopt.sparse_initializer"
"""In the ``meta`` of a Constant node that was a sparse initializer, and of a model that has sparse tensors."""

_INDEX_TYPES: Final = frozenset(
    {ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8, ir.DataType.UINT16}
    | {ir.DataType.UINT32, ir.DataType.UINT64}
)


class SparseTensor(Struct, frozen=True, eq=False):
    """A tensor that is zero but for some elements.

    Attributes:
        values: These elements, of one dimension.
        indices: Where they are: one number each (of the flat tensor), or one per axis.
        dims: The dimensions of the tensor.
    """

    values: ir.TensorProtocol
    indices: ir.TensorProtocol
    dims: tuple[int, ...]

    @property
    def dtype(self) -> ir.DataType:
        """The type of the elements."""
        return self.values.dtype

    def check(self) -> None:
        """Make sure that it is what ONNX Runtime reads.

        Raises:
            InvalidModelError: It is not.
        """
        values, indices = tuple(self.values.shape), tuple(self.indices.shape)
        if any(dim < 0 for dim in self.dims):
            raise InvalidModelError(f"it has a negative dimension: {list(self.dims)}")
        if self.indices.dtype not in _INDEX_TYPES and values != (0,):
            raise InvalidModelError("its indices are no integers")
        count = values[0] if len(values) == 1 else -1
        if indices not in {(count,), (count, len(self.dims))} and not (count == 0 and self.indices.size == 0):
            raise InvalidModelError(f"its values have the shape {list(values)}, its indices {list(indices)}")
        if count and not self._within():
            raise InvalidModelError("an index is outside of it")

    def _within(self) -> bool:
        indices = self.indices.numpy()
        size = math.prod(self.dims) if indices.ndim == 1 else np.array(self.dims, np.uint64)
        return bool((indices >= 0).all() and (indices.astype(np.uint64) < size).all())

    @property
    def can_be_dense(self) -> bool:
        """Whether each element has bytes of its own."""
        return self.dtype != ir.DataType.STRING and self.dtype.bitwidth >= 8

    @property
    def growth(self) -> int:
        """The bytes by which it grows with its zeros."""
        return math.prod(self.dims) * self.dtype.bitwidth // 8 - self.values.nbytes - self.indices.nbytes

    def dense(self, name: str) -> ir.TensorProtocol:
        """The same tensor with its zeros.

        Args:
            name: Its name.

        Raises:
            InvalidModelError: It is of strings, or of elements that share bytes.
        """
        if not self.can_be_dense:
            raise InvalidModelError(f"{quoted(name)} is a sparse tensor of {self.dtype.name}")
        bits = self.dtype.bitwidth
        raw = np.frombuffer(self.values.tobytes(), np.dtype(f"V{bits // 8}"))
        flat = np.zeros(math.prod(self.dims), raw.dtype)
        indices = self.indices.numpy().astype(np.int64)
        if indices.ndim == 2:
            strides = [math.prod(self.dims[axis + 1 :]) for axis in range(len(self.dims))]
            indices = indices @ np.array(strides, np.int64)
        flat[indices] = raw
        return ir.Tensor(flat.view(self.dtype.numpy()).reshape(self.dims), dtype=self.dtype, name=name)


def constant_node(tensor: SparseTensor, result: ir.Value) -> ir.Node:
    """The node that a sparse initializer is in memory.

    Args:
        tensor: The tensor.
        result: The value that is it.
    """
    attribute = ir.Attr("sparse_value", ir.AttributeType.SPARSE_TENSOR, tensor)
    node = ir.Node("", "Constant", [], [attribute], outputs=[result])
    node.meta[SPARSE_KEY] = True
    return node


def make_dense(model: ir.Model, allowance: int, token: CancellationToken = NEVER) -> int:
    """Give Constant nodes their zeros, so that they can be computed with, as long as the file does not grow too much.

    Args:
        model: The model, changed.
        allowance: The bytes by which it may grow.
        token: Cancellation token.

    Returns:
        The bytes by which it grows.
    """
    if not model.meta.get(SPARSE_KEY):
        return 0
    grown = 0
    for graph in scope.graphs(model, token):
        for node in token.checked(graph):
            attribute = node.attributes.get("sparse_value") if node.op_type == "Constant" and not node.domain else None
            if attribute is None or attribute.is_ref() or not isinstance(attribute.value, SparseTensor):
                continue
            tensor: SparseTensor = attribute.value
            if not tensor.can_be_dense or grown + tensor.growth > allowance:
                continue
            grown += max(0, tensor.growth)
            node.attributes.pop("sparse_value")
            node.attributes["value"] = ir.AttrTensor("value", tensor.dense(node.outputs[0].name or ""))
            node.meta.pop(SPARSE_KEY, None)
    return grown
