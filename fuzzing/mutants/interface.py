"""Changes of what a model's inputs are: their types, ranks, sizes and symbols, and the opset."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx
import onnx.version_converter
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from fuzzing.mutants.draft import FLOATS, INTEGERS, Draft, array_of, numpy_type, store
from fuzzing.writer import NEWEST_OPSET, Unsuitable

_TYPED: Final = ("to", "dtype", "output_dtype")
_SIZES: Final = (0, 1, 1, 2, 3, 5)
_OLDEST_OPSET: Final = 7
_SYMBOLS: Final = ("N", "S", "K")


def element_type(draft: Draft) -> None:
    """One element type becomes another one, everywhere."""
    used = {one.type.tensor_type.elem_type for one in draft.inputs()} | {one.data_type for one in draft.constants()}
    old = draft.one(sorted(used & {*FLOATS, *INTEGERS, TensorProto.BOOL}))
    if old in FLOATS:
        choices: tuple[int, ...] = (*FLOATS, TensorProto.DOUBLE, TensorProto.FLOAT16, *INTEGERS[:2])
    else:
        choices = (*INTEGERS, TensorProto.FLOAT)
    new = draft.one([one for one in choices if one != old])
    for value in draft.declared():
        kind = (
            value.type.tensor_type
            if value.type.HasField("tensor_type")
            else value.type.sequence_type.elem_type.tensor_type
        )
        if kind.elem_type == old:
            kind.elem_type = new
    for node in draft.nodes:
        _tensor_for_numbers(node)
        for attribute in node.attribute:
            if attribute.name in _TYPED and attribute.i == old:
                attribute.i = new
    for tensor in draft.constants():
        if tensor.data_type == old:
            with np.errstate(all="ignore"):
                store(tensor, array_of(tensor).astype(numpy_type(new)))


def _tensor_for_numbers(node: NodeProto) -> None:
    """Spell a Constant of floats as a tensor, whose type can be another."""
    for attribute in node.attribute if node.op_type == "Constant" else ():
        if attribute.name in ("value_float", "value_floats"):
            array = np.array(helper.get_attribute_value(attribute), np.float32)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))


def one_type(draft: Draft) -> None:
    """One input has another type and is cast."""
    value = draft.one(draft.inputs())
    old = value.type.tensor_type.elem_type
    new = draft.one([one for one in (*FLOATS[:3], *INTEGERS[:4], TensorProto.BOOL) if one != old])
    cast = draft.name()
    for node in draft.graph.node:
        for i, name in enumerate(node.input):
            if name == value.name:
                node.input[i] = cast
    value.type.tensor_type.elem_type = new
    draft.graph.node.insert(0, helper.make_node("Cast", [value.name], [cast], to=old))


def size(draft: Draft) -> None:
    """A dimension of an input has another size, or that of another dimension."""
    value = _with_dims(draft)
    dims = value.type.tensor_type.shape.dim
    dim = draft.draw.choice(dims)
    others = [one.dim_value for one in dims if one.HasField("dim_value")]
    dim.dim_value = draft.draw.choice((*_SIZES, *others))


def symbol(draft: Draft) -> None:
    """A dimension of an input is open, or equal to another open one, or fixed."""
    dim = draft.draw.choice(_with_dims(draft).type.tensor_type.shape.dim)
    known = [one.dim_param for value in draft.inputs() for one in value.type.tensor_type.shape.dim if one.dim_param]
    if dim.HasField("dim_param") and draft.draw.random() < 0.5:
        dim.dim_value = draft.draw.choice(_SIZES)
    elif draft.draw.random() < 0.3:
        dim.Clear()
    else:
        dim.dim_param = draft.draw.choice((*_SYMBOLS, *known))


def all_open(draft: Draft) -> None:
    """Every dimension of an input is open, each by a symbol of its own or for its size."""
    value = _with_dims(draft)
    own = draft.draw.random() < 0.5
    for i, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.HasField("dim_value"):
            dim.dim_param = f"{value.name}_{i}" if own else f"d{dim.dim_value}"


def rank(draft: Draft) -> None:
    """An input has a dimension more, or one fewer."""
    value = _with_dims(draft)
    shape = value.type.tensor_type.shape
    if draft.draw.random() < 0.35:
        del shape.dim[draft.draw.choice((0, -1))]
        return
    new = onnx.TensorShapeProto.Dimension(dim_value=draft.draw.choice((1, 1, 2, 3)))
    shape.dim.insert(draft.draw.choice((0, 0, len(shape.dim))), new)


def opset(draft: Draft) -> None:
    """Another version of ai.onnx: what is written is the same, or converted."""
    new = draft.draw.randint(_OLDEST_OPSET, NEWEST_OPSET)
    if draft.draw.random() < 0.3 and not draft.model.functions:
        try:
            draft.model.CopyFrom(onnx.version_converter.convert_version(draft.model, new))
            draft.forget_computed()  # it declares what it has inferred
        except Exception as error:  # what it cannot convert is many things
            raise Unsuitable from error
        return
    for one in (*draft.model.opset_import, *(each for body in draft.model.functions for each in body.opset_import)):
        if one.domain in ("", "ai.onnx"):
            one.version = new


def _with_dims(draft: Draft) -> ValueInfoProto:
    return draft.one([one for one in draft.inputs() if one.type.tensor_type.shape.dim])
