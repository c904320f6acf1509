"""``run_type="debug"`` and ``ORTOPT_DUMP_*``: each group's run is compared, groups and values are written."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.analysis.providers import CPU
from ortopt.errors import VerificationError
from ortopt.graph import scope
from ortopt.options import Options
from ortopt.runtime.executables import Executable
from ortopt.runtime.plan import Plan
from ortopt.runtime.recipes import Recipe, write_type
from ortopt.runtime.settings import RunType
from ortopt.runtime.values import elements, to_numpy, type_of
from ortopt.serialization.save import save
from ortopt.serialization.type_decoding import FOREIGN_TYPE_KEY
from ortopt.terminal_text import one_line
from ortopt.verification.comparison import Comparison

if TYPE_CHECKING:
    from ortopt.runtime.groups import Group, Workshop

_numbers = itertools.count()


def dump_graph(model: ir.Model, plan: Plan, folder: Path) -> None:
    """Write the model that is executed as ``model.onnx``, and the plan as ``plan.txt``."""
    folder.mkdir(parents=True, exist_ok=True)
    save(model, folder / "model.onnx")
    lines = [
        f"{i}: {step.name} {list(step.inputs)} -> {list(step.outputs)}, then frees {list(step.dead)}"
        for i, step in enumerate(plan.steps)
    ]
    (folder / "plan.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def dump_group(
    recipe: Recipe,
    folder: Path,
    label: str,
    types: Sequence[str] = (),
    given: Sequence[Any] = (),
    found: Sequence[Any] = (),
) -> Path:
    """Write a group as a model of its own, with types and shapes of its arguments as far as they are known.

    Args:
        recipe: The group.
        folder: Where.
        label: The file's name, without the ending.
        types: The types of its inputs at a run, where they are not known before.
        given: Its inputs at a run: they tell what nobody knew before, types and ranks.
        found: What it gave for them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{label}.onnx"
    seen = types or [type_of(value) for value in given]
    model = recipe.complete_model(seen=[None if "?" in one else one for one in seen])
    for value, one in zip((*model.graph.inputs, *model.graph.outputs), (*recipe.inputs, *recipe.outputs), strict=True):
        if one.foreign is not None:
            value.meta[FOREIGN_TYPE_KEY] = one.foreign
    _complete(model.graph.inputs, given)
    scope.attach(model, Options())
    outputs = list(model.graph.outputs)
    model.graph.outputs.clear()  # they would stay as they are declared: without shapes
    with contextlib.suppress(Exception):  # the group may be wrong: that is why somebody wants to see it
        shapes.infer_model(model)
    model.graph.outputs.extend(outputs)
    _complete(outputs, found)
    save(model, path)
    return path


def _complete(declared: Sequence[ir.Value], seen: Sequence[Any]) -> None:
    """Give arguments the types and ranks that they had at a run, where they have none."""
    for value, one in zip(declared, seen, strict=False):
        if value.type is None and "?" not in type_of(one):
            proto = onnx.TypeProto()
            write_type(proto, type_of(one))
            value.type = ir.serde.deserialize_type_proto_for_type(proto)
        dims = _dims(one)
        if value.shape is None and dims is not None and isinstance(value.type, ir.TensorType):
            value.shape = ir.Shape([None] * len(dims))


def _dims(value: Any) -> Sequence[int] | None:
    """The sizes of a tensor."""
    if isinstance(value, np.ndarray):
        return [*value.shape]
    is_tensor = getattr(value, "is_tensor", None)
    if is_tensor is None or not value.has_value() or not is_tensor():
        return None
    return [int(size) for size in value.shape()]


class Dumping:
    """An executable that writes its group as a model when it has run, and then all about its arguments is known.

    Args:
        group: Whose executable it is.
        workshop: What all groups share.
        label: The name of the file.
        executable: What runs.
    """

    def __init__(self, group: Group, workshop: Workshop, label: str, executable: Executable) -> None:
        self._group = group
        self._folder = workshop.settings.dump_folder
        self._label = label
        self._executable = executable
        self._is_written = False

    def __call__(self, values: list[Any], options: Any) -> Sequence[Any]:
        """Run it."""
        results = self._executable(values, options)
        if not self._is_written:
            self._is_written = True
            dump_group(self._group.recipe, self._folder, self._label, given=values, found=elements(results))
        return results


