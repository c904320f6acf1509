"""Runs of groups that are compared or written: ``run_type="debug"`` and ``ORTOPT_DUMP_INPUTS_OUTPUTS``."""

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
from ortopt.runtime.execution.executables import Executable
from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.runtime.execution.group_spec import GroupSpec
from ortopt.runtime.planning.execution_plan import ExecutionPlan
from ortopt.runtime.run_settings import RunSettings, RunType
from ortopt.runtime.values.containers import to_numpy, type_of
from ortopt.runtime.values.tensors import elements, write_type
from ortopt.serialization.save import save
from ortopt.serialization.types_of_values import FOREIGN_TYPE_KEY
from ortopt.terminal_text import one_line
from ortopt.verification.comparison import Comparison, is_float

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.cuda.device import CudaDevice


def dump_graph(model: ir.Model, plan: ExecutionPlan, folder: Path) -> None:
    """Write the model that is executed as ``model.onnx``, and the plan as ``plan.txt``."""
    folder.mkdir(parents=True, exist_ok=True)
    save(model, folder / "model.onnx")
    lines = [
        f"{i}: {step.name} {list(step.inputs)} -> {list(step.outputs)}, then frees {list(step.dead)}"
        for i, step in enumerate(plan.steps)
    ]
    (folder / "plan.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def dump_group(
    spec: GroupSpec,
    folder: Path,
    label: str,
    types: Sequence[str] = (),
    arguments: Sequence[Any] = (),
    results: Sequence[Any] = (),
) -> Path:
    """Write a group as a model of its own, with types and shapes of its arguments as far as they are known.

    Args:
        spec: The group.
        folder: Where.
        label: The file's name, without the ending.
        types: The types of its inputs at a run, where they are not known before.
        arguments: Its inputs at a run, which tell types and ranks that were not known before.
        results: Its outputs for them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{label}.onnx"
    seen = types or [type_of(value) for value in arguments]
    model = spec.complete_model(seen=[None if "?" in type_ else type_ for type_ in seen])
    for value, argument in zip((*model.graph.inputs, *model.graph.outputs), (*spec.inputs, *spec.outputs), strict=True):
        if argument.foreign is not None:
            value.meta[FOREIGN_TYPE_KEY] = argument.foreign
    _complete(model.graph.inputs, arguments)
    scope.attach(model, Options())
    outputs = list(model.graph.outputs)
    model.graph.outputs.clear()  # they would stay as they are declared: without shapes
    with contextlib.suppress(Exception):  # the group may be wrong: that is why it is dumped
        shapes.infer_model(model)
    model.graph.outputs.extend(outputs)
    _complete(outputs, results)
    save(model, path)
    return path


def _complete(declared: Sequence[ir.Value], seen: Sequence[Any]) -> None:
    """Give arguments the types and ranks that they had at a run, where they have none."""
    for value, content in zip(declared, seen, strict=False):
        if value.type is None and "?" not in type_of(content):
            proto = onnx.TypeProto()
            write_type(proto, type_of(content))
            value.type = ir.serde.deserialize_type_proto_for_type(proto)
        dims = _dims(content)
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


class GroupDumps:
    """Writes each group as a model: when it is compiled, and when it has run, as all about its arguments is known then.

    Args:
        folder: The folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def before_compiling(self, spec: GroupSpec, label: str, types: Sequence[str]) -> None:
        """Write what is known before a run."""
        dump_group(spec, self._folder, label, types)

    def wrapped(self, group: GroupRunner, label: str, executable: Executable) -> Executable:
        """An executable whose first run is written."""
        is_written = False

        def run(values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
            nonlocal is_written
            results = executable(values, options)
            if not is_written:
                is_written = True
                dump_group(group.spec, self._folder, label, arguments=values, results=elements(results))
            return results

        return run


_numbers = itertools.count()


class RunChecks:
    """Compares each run of a group with ONNX Runtime without optimization, or writes its values.

    Args:
        settings: What is compared and written.
        device: The CUDA device where values may be besides the host's memory.
    """

    def __init__(self, settings: RunSettings, device: CudaDevice | None) -> None:
        self._settings = settings
        self._device = device

    def before_compiling(self, spec: GroupSpec, label: str, types: Sequence[str]) -> None:
        """Nothing: only runs are checked."""

    def wrapped(self, group: GroupRunner, label: str, executable: Executable) -> Executable:
        """An executable whose runs are checked."""
        return _CheckedExecutable(group, self._settings, self._device, executable)


class _CheckedExecutable:
    """An executable whose runs are compared with ONNX Runtime without optimization, or written."""

    def __init__(
        self, group: GroupRunner, settings: RunSettings, device: CudaDevice | None, executable: Executable
    ) -> None:
        self._group = group
        self._settings = settings
        self._device = device
        self._executable = executable
        self._lock = threading.Lock()
        self._reference: dict[tuple[str, ...], Executable | None] = {}

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        results = self._executable(values, options)
        arguments, outputs = self._at_host(values), self._at_host(results)
        if self._settings.dump_inputs_outputs:
            self._write(self._settings.dump_folder / f"{self._group.label}-{next(_numbers)}.npz", arguments, outputs)
        if self._settings.run_type is RunType.DEBUG:
            self._compare(arguments, outputs, options)
        return results

    def _at_host(self, values: Sequence[Any]) -> list[Any]:
        device = self._device
        return list(values) if device is None else [device.download(value, "copy to look at") for value in values]

    def _compare(self, values: list[Any], results: list[Any], options: onnxruntime.RunOptions) -> None:
        types = () if self._group.spec.typed else tuple(type_of(value) for value in values)
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
        for output, good, got in zip(self._group.spec.outputs, expected, results, strict=True):
            detail = difference(good, got, self._settings.rtol, self._settings.atol, self._group.spec.random)
            if detail:
                self._refuse(output.name, detail, values, results)

    def _refuse(self, output: str, detail: str, values: list[Any], results: list[Any]) -> None:
        group = self._group
        message = f"group {group.spec.name} on {group.provider}, output {output!r}: {detail}"
        if self._settings.reproduces:
            folder = self._settings.dump_folder / f"{group.label}-differs"
            dump_group(group.spec, folder, "group", arguments=values, results=results)
            self._write(folder / "values.npz", values, results)
            message += f" (the group and its inputs are in {folder})"
        raise VerificationError(message)

    def _write(self, path: Path, values: list[Any], results: list[Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {}
        for kind, arguments, contents in (
            ("input", self._group.spec.inputs, values),
            ("output", self._group.spec.outputs, results),
        ):
            for argument, value in zip(arguments, contents, strict=True):
                array = to_numpy(value)
                if isinstance(array, np.ndarray):
                    strings = array.dtype.kind == "O"
                    arrays[f"{kind}.{argument.name}"] = array.astype(str) if strings else array
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
        good, other = (array.view(np.uint16 if array.itemsize == 2 else np.uint8) for array in (good, other))
    limits: tuple[float | None, float | None] = (None, None)
    if is_float(good, type_) and (rtol is not None or atol is not None):
        limits = (rtol or 0.0, atol or 0.0)
    row = Comparison({}, {""} if random else (), *limits).of("", type_, good, other)
    return "" if row.agrees else one_line(row.detail)
