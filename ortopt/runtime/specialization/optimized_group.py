"""A group as ortopt optimizes it for some of its arguments: their sizes are fixed, and contents are folded in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortopt.analysis.providers import CPU, CUDA
from ortopt.api import optimize
from ortopt.runtime.execution.group_spec import GroupSpec

LEVEL: Final = 3


def optimized(
    spec: GroupSpec,
    provider: str,
    shapes: Sequence[Sequence[int] | None],
    contents: Mapping[int, np.ndarray[Any, Any]],
    seen: Sequence[str] = (),
) -> ir.Model:
    """The group as a model, without the inputs that are folded in.

    Args:
        spec: The group.
        provider: The execution provider that runs it.
        shapes: The sizes of its inputs; None where they are not fixed.
        contents: What is folded in, by the positions of the inputs.
        seen: The types of its inputs at a run, where they are not known.
    """
    model = spec.complete_model(shapes, seen)
    inputs = list(model.graph.inputs)
    for place, content in contents.items():
        inputs[place].const_value = ir.Tensor(content, inputs[place].dtype, name=inputs[place].name)
        model.graph.register_initializer(inputs[place])
    model.graph.inputs[:] = [value for place, value in enumerate(inputs) if place not in contents]
    known = [name for name in dict.fromkeys((provider, CPU)) if name in {CPU, CUDA}]
    return optimize(model, level=LEVEL, providers=known, verify=False, strict=False).model
