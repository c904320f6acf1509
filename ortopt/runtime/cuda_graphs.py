"""CUDA graphs of specialised groups: one graph for each argument specification, replayed on buffers of its own."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ortopt.analysis.providers import CPU, CUDA
from ortopt.runtime.executables import Executable
from ortopt.runtime.recipes import Recipe
from ortopt.runtime.values import binding, device
from ortopt.runtime.weights import place

if TYPE_CHECKING:
    from ortopt.runtime.groups import Group, Workshop

_identifiers = itertools.count(1)


def captured(
    group: Group, workshop: Workshop, recipe: Recipe, values: Sequence[Any], results: Sequence[Any]
) -> Executable:
    """An executable that replays a CUDA graph. Raises what ONNX Runtime raises where it cannot capture the group.

    Args:
        group: The group.
        workshop: What all groups share.
        recipe: The group with fixed sizes.
        values: Arguments of the specification.
        results: What the group gives for them: the buffers of the outputs are made like these.
    """
    session = workshop.maker.make(
        place(recipe.model(), recipe.weights),
        (CUDA, CPU),
        label=f"{group.label}-graph",
        threads=group.threads,
        optimize=True,
        provider_options={CUDA: {"enable_cuda_graph": "1"}},
    )
    return _Captured(session, recipe, group.devices, values, results)


class _Captured:
    """A session with a CUDA graph: what it reads and writes stays where it was when it was captured."""

    def __init__(
        self, session: Any, recipe: Recipe, devices: Sequence[str], values: Sequence[Any], results: Sequence[Any]
    ) -> None:
        import onnxruntime

        self._session = session
        self._lock = threading.Lock()
        self._devices = list(devices) or ["cpu"] * len(results)
        self._inputs = [_like(value) for value in values]
        self._outputs = [_like(value) for value in results]
        self._binding = binding().SessionIOBinding(session)
        for one, buffer in zip(recipe.inputs, self._inputs, strict=True):
            self._binding.bind_ortvalue_input(one.name, buffer)
        for one, buffer in zip(recipe.outputs, self._outputs, strict=True):
            self._binding.bind_ortvalue_output(one.name, buffer)
        self._options = onnxruntime.RunOptions()
        self._options.add_run_config_entry("gpu_graph_id", str(next(_identifiers)))

    def __call__(self, values: list[Any], options: Any) -> Sequence[Any]:
        """Copy the arguments in, replay, copy the results out; one call at a time."""
        with self._lock:
            for buffer, value in zip(self._inputs, values, strict=True):
                _copy(value, buffer)
            self._session.run_with_iobinding(self._binding, self._options)
            found = []
            for buffer, place_ in zip(self._outputs, self._devices, strict=True):
                result = _like(buffer, place_)
                _copy(buffer, result)
                found.append(result)
        return found


def _like(value: Any, where: str = "cuda") -> Any:
    """A buffer for a value of the same type and sizes."""
    return binding().OrtValue.ortvalue_from_shape_and_onnx_type(
        list(value.shape()), value.element_type(), device(where)
    )


def _copy(source: Any, target: Any) -> None:
    target.update_inplace(source if source.device_name().lower() != "cpu" else source.numpy())
