"""The inputs and outputs of a model as plain data, and which of them a run has changed at the caller's wish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.symbolic import is_invented, is_known
from ortopt.options import Options

_PREPARING: Final = frozenset({"Cast", "Transpose", "Sub", "Add", "Mul", "Div", "BatchNormalization"})
"""Ops of what is done to images before they are looked at."""


class Port(Struct, frozen=True):
    """An input or output of a model.

    Attributes:
        kind: Which of them.
        name: Its name.
        type: Its type, as onnx-ir writes it; None if the model does not say.
        shape: Its declared shape: a number, a name or None for each dimension; None if the model does not say.
    """

    kind: Literal["input", "output"]
    name: str | None
    type: str | None
    shape: tuple[int | str | None, ...] | None


class PortChange(Struct, frozen=True):
    """What a run made of an input or output.

    Attributes:
        before: The one of the original.
        after: The one of the result; None if it was left out.
        left: The ops that prepare it and are left, in order, of an image that is given otherwise.
    """

    before: Port
    after: Port | None
    left: tuple[str, ...] = ()


def port(value: ir.Value, kind: Literal["input", "output"] = "input") -> Port:
    """An input or output as data.

    Args:
        value: The value.
        kind: What it is.
    """
    shape = None if value.shape is None else dims(value.shape)
    return Port(kind, value.name, None if value.type is None else str(value.type), shape)


def dims(shape: ir.Shape) -> tuple[int | str | None, ...]:
    """The dimensions of a shape: a number, a name, or None for one that nobody has named."""
    return tuple(
        dim if isinstance(dim, int) else None if not is_known(dim) or is_invented(dim) else dim.value
        for dim in shape.dims
    )


def ports_of(model: ir.Model) -> tuple[Port, ...]:
    """The inputs that must be given and the outputs of a model."""
    inputs = [port(value) for value in model.graph.inputs if not value.is_initializer()]
    return (*inputs, *(port(value, "output") for value in model.graph.outputs))


def changed(before: Sequence[Port], model: ir.Model, options: Options) -> tuple[PortChange, ...]:
    """What has become of inputs and outputs, those that are as they were left out.

    Args:
        before: Those of the original.
        model: The result, with its names.
        options: Options of the run: what they do not ask for is no change, but a correction.
    """
    asked = bool(options.rename or options.keep_outputs or options.drop_outputs or options.int32_inputs)
    resized = bool(options.dims or options.input_shapes or options.dynamic_batch or options.rename_dims)
    if not (asked or resized or options.image_inputs or options.float16_io):
        return ()
    after = {(one.kind, one.name): one for one in ports_of(model)}
    rows = []
    for old in before:
        name = options.rename.get(old.name or "", old.name)
        new = after.get((old.kind, name))
        is_same = new is not None and (new.name, new.type) == (old.name, old.type)
        if is_same and new is not None and (new.shape == old.shape or not (old.kind == "input" or resized)):
            continue
        is_image = old.kind == "input" and old.name in options.image_inputs
        rows.append(PortChange(old, new, tuple(_preparing(model, name)) if is_image else ()))
    return tuple(rows)


def _preparing(model: ir.Model, name: str | None) -> Iterator[str]:
    """The ops that an image goes through one after the other before something looks at it."""
    value = next((value for value in model.graph.inputs if value.name == name), None)
    while value is not None:
        readers = {use.node for use in value.uses()}
        node = readers.pop() if len(readers) == 1 else None
        if node is None or node.domain or node.op_type not in _PREPARING:
            return
        yield node.op_type
        value = node.outputs[0]


def as_data(changes: Sequence[PortChange]) -> list[dict[str, Any]]:
    """Changes as data that json can write."""
    return [
        {
            "kind": each.before.kind,
            "before": _data(each.before),
            "after": None if each.after is None else _data(each.after),
            "left": list(each.left),
        }
        for each in changes
    ]


def _data(one: Port) -> dict[str, Any]:
    return {"name": one.name, "type": one.type, "shape": None if one.shape is None else list(one.shape)}
