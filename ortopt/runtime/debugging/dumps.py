"""Groups, models and plans that are written to files: ``ORTOPT_DUMP_GRAPH`` and ``ORTOPT_DUMP_GROUPS``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.graph import scope
from ortopt.options import Options
from ortopt.runtime.execution.executables import Executable
from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.runtime.execution.group_spec import GroupSpec
from ortopt.runtime.planning.execution_plan import ExecutionPlan
from ortopt.runtime.values.conversion import type_of
from ortopt.runtime.values.element_types import write_type
from ortopt.runtime.values.tensors import elements
from ortopt.serialization.save import save
from ortopt.serialization.types_of_values import FOREIGN_TYPE_KEY

if TYPE_CHECKING:
    import onnxruntime


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
        return _DumpedExecutable(group, self._folder, label, executable)


class _DumpedExecutable:
    """An executable that writes its group as a model after its first run."""

    def __init__(self, group: GroupRunner, folder: Path, label: str, executable: Executable) -> None:
        self._group = group
        self._folder = folder
        self._label = label
        self._executable = executable
        self._is_written = False

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        results = self._executable(values, options)
        if not self._is_written:
            self._is_written = True
            dump_group(self._group.spec, self._folder, self._label, arguments=values, results=elements(results))
        return results
