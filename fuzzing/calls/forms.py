"""A drawn call as models: with fixed dimensions and constants, and with symbols for what may be one."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from fuzzing.calls.draw import NEWEST, Array, Drawn
from ortopt.evaluation.numpy_kernels import tensor_of
from ortopt.graph.symbolic import Dim

_TOLD: Final = 16
"""Vectors and scalars of integers up to this size may say a shape, axes and the like."""

_IR_VERSION: Final = 10
_NATIVE: Final = frozenset("biuf")
_MAX_DUMMY: Final = 4096
_FURTHEST: Final = 6


@dataclass
class Form:
    """A call as a model.

    Attributes:
        model: Its outputs are all that its nodes compute.
        feeds: Arrays for its inputs.
        binding: The size that each symbol stands for.
    """

    model: onnx.ModelProto
    feeds: dict[str, Array] = field(default_factory=dict)
    binding: dict[str, Dim] = field(default_factory=dict)


def onnx_dtype(array: Array) -> ir.DataType:
    """The element type; object arrays are strings."""
    return ir.DataType.STRING if array.dtype == object else ir.DataType.from_numpy(array.dtype)


def is_told(array: Array, drawn: Drawn) -> bool:
    """Whether a rule may be told the elements of an operand."""
    small = array.ndim <= 1 and array.size <= _TOLD and array.dtype.kind in "biu" and array.dtype.itemsize >= 1
    return small and not (drawn.is_wide and _is_data(array))


def _is_data(array: Array) -> bool:
    """Whether an operand of a wide draw holds numbers all over its dtype, and not a few that say something."""
    return bool(array.size) and not (int(array.min()) > -64 and int(array.max()) < 64)


class _Writer:
    def __init__(self, drawn: Drawn, seed: int) -> None:
        self.drawn = drawn
        self.random = random.Random(seed)
        imports = [helper.make_opsetid("", drawn.opset), helper.make_opsetid("com.microsoft", 1)]
        self.form = Form(helper.make_model(onnx.GraphProto(name="call"), opset_imports=imports, ir_version=_IR_VERSION))
        self.graph = self.form.model.graph

    def constant(self, name: str, array: Array) -> None:
        """The operand as an initializer."""
        proto = self.graph.initializer.add()
        proto.CopyFrom(ir.serde.serialize_tensor(tensor_of(array)))
        proto.name = name

    def fed(self, name: str, array: Array, shape: list[Any] | None) -> None:
        """The operand as an input of the model."""
        self.graph.input.append(helper.make_tensor_value_info(name, int(onnx_dtype(array)), shape))
        self.form.feeds[name] = array

    def symbolic_dims(self, name: str, array: Array) -> list[Any] | None:
        """Each dimension as its number, as a symbol of its own, or as the symbol of all that have this size."""
        if self.random.random() < 0.04:
            return None
        dims: list[Any] = []
        for axis, size in enumerate(array.shape):
            chosen = self.random.random()
            if chosen < 0.3:
                dims.append(size)
            elif chosen < 0.36:
                dims.append(None)
            else:
                dims.append(f"S{size}" if chosen < 0.7 else f"{name}_{axis}")
                self.form.binding[dims[-1]] = size
        return dims

    def computed(self, name: str, array: Array) -> None:
        """Small elements as dimensions of something, some of them less a constant; the others as they are."""
        flat = [int(one) for one in array.reshape(-1)]
        chosen, volume = [], 1
        for place, element in enumerate(flat):
            size = element if element >= 0 else element + _FURTHEST
            if 0 <= size <= 2 * _FURTHEST and volume * max(size, 1) <= _MAX_DUMMY and self.random.random() < 0.7:
                chosen.append((place, element, size))
                volume *= max(size, 1)
        if not chosen:
            self.constant(name, array)
            return
        dummy, sizes = f"{name}_d", [size for _, _, size in chosen]
        names = [f"S{size}" if self.random.random() < 0.5 else f"{dummy}_{axis}" for axis, size in enumerate(sizes)]
        self.form.binding.update(zip(names, sizes, strict=True))
        self.fed(dummy, np.zeros(sizes, np.uint8), names)
        self.add("Shape", [dummy], f"{name}_s")
        pieces = []
        at = {place: axis for axis, (place, _, _) in enumerate(chosen)}
        for place, element in enumerate(flat):
            piece = f"{name}_{place}"
            if place not in at:
                self.constant(piece, np.array([element], np.int64))
            else:
                index, size = at[place], sizes[at[place]]
                self.constant(f"{piece}_at", np.array([index], np.int64))
                taken = piece if size == element else f"{piece}_t"
                self.add("Gather", [f"{name}_s", f"{piece}_at"], taken, axis=0)
                if size != element:
                    self.constant(f"{piece}_less", np.array([size - element], np.int64))
                    self.add("Sub", [taken, f"{piece}_less"], piece)
            pieces.append(piece)
        whole = f"{name}_w"
        self.add("Concat", pieces, whole, axis=0)
        if array.ndim == 0:
            self.constant(f"{name}_first", np.array(0, np.int64))
            self.add("Gather", [whole, f"{name}_first"], f"{name}_g", axis=0)
            whole = f"{name}_g"
        self.add("Cast", [whole], name, to=int(onnx_dtype(array)))

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> None:
        """A node of what comes before the call."""
        self.graph.node.append(helper.make_node(op, inputs, [output], **attributes))

    def done(self) -> Form:
        """The nodes of the call, and all that they compute as outputs."""
        self.graph.node.extend(self.drawn.nodes)
        for node in self.drawn.nodes:
            self.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
        return self.form


def _must_be_constant(array: Array) -> bool:
    """Whether no array of such a dtype can be fed: bits that share bytes, strings."""
    return array.dtype == object or onnx_dtype(array).bitwidth < 8


def fixed(drawn: Drawn, seed: int) -> Form:
    """The call with numbers for dimensions; what may say a shape is constant."""
    writer = _Writer(drawn, seed)
    for index, array in enumerate(drawn.inputs):
        if array is None:
            continue
        small = math.prod(array.shape) <= _TOLD and not drawn.is_wide
        constant = is_told(array, drawn) or (small and writer.random.random() < 0.3)
        if _must_be_constant(array) or constant:
            writer.constant(f"i{index}", array)
        else:
            writer.fed(f"i{index}", array, list(array.shape))
    return writer.done()


def symbolic(drawn: Drawn, seed: int) -> Form:
    """The call with symbols, shared and not; what may say a shape is constant, computed from dimensions, or unknown."""
    writer = _Writer(drawn, seed)
    computable = 7 <= drawn.opset <= NEWEST
    for index, array in enumerate(drawn.inputs):
        if array is None:
            continue
        name, chosen = f"i{index}", writer.random.random()
        told = is_told(array, drawn)
        if _must_be_constant(array) or (told and chosen < 0.45):
            writer.constant(name, array)
        elif told and chosen < 0.85 and computable and array.size and array.dtype.kind in "iu":
            writer.computed(name, array)
        else:
            writer.fed(name, array, writer.symbolic_dims(name, array))
    return writer.done()


__all__ = ["Form", "fixed", "is_told", "onnx_dtype", "symbolic"]
