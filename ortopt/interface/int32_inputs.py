"""Inputs of int64 that become int32: a Cast stands behind each, and passes remove what readers do not need."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt.cancellation import CancellationToken
from ortopt.errors import UsageError
from ortopt.interface.change import Arrays, InterfaceChange
from ortopt.interface.insertion import Insertion
from ortopt.terminal_text import quoted

_BOUNDS = np.iinfo(np.int32)


class Int32Inputs(InterfaceChange):
    """Every input that must be given and is a tensor of int64 becomes one of int32.

    Args:
        model: The model; changed in place.
        token: Cancellation token.

    Raises:
        UsageError: If there is no such input, or one is an output, too: that one is int64 under the same name.
    """

    def __init__(self, model: ir.Model, token: CancellationToken) -> None:
        inputs = [value for value in model.graph.inputs if not value.is_initializer() and _is_int64(value)]
        if not inputs:
            raise UsageError("int32_inputs: no input is a tensor of int64")
        for value in inputs:
            if value in model.graph.outputs:
                raise UsageError(f"int32_inputs: input {quoted(value.name)} is an output, too, which stays int64")
        self._names = {value.name or "" for value in inputs}
        for value in inputs:
            readers, nodes = list(value.uses()), Insertion(model, value, token)
            result = nodes.node("Cast", [value], {"to": ir.DataType.INT64.value})
            value.type = ir.TensorType(ir.DataType.INT32)
            nodes.finish([(use.node, use.idx) for use in readers], result)

    def calls(self, inputs: Arrays) -> Sequence[Arrays]:
        """The same numbers as int64."""
        return [{name: self._as(np.int64, name, array) for name, array in inputs.items()}]

    def given(self, inputs: Arrays) -> Arrays:
        """The same numbers as int32."""
        for name in self._names & inputs.keys():
            array = np.asarray(inputs[name])
            if array.size and not _BOUNDS.min <= array.min() <= array.max() <= _BOUNDS.max:
                raise UsageError(f"input {quoted(name)} holds numbers beyond int32, which it is to be")
        return {name: self._as(np.int32, name, array) for name, array in inputs.items()}

    def _as(self, dtype: type[np.integer], name: str, array: object) -> object:
        return np.asarray(array).astype(dtype) if name in self._names else array


def _is_int64(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.type.dtype == ir.DataType.INT64
