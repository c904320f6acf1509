"""An original and its results side by side where each TopK chooses what the original's chooses.

Of places that are nearly as good as each other, the last place of a number decides which is chosen: what follows is
then computed from another place, and may be anything. A right result differs there, and a wrong one must not hide
behind it. So both models are compared as copies in which the places are given: those that the original has chosen. Two
more outputs of these copies are the best numbers that each finds itself, in their order, and its numbers at the given
places: where a result chooses otherwise, both still agree if, and only if, it was a tie but for rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any, Final

import onnx_ir as ir

from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.options import Options
from ortopt.serialization.load import load
from ortopt.verification import noise
from ortopt.verification.comparison import Comparison
from ortopt.verification.input_sets import InputSet, in_memory, inputs_from, store_inputs
from ortopt.verification.kernel_steps import kernel_steps
from ortopt.verification.node_writer import NodeWriter
from ortopt.verification.perturbed_outputs import PerturbedCopies
from ortopt.verification.process import WorkerError
from ortopt.verification.reference_outputs import ReferenceOutputs
from ortopt.verification.result_comparison import ResultComparison
from ortopt.verification.runner import ModelRunner, Source
from ortopt.verification.tolerances import tolerances
from ortopt.verification.verdict import Verification
from ortopt.verification.worker import restore

_SINCE: Final = 11  # TopK's attributes
_CHOSEN: Final = "ortopt.chosen."
_BEST: Final = "ortopt.best."
_NUMBERS: Final = "ortopt.numbers."
_PREFIX: Final = "ties-"
_TIES: Final = "a TopK chose otherwise among nearly equal numbers"


class NearTies:
    """The original with given places, with which results with given places are compared.

    Args:
        runner: Runs them.
        original: The original.
        reference: The outputs of the original as it is.
        token: Cancellation token.
    """

    def __init__(
        self, runner: ModelRunner, original: Source, reference: ReferenceOutputs, token: CancellationToken = NEVER
    ) -> None:
        self.differing: list[int] = []
        self._runner = runner
        self._token = token
        self._places: tuple[str, ...] = ()
        self._reference: ReferenceOutputs | None = None
        model = self._loaded(original)
        if model is None:
            return
        self._places = tuple(_choices(model))
        copy = self._given(original)
        if not self._places or copy is None:
            return
        try:
            self._reference = self._run(copy, reference, self._chosen(model, reference))
        except WorkerError:
            return
        self._copies = PerturbedCopies(runner, copy, self._reference.sets, prefix=_PREFIX)

    def compare(
        self,
        result: Source,
        outputs: Collection[str] | None,
        sets: Collection[int] | None,
        *,
        optimize: bool = False,
    ) -> Verification | None:
        """How a result agrees where the places are given; None where it does not, or that cannot be said.

        Args:
            result: The result as it is.
            outputs: The outputs to compare; all if None.
            sets: The input sets to compare on; all if None.
            optimize: Whether ONNX Runtime optimizes it.
        """
        copy = None if self._reference is None else self._given(result)
        if copy is None or self._reference is None:
            return None
        wanted = None if outputs is None else (*outputs, *self._numbers())
        reference = self._reference.only(wanted, sets)
        verdict = ResultComparison(self._runner, reference, self._copies, _PREFIX).verdict(copy, optimize=optimize)
        return verdict if verdict.status == "verified" else None

    def _numbers(self) -> Iterator[str]:
        """The names of the outputs that say what each TopK finds, and what is at the given places."""
        for place in self._places:
            yield _BEST + place
            yield _NUMBERS + place

    def _loaded(self, source: Source) -> ir.Model | None:
        """A copy that may be changed; None where that is too large."""
        model = load(source, self._token)
        if noise.constant_bytes(model, self._token) > noise.LARGEST_COPY:
            return None
        infer_model(model, self._token)
        scope.attach(model, Options(), self._token)
        return model

    def _given(self, source: Source) -> ir.Model | None:
        """A copy whose places are inputs; None if it lacks one of these TopK."""
        model = self._loaded(source)
        choices = {} if model is None else _choices(model)
        if model is None or not choices.keys() >= set(self._places):
            return None
        for place in self._places:
            _give(model, choices[place], place)
        return model

    def _chosen(self, model: ir.Model, reference: ReferenceOutputs) -> dict[int, dict[str, Any]]:
        """What the original chooses, by input set."""
        choices = _choices(model)
        for place in self._places:
            if not choices[place].outputs[1].is_graph_output():
                model.graph.outputs.append(choices[place].outputs[1])
        chosen: dict[int, dict[str, Any]] = {}
        with self._runner.worker(model, f"{_PREFIX}choosing") as worker:
            for number, input_set in reference.sets.items():
                target = self._runner.folder / f"{_PREFIX}chosen{number}"
                rows = dict(zip(worker.names, worker.run(input_set.source, target), strict=True))
                chosen[number] = {_CHOSEN + place: in_memory(restore(target, rows[place])) for place in self._places}
        return chosen

    def _run(self, copy: ir.Model, reference: ReferenceOutputs, chosen: dict[int, dict[str, Any]]) -> ReferenceOutputs:
        sets: dict[int, InputSet] = {}
        with self._runner.worker(copy, f"{_PREFIX}original") as worker:
            names, types = tuple(worker.names), tuple(worker.types)
            for number, old in reference.sets.items():
                source, target = (self._runner.folder / f"{_PREFIX}{what}{number}" for what in ("in", "original"))
                store_inputs(inputs_from(old.source) | chosen[number], source)
                new = old.with_outputs(target, worker.run(source, target))
                new.source, new.seconds = source, worker.seconds
                sets[number] = new
        steps = kernel_steps(copy, is_inferred=True)
        comparison = Comparison(tolerances(copy, self._token), reference.comparison.random, steps=steps)
        wanted = reference.wanted | set(self._numbers())
        return dataclasses.replace(reference, names=names, types=types, sets=sets, comparison=comparison, wanted=wanted)


def with_given_places(verdict: Verification, given: Verification) -> Verification:
    """The verdict on a result that differs, where it is known to agree with given places.

    Args:
        verdict: The verdict.
        given: The one with given places, which has the errors.
    """
    known = {row.name: dataclasses.replace(row, detail=_TIES) for row in given.outputs}
    rows = tuple(row if row.agrees else known[row.name] for row in verdict.outputs)
    worst = max(rows, key=lambda row: row.worst)
    return dataclasses.replace(
        verdict, status="verified", reason="", worst=worst.worst, worst_output=worst.name, outputs=rows
    )


def _choices(model: ir.Model) -> dict[str, ir.Node]:
    """Each TopK of floats of the main graph whose places are read, by the name of these."""
    if model.opset_imports.get("", 1) < _SINCE:
        return {}
    found = {}
    for node in model.graph:
        if node.op_type != "TopK" or node.domain:
            continue
        numbers, places = node.inputs[0], node.outputs[1]
        is_float = numbers is not None and numbers.dtype is not None and numbers.dtype.is_floating_point()
        is_sorted = "sorted" not in node.attributes or node.attributes["sorted"].as_int() == 1
        if is_float and is_sorted and places.name and places.uses():
            found[places.name] = node
    return found


def _give(model: ir.Model, node: ir.Node, name: str) -> None:
    """Let an input say which places a TopK has chosen; outputs are what it finds best itself, and what is there."""
    best, places = node.outputs
    given = ir.Value(name=_CHOSEN + name, type=ir.TensorType(ir.DataType.INT64), shape=places.shape)
    model.graph.inputs.append(given)
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
    numbers = NodeWriter(node, model.opset_imports[""])("GatherElements", node.inputs[0], given, axis=axis)
    numbers.type, numbers.shape = best.type, best.shape
    places.replace_all_uses_with(given)
    best.replace_all_uses_with(numbers, replace_graph_outputs=False)
    for prefix, value in ((_BEST, best), (_NUMBERS, numbers)):
        copy = ir.node("Identity", [value])
        copy.outputs[0].name, copy.outputs[0].type, copy.outputs[0].shape = prefix + name, best.type, best.shape
        model.graph.append(copy)
        model.graph.outputs.append(copy.outputs[0])
