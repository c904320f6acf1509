"""What a session has been specialised for, as a file that any runtime can take: see `guarded`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.errors import UsageError
from ortopt.graph.facts import shape_of
from ortopt.partition.groups import groups_of
from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.runtime.execution.group_spec import Specialization, SpecLibrary
from ortopt.runtime.specialization.guard_writer import guarded
from ortopt.serialization.save import save
from ortopt.terminal_text import one_line

Asked = tuple[dict[str, list[int]], dict[str, np.ndarray[Any, Any]]]
"""Sizes and contents by the names of a group's inputs in the model."""


class Exported(Struct, frozen=True):
    """A file with guards.

    Attributes:
        path: The file.
        versions: The specialised versions in it: the names of their functions.
        skipped: What could not be said in the file, with the reason.
    """

    path: str
    versions: tuple[str, ...]
    skipped: tuple[str, ...]


def export(
    model: ir.Model,
    groups: Sequence[GroupRunner],
    path: str | os.PathLike[str],
    external_data: Literal["auto", "inline", "copy", "reuse"] = "auto",
) -> Exported:
    """Write a grouped model in which each group has the versions that a session made of it.

    Args:
        model: The grouped model, which is not changed.
        groups: Its groups as they ran.
        path: The file.
        external_data: Where large weights go, as `ortopt.serialization.save.save` has it.

    Raises:
        UsageError: There is nothing to write.
        InvalidModelError: The model's groups are not as the format says.
        OutputError: The file cannot be written.
    """
    written = model
    skipped: list[str] = []
    for group in groups:
        name = group.spec.name
        done: list[Asked] = []
        for specialization in group.specializations():
            asked = _asked(written, name, specialization)
            if isinstance(asked, str):
                skipped.append(f"{name}: {asked}")
                continue
            if any(_same(asked, other) for other in done):
                continue
            try:
                written = _with(written, name, asked)
            except UsageError as error:
                skipped.append(f"{name}: {one_line(error)}")
                continue
            done.append(asked)
    versions = tuple(group.name for group in groups_of(written) if group.guard is not None)
    if written is model:
        reasons = "; ".join(dict.fromkeys(skipped)) or "run it often enough with the same sizes"
        raise UsageError(f"nothing has been specialised that could be written: {reasons}")
    return Exported(str(save(written, path, external_data=external_data).path), versions, tuple(skipped))


def _asked(model: ir.Model, name: str, specialization: Specialization) -> Asked | str:
    """What a guard has to ask; or why there can be none."""
    group = next((candidate for candidate in groups_of(model) if candidate.name == name), None)
    if group is None:
        return "nodes between groups have no function in the file"
    _, operands, _ = SpecLibrary(model).of_call(group.call, group.function, [True] * len(group.call.outputs))
    specification, folded = specialization
    if len(operands) != len(specification):
        return "it was called with other arguments"
    shapes: dict[str, list[int]] = {}
    constants: dict[str, np.ndarray[Any, Any]] = {}
    for value, (_, *sizes) in zip(operands, specification, strict=True):
        known = shape_of(value)
        if known is None or not known.is_static():  # else it has these sizes anyway
            shapes[value.name or ""] = sizes
    for i, content in folded:
        kind, *sizes = specification[i]
        constants[operands[i].name or ""] = np.frombuffer(content, ir.DataType(kind).numpy()).reshape(sizes)
    if not shapes and not constants:
        return "its sizes are fixed anyway"
    return shapes, constants


def _with(model: ir.Model, name: str, asked: Asked) -> ir.Model:
    """A copy with one version more; without the contents where those cannot be compared.

    Raises:
        UsageError: Its guard cannot be said.
    """
    shapes, constants = asked
    if constants:
        try:
            return guarded(model, name, shapes=shapes, constants=constants)
        except UsageError:
            if not shapes:
                raise
    return guarded(model, name, shapes=shapes)


def _same(first: Asked, other: Asked) -> bool:
    return first[0] == other[0] and _bytes(first[1]) == _bytes(other[1])


def _bytes(constants: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in constants.items()}