class Watching:
    """An executable whose runs are compared with ONNX Runtime without optimization, or written down.

    Args:
        group: Whose executable it is.
        workshop: What all groups share.
        executable: What is watched.
    """

    def __init__(self, group: Group, workshop: Workshop, executable: Executable) -> None:
        self._group = group
        self._settings = workshop.settings
        self._device = workshop.device
        self._executable = executable
        self._lock = threading.Lock()
        self._reference: dict[tuple[str, ...], Executable | None] = {}

    def __call__(self, values: list[Any], options: Any) -> Sequence[Any]:
        """Run it, and look at what it gives.

        Raises:
            VerificationError: With ``debug``: an output differs.
        """
        results = self._executable(values, options)
        given, found = self._at_host(values), self._at_host(results)
        if self._settings.dump_inputs_outputs:
            self._write(self._settings.dump_folder / f"{self._group.label}-{next(_numbers)}.npz", given, found)
        if self._settings.run_type is RunType.DEBUG:
            self._compare(given, found, options)
        return results

    def _at_host(self, values: Sequence[Any]) -> list[Any]:
        device = self._device
        return list(values) if device is None else [device.download(one, "copy to look at") for one in values]

    def _compare(self, values: list[Any], found: list[Any], options: Any) -> None:
        types = () if self._group.recipe.typed else tuple(type_of(value) for value in values)
        with self._lock:
            if types not in self._reference:
                try:
                    self._reference[types] = self._group.compile_on(CPU, types, optimize=False)
                except Exception:  # only the host can run it: there is nothing to compare it with
                    self._reference[types] = None
            reference = self._reference[types]
        if reference is None:
            return
        expected = list(reference(values, options))
        for one, good, got in zip(self._group.recipe.outputs, expected, found, strict=True):
            detail = difference(good, got, self._settings.rtol, self._settings.atol, self._group.recipe.random)
            if detail:
                self._refuse(one.name, detail, values, found)

    def _refuse(self, output: str, detail: str, values: list[Any], found: list[Any]) -> None:
        group = self._group
        message = f"group {group.recipe.name} on {group.provider}, output {output!r}: {detail}"
        if self._settings.reproduces:
            folder = self._settings.dump_folder / f"{group.label}-differs"
            dump_group(group.recipe, folder, "group", given=values, found=found)
            self._write(folder / "values.npz", values, found)
            message += f" (the group and its inputs are in {folder})"
        raise VerificationError(message)

    def _write(self, path: Path, values: list[Any], found: list[Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {}
        for kind, arguments, given in (
            ("input", self._group.recipe.inputs, values),
            ("output", self._group.recipe.outputs, found),
        ):
            for one, value in zip(arguments, given, strict=True):
                array = to_numpy(value)
                if isinstance(array, np.ndarray):
                    strings = array.dtype.kind == "O"
                    arrays[f"{kind}.{one.name}"] = array.astype(str) if strings else array
        np.savez(path, allow_pickle=False, **arrays)


def difference(expected: Any, got: Any, rtol: float | None, atol: float | None, random: bool = False) -> str:
    """What differs between two values of a plan, in words; empty if nothing does.

    Args:
        expected: The right value.
        got: The value in question.
        rtol: The error allowed relative to the expected number; None with ``atol`` None goes by dtype.
        atol: The error allowed in absolute terms.
        random: Whether only types and shapes are compared.
    """
    type_ = type_of(expected)
    if type_ != type_of(got):
        return f"the type is {type_of(got)} instead of {type_}"
    good, other = to_numpy(expected), to_numpy(got)
    if isinstance(good, np.ndarray) and good.dtype.kind == "V":
        good, other = (one.view(np.uint16 if one.itemsize == 2 else np.uint8) for one in (good, other))
    comparable = isinstance(good, np.ndarray) and good.dtype.kind == "f" and good.shape == other.shape
    if comparable and not random and (rtol is not None or atol is not None):
        return _beyond(good, other, rtol or 0.0, atol or 0.0)
    row = Comparison(random={""} if random else ()).of("", type_, good, other)
    return "" if row.agrees else one_line(row.detail)


def _beyond(expected: np.ndarray[Any, Any], got: np.ndarray[Any, Any], rtol: float, atol: float) -> str:
    """The worst element that is further off than allowed."""
    good, other = np.atleast_1d(expected).astype(np.float64), np.atleast_1d(got).astype(np.float64)
    finite = np.isfinite(good) & np.isfinite(other)
    same = (good == other) | (np.isnan(good) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        error = np.where(finite, np.abs(other - good), np.where(same, 0.0, np.inf))
    excess = error - (atol + rtol * np.where(finite, np.abs(good), 0.0))
    if not (excess > 0).any():
        return ""
    where = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))
    count = int((excess > 0).sum())
    return (
        f"{count} of {good.size} elements differ, the worst at {list(where)}: {other[where]:.9g} instead of"
        f" {good[where]:.9g}, where rtol={rtol:g} and atol={atol:g} are allowed"
    )
