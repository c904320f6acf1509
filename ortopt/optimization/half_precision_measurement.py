"""A float32 model's outputs, and how far those of its versions in 16 bits are from them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import onnx_ir as ir

from ortopt.analysis.providers import CPU
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.options import Options
from ortopt.serialization.load import load
from ortopt.system.files import temporary_folder
from ortopt.verification.comparison import Array
from ortopt.verification.inputs import Recorded
from ortopt.verification.process import WorkerError
from ortopt.verification.randomness import GivenValues
from ortopt.verification.reference_outputs import OriginalFacts, ReferenceOutputs, run_original
from ortopt.verification.runner import ModelRunner
from ortopt.verification.worker import restore

PREFIX: Final = "ortopt.range:"
"""What the names of such outputs begin with; the value's name follows."""


def with_ranges(model: ir.Model, names: Collection[str], token: CancellationToken = NEVER) -> ir.Model:
    """The copy.

    Args:
        model: The model; it is not changed.
        names: Names of values of its main graph; all of them are tensors of floats.
        token: Cancellation token.
    """
    copy = load(model, token, checked=False)
    graph = copy.graph
    for value in [value for node in graph for value in node.outputs if value.name in names]:
        size = ir.node("Abs", [value])
        largest = ir.node("ReduceMax", [size.outputs[0]], {"keepdims": 0})
        size.outputs[0].name, largest.outputs[0].name = f"{PREFIX}{value.name}:abs", f"{PREFIX}{value.name}"
        largest.outputs[0].type, largest.outputs[0].shape = value.type, ir.Shape([])
        graph.extend([size, largest])
        graph.outputs.append(largest.outputs[0])
    return copy


_FAINT: Final = 32
"""How many times the scale of the whole output that of a slice is, where it counts as noise beside it."""

_AXES: Final = 2
"""Leading axes whose indices tell slices apart: samples, and their channels or positions."""


def slice_error(expected: Any, got: Any) -> float:
    """The greatest error of an output, relative to the root mean square of the slice that it stands in.

    A slice is what has the same first two indices (the first, where there are two axes). One that is much fainter than
    the whole output is measured against that. Of integers and booleans, the share that differs.

    Args:
        expected: What it should be.
        got: What it is.

    Returns:
        0 where both are equal; infinity where they cannot be compared, or NaN or an infinity stands elsewhere.
    """
    if isinstance(expected, list) and isinstance(got, list):
        pairs = zip(expected, got, strict=False)
        return max((slice_error(*pair) for pair in pairs), default=0.0) if len(expected) == len(got) else math.inf
    if not isinstance(expected, np.ndarray) or not isinstance(got, np.ndarray):
        return 0.0 if type(expected) is type(got) else math.inf
    if expected.shape != got.shape:
        return math.inf
    if expected.size == 0:
        return 0.0
    if expected.dtype.kind != "f":
        return float(np.mean(expected != got))
    return _of_floats(np.atleast_1d(expected).astype(np.float64), np.atleast_1d(got).astype(np.float64))


def _of_floats(expected: Array, got: Array) -> float:
    finite = np.isfinite(expected)
    alike = np.where(finite, np.isfinite(got), (expected == got) | (np.isnan(expected) & np.isnan(got)))
    if not alike.all():
        return math.inf
    wanted = np.where(finite, expected, 0)
    differences = np.abs(np.where(finite, got, 0) - wanted)
    axes = tuple(range(min(_AXES, expected.ndim - 1), expected.ndim))
    scales = np.sqrt(np.mean(wanted**2, axis=axes, keepdims=True))
    whole = math.sqrt(float(np.mean(wanted**2)))
    scales = np.maximum(scales, whole / _FAINT) if whole else np.ones_like(scales)
    return float((differences / np.maximum(scales, np.abs(wanted))).max())


_ORDINARY: Final = 0.0
"""A tolerance of the caller's own: no large numbers are drawn then."""


class Measurement:
    """A float32 model's outputs, with which those of its versions in 16 bits are compared.

    Args:
        model: The model.
        inputs: Inputs by name; None draws them.
        options: Options of the run.
        token: Cancellation token.

    Attributes:
        reason: Why nothing can be measured, or empty.
    """

    def __init__(
        self, model: ir.Model, inputs: Mapping[str, Any] | None, options: Options, token: CancellationToken
    ) -> None:
        self._model = model
        self._token = token = token.with_timeout(None)
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(temporary_folder("ortopt-half-")))
        self._runner = ModelRunner(folder, (CPU,), token)
        self._stack.callback(self._runner.close)
        self._given = GivenValues(model, token) if GivenValues.are_needed(model, token) else None
        original = model if self._given is None else self._given.original
        facts = OriginalFacts(
            model, seed=0, sizes=dict(options.dims), rtol=_ORDINARY, atol=_ORDINARY, interface=None, token=token
        )
        given = inputs if inputs is None or isinstance(inputs, Recorded) else dict(inputs)
        outputs = run_original(self._runner, original, facts, given, thorough=False)
        self.reason = "" if isinstance(outputs, ReferenceOutputs) else outputs.reason
        self._outputs = outputs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def error(self, model: ir.Model, *, optimize: bool = False) -> float:
        """The worst error of a model's outputs; infinite where it does not run.

        Args:
            model: A model with the same inputs and outputs.
            optimize: Whether ONNX Runtime optimizes it, as it does by default.
        """
        if self._given is not None:
            model, _ = self._given.of(model)
        try:
            with self._runner.worker(model, "converted", optimize=optimize) as worker:
                worker.wait()
                return max(self._errors(worker), default=0.0)
        except WorkerError:
            return math.inf

    def beyond(
        self, nodes: Sequence[ir.Node], largest: float, besides: Collection[ir.Value] = frozenset()
    ) -> list[ir.Node]:
        """The nodes that give or read numbers that are beyond a range in float32.

        Args:
            nodes: Nodes of the model.
            largest: The end of the range.
            besides: Values that may be.
        """
        values = {
            value.name or "": value
            for node in nodes
            for value in node.outputs
            if value.name
            and node.graph is self._model.graph
            and value.dtype == ir.DataType.FLOAT
            and value not in besides
        }
        large = {values[name] for name in self._larger_than(largest, values)}
        return [node for node in nodes if not large.isdisjoint((*node.inputs, *node.outputs))]

    def _larger_than(self, largest: float, names: Collection[str]) -> set[str]:
        """The values of some names that are larger than a number on any input set."""
        assert isinstance(self._outputs, ReferenceOutputs)
        found: set[str] = set()
        model = with_ranges(self._model if self._given is None else self._given.original, names, self._token)
        try:
            with self._runner.worker(model, "ranges") as worker:
                worker.wait()
                for number, input_set in self._outputs.sets.items():
                    target = self._runner.folder / f"ranges{number}"
                    rows = dict(zip(worker.names, worker.run(input_set.source, target), strict=True))
                    found |= {
                        name.removeprefix(PREFIX)
                        for name, row in rows.items()
                        if name.startswith(PREFIX) and not float(restore(target, row)) <= largest
                    }
        except WorkerError:  # a value without elements has no largest: the search finds what is to be found
            return set()
        return found

    def _errors(self, worker: Any) -> Iterator[float]:
        assert isinstance(self._outputs, ReferenceOutputs)
        random = self._outputs.comparison.random
        for number, input_set in self._outputs.sets.items():
            target = self._runner.folder / f"converted{number}"
            rows = worker.run(input_set.source, target)
            for name, expected, got in zip(self._outputs.names, input_set.rows, rows, strict=True):
                if name not in random:
                    yield slice_error(restore(input_set.target, expected), restore(target, got))
