"""Input sets, with the outputs of the original: kept once, read by the worker and by the comparison."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ortopt.evaluation.raw_tensors import Place, keep_rows, kept_rows, make
from ortopt.system.files import room_errors
from ortopt.verification.worker import restore, store

if TYPE_CHECKING:
    from ortopt.verification.inputs import Inputs


@dataclass(eq=False)
class InputSet:
    """An input set that is kept, and the original's outputs for it.

    Attributes:
        source: The place of the inputs.
        target: The place of the outputs.
        rows: How to find them there.
        label: What is particular about the set, for people.
        seconds: How long the original took.
        elements: How many the inputs have.
        signs: Whether the signs of zeros count.
        extreme: Whether its numbers are such that results may differ legitimately, so that the original's own noise
            decides on all that is not clearly right.
        special: Whether NaN or infinities were drawn: what a quantizer makes of NaN is any number.
        finite: Whether neither are among the inputs.
    """

    source: Place
    target: Place
    rows: list[Any]
    label: str
    seconds: float
    elements: int
    signs: bool = True
    extreme: bool = False
    special: bool = False
    finite: bool = True

    def with_outputs(self, target: Place, rows: list[Any]) -> InputSet:
        """The same inputs with other outputs for them."""
        return dataclasses.replace(self, target=target, rows=rows)

    @property
    def is_ordinary(self) -> bool:
        """Whether it holds what models are used with."""
        return not self.extreme and not self.special

    @functools.cached_property
    def says_something(self) -> bool:
        """Whether most numbers of the outputs are numbers: NaN against NaN proves little."""
        return all(float(np.isnan(array).mean()) <= 0.5 for array in self._floats())

    @functools.cached_property
    def plain(self) -> tuple[bool, ...]:
        """For each output that has floats, whether none is NaN or infinite."""
        return tuple(bool(np.isfinite(array).all()) for array in self._floats())

    def _floats(self) -> list[Any]:
        arrays = [array for row in self.rows if isinstance(array := restore(self.target, row), np.ndarray)]
        return [array for array in arrays if array.dtype.kind == "f" and array.size]


def store_inputs(inputs: Inputs, place: Place) -> None:
    """Keep inputs in a new place."""
    with room_errors(str(place)):
        make(place)
        keep_rows(place, {name: store(place, f"in{i}", value) for i, (name, value) in enumerate(inputs.items())})


def inputs_from(place: Place) -> Inputs:
    """Stored inputs as they were given."""
    return {name: _typed(restore(place, row), row) for name, row in kept_rows(place).items()}


def _typed(value: Any, row: Any) -> Any:
    """A stored input as it was given: bits of bfloat16 and the like as what they stand for."""
    exotic = row.get("exotic") if row else 0
    if not exotic:
        return in_memory(value)
    import onnx_ir as ir  # which a Python that only runs models may not have

    return value.view(ir.DataType(exotic).numpy())


def in_memory(value: Any) -> Any:
    """An array that no longer hangs on what is kept, and can be changed; or a list of them."""
    if isinstance(value, list):
        return [in_memory(item) for item in value]
    return np.array(value) if isinstance(value, np.ndarray) and not value.flags.writeable else value


def elements(inputs: Inputs) -> int:
    """How many elements there are, at least 1."""
    arrays = (array for value in inputs.values() for array in (value if isinstance(value, list) else [value]))
    return max(sum(int(np.size(array)) for array in arrays), 1)


def is_finite(inputs: Inputs) -> bool:
    """Whether neither NaN nor infinities are among the floats."""
    arrays = (array for value in inputs.values() for array in (value if isinstance(value, list) else [value]))
    return all(np.isfinite(array).all() for array in map(np.asarray, arrays) if array.dtype.kind == "f")
