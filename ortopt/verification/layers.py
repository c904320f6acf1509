"""Intermediate values of a result against those of its original: where they begin to differ, and by how much.

Values that are the same ones in both models (`ortopt.verification.joined_values`) become outputs of copies, some at a
time: no more than fits into the memory. They are compared as outputs are: within the limits of their dtype, and where
an error is neither clearly rounding nor clearly a mistake, by the original's own noise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.detached import remove_unneeded
from ortopt.graph.facts import dims_of
from ortopt.instrumentation.graph_snapshot import op_of, shape_text, type_text
from ortopt.instrumentation.module_paths import paths_of_nodes
from ortopt.options import Options
from ortopt.serialization.load import load
from ortopt.system import memory
from ortopt.terminal_text import node_name
from ortopt.verification.comparison import Comparison, OutputRow
from ortopt.verification.doubtful_outputs import STEPS_CAP
from ortopt.verification.input_sets import inputs_from
from ortopt.verification.joined_values import MAX_NAMED, Pair, join
from ortopt.verification.kernel_steps import kernel_steps
from ortopt.verification.layer_rows import LayerRow, Layers, by_layer, layer_of
from ortopt.verification.perturbed_outputs import PerturbedCopies
from ortopt.verification.process import WorkerError
from ortopt.verification.quantizers import quantized_outputs
from ortopt.verification.randomness import random_outputs
from ortopt.verification.reference_outputs import ReferenceOutputs
from ortopt.verification.result_comparison import ResultComparison
from ortopt.verification.runner import ModelRunner, Source
from ortopt.verification.tolerances import tolerances

BATCH_BYTES: Final = 1 << 28
"""Bytes of values that are fetched at a time."""

_SHARE: Final = 16
"""The part of the memory that they may take: the worker, its copies and the comparison hold them several times."""

_PREFIX: Final = "ortopt.layer:"
"""What the name of an output begins with that is no value of the model itself."""

_MAX_FAILURES: Final = 40
"""How many batches may fail to run before the search for what does not run is given up."""


class _Output(Struct, frozen=True):
    """What a pair is called as an output of both copies, and whether it is cast in the result.

    Attributes:
        name: The output's name.
        is_added: Whether a node is added that gives it.
        cast: The dtype that the result's is cast to; None where both are of one.
    """

    name: str
    is_added: bool
    cast: ir.DataType | None


@dataclass(eq=False)
class LayerComparison:
    """Compares the values of one result on one input set.

    Attributes:
        runner: Runs the models.
        original: The original, as its outputs were computed.
        result: The result, likewise.
        reference: The outputs of the original, on one input set.
        token: Cancellation token.
        spreading: Whether NaN and infinities may have spread.
        has_steps: Whether the result is right without rounding, so that steps of quantizers excuse more.
    """

    runner: ModelRunner
    original: Source
    result: Source
    reference: ReferenceOutputs
    token: CancellationToken = NEVER
    _: KW_ONLY
    spreading: bool = False
    has_steps: bool = False

    def __post_init__(self) -> None:
        self._models = self.original, self.result
        ((self._number, self._set),) = self.reference.sets.items()
        self._joining = join(self.original, self.result, self.token)
        self._errors: dict[ir.Value, OutputRow] = {}
        self._not_run: list[str] = []
        self._batches = 0

    def run(self) -> Layers:
        """Compare.

        Raises:
            OptimizationCancelled: The token was set.
        """
        pending = list(reversed(self._parts()))
        failures = 0
        while pending:
            pairs = pending.pop()
            failed = self._compare(pairs)
            if failed is None:
                continue
            failures += 1
            if len(pairs) > 1 and failures < _MAX_FAILURES:
                middle = len(pairs) // 2
                pending += [pairs[middle:], pairs[:middle]]
                continue
            self._not_run += [pair.original.name or "" for pair in pairs if pair.original not in self._errors]
            if failed == "result":
                self._not_run += [pair.original.name or "" for part in reversed(pending) for pair in part]
                break
        return self._described()

    # -- parts that fit into the memory ------------------------------------------------------------------------------

    def _parts(self) -> list[tuple[Pair, ...]]:
        """The pairs in parts of no more bytes than may be fetched at a time; one that is larger alone."""
        left = memory.remaining()
        most = BATCH_BYTES if left is None else min(BATCH_BYTES, left // _SHARE)
        sizes = self._sizes()
        unknown = max(sizes.values(), default=0)
        parts: list[list[Pair]] = []
        nbytes = most + 1
        for pair in self._joining.pairs:
            size = sizes.get(pair.original.name or "", unknown)
            if nbytes + size > most:
                parts.append([])
                nbytes = 0
            parts[-1].append(pair)
            nbytes += size
        return [tuple(part) for part in parts]

    def _sizes(self) -> dict[str, int]:
        """The bytes of the original's values with these inputs, as far as they are known."""
        model = load(self._models[0], self.token, checked=False)
        feeds = inputs_from(self._set.source)
        for value in model.graph.inputs:
            array = feeds.get(value.name or "")
            if isinstance(array, np.ndarray):
                value.shape = ir.Shape(array.shape)
        scope.attach(model, Options(), self.token)
        infer_model(model, self.token)
        sizes = {}
        for node in model.graph:
            for value in node.outputs:
                dims = dims_of(value)
                if dims is not None and value.dtype is not None and all(isinstance(dim, int) for dim in dims):
                    elements = math.prod(dim for dim in dims if isinstance(dim, int))
                    sizes[value.name or ""] = elements * max(1, value.dtype.bitwidth // 8)
        return sizes

    # -- one part ----------------------------------------------------------------------------------------------------

    def _compare(self, pairs: Sequence[Pair]) -> Literal["original", "result"] | None:
        """Compare some values; which of the models does not run as far as that, or None.

        Args:
            pairs: The values; where one alone cannot be computed in the result, its row says why.
        """
        self._batches += 1
        prefix = f"layers{self._batches}-"
        names = {pair: _output_of(pair) for pair in pairs}
        original = self._copy(0, [(pair.original.name or "", names[pair], None) for pair in pairs])
        result = self._copy(1, [(pair.result.name or "", names[pair], names[pair].cast) for pair in pairs])
        try:
            reference = self._run_original(original, result, prefix)
            sets, is_quantized = reference.sets, bool(reference.quantized)
            copies = PerturbedCopies(self.runner, original, sets, is_quantized=is_quantized, prefix=f"{prefix}copy-")
            comparing = ResultComparison(self.runner, reference, copies, prefix, spreading=self.spreading)
            verdict = comparing.verdict(result)
        except WorkerError:
            return "original"
        finally:
            self._remove(prefix)
        rows = {row.name: row for row in verdict.outputs}
        if not rows and len(pairs) == 1:
            detail = f"the result cannot compute it: {verdict.reason}"
            rows[names[pairs[0]].name] = OutputRow("", math.inf, agrees=False, detail=detail)
        for pair in pairs if rows else ():
            self._errors[pair.original] = dataclasses.replace(rows[names[pair].name], name=pair.original.name or "")
        return None if verdict.outputs else "result"

    def _copy(self, which: int, wanted: Iterable[tuple[str, _Output, ir.DataType | None]]) -> ir.Model:
        """A copy of a model that computes some values and nothing else, and gives them as outputs."""
        model = load(self._models[which], self.token, checked=False)
        scope.attach(model, Options(), self.token)
        infer_model(model, self.token)
        graph = model.graph
        values = {value.name: value for node in graph for value in node.outputs}
        outputs = []
        for name, how, cast in wanted:
            value = values[name]
            if how.is_added:
                node = ir.node("Identity", [value]) if cast is None else ir.node("Cast", [value], {"to": cast.value})
                value, shape = node.outputs[0], value.shape
                value.name, value.shape = how.name, shape
                value.type = values[name].type if cast is None else ir.TensorType(cast)
                graph.append(node)
            outputs.append(value)
        graph.outputs[:] = outputs
        remove_unneeded(graph)
        return model

    def _run_original(self, original: ir.Model, result: ir.Model, prefix: str) -> ReferenceOutputs:
        """The original's values, with how they are compared.

        Raises:
            WorkerError: It does not run.
        """
        with self.runner.worker(original, f"{prefix}original") as worker:
            target = self.runner.place(f"{prefix}out")
            rows = worker.run(self._set.source, target)
            names, types = tuple(worker.names), tuple(worker.types)
            inputs = self._set.with_outputs(target, rows)
            inputs.seconds = worker.seconds
        given = self.reference.comparison
        is_given = given.rtol is not None or given.atol is not None
        quantized = frozenset() if is_given else quantized_outputs(original, self.token)
        usual, others = tolerances(original, self.token), tolerances(result, self.token)
        comparison = Comparison(
            {name: max(tolerance, others.get(name, 0.0)) for name, tolerance in usual.items()},
            random_outputs(original, self.token),
            given.rtol,
            given.atol,
            dict.fromkeys(quantized, STEPS_CAP) if self.has_steps else {},
            kernel_steps(original),
        )
        return dataclasses.replace(
            self.reference,
            names=names,
            types=types,
            sets={self._number: inputs},
            comparison=comparison,
            wanted=frozenset(names),
            quantized=quantized,
        )

    def _remove(self, prefix: str) -> None:
        """Remove the files of one part: the next needs their room."""
        for path in self.runner.folder.glob(f"{prefix}*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):  # another system keeps what is still mapped until the end
                    Path(path).unlink()

    # -- what came of it ---------------------------------------------------------------------------------------------

    def _described(self) -> Layers:
        joining = self._joining
        graph, errors, modules = joining.original.graph, self._errors, paths_of_nodes(joining.original)
        made_up_for = _made_up_for(graph, errors)
        differing = {value for value, error in errors.items() if not error.agrees} - made_up_for
        behind = _behind(graph, differing)
        rows = [
            dataclasses.replace(
                _row(pair, errors[pair.original], modules),
                is_made_up_for=pair.original in made_up_for,
                begins=pair.original in differing - behind,
            )
            for pair in joining.pairs
            if pair.original in errors
        ]
        first = next((row for row in rows if row.differs), None)
        return Layers(
            tuple(rows),
            first,
            () if first is None else tuple(self._agreeing(first.value)),
            tuple(by_layer(rows)),
            joining.original_values,
            joining.result_values,
            sum(row.joined_by == "name" for row in rows),
            sum(row.joined_by == "origin" for row in rows),
            joining.nested,
            joining.unlike,
            tuple(self._not_run),
            self._batches,
            self._set.label,
        )

    def _agreeing(self, name: str) -> Iterator[str]:
        """The nearest values that were compared, of those that a value is computed from."""
        value = next(value for value in self._errors if value.name == name)
        pending, seen, count = list(_operands(value.producer())), {value}, 0
        while pending and count < MAX_NAMED:
            operand = pending.pop(0)
            if operand in seen:
                continue
            seen.add(operand)
            if operand in self._errors:
                count += 1
                yield operand.name or ""
            else:
                pending += _operands(operand.producer())


def _output_of(pair: Pair) -> _Output:
    """What a pair is called: by its name where both models have it, and have it in one dtype."""
    name, types = pair.original.name or "", (pair.original.dtype, pair.result.dtype)
    is_cast = types[0] != types[1] and all(dtype is not None and dtype.is_floating_point() for dtype in types)
    is_added = is_cast or name != pair.result.name
    return _Output(f"{_PREFIX}{name}" if is_added else name, is_added, types[0] if is_cast else None)


def _operands(node: ir.Node | None) -> list[ir.Value]:
    """What a node reads, with what the graphs below it read."""
    return [] if node is None else [value for value in (*node.inputs, *scope.captured(node)) if value is not None]


def _made_up_for(graph: ir.Graph, errors: Mapping[ir.Value, OutputRow]) -> set[ir.Value]:
    """The values that differ, and have one that agrees on every way to an output."""
    reaching = {value for value in graph.outputs if value not in errors or not errors[value].agrees}
    for node in reversed(graph):
        if not reaching.isdisjoint(node.outputs):
            reaching.update(value for value in _operands(node) if value not in errors or not errors[value].agrees)
    return {value for value, error in errors.items() if not error.agrees and value not in reaching}


def _behind(graph: ir.Graph, differing: set[ir.Value]) -> set[ir.Value]:
    """The values that are computed from some of those that differ."""
    behind: set[ir.Value] = set()
    for node in graph:
        if any(value in behind or value in differing for value in _operands(node)):
            behind.update(node.outputs)
    return behind


def _row(pair: Pair, error: OutputRow, modules: Mapping[ir.Node, Sequence[str]]) -> LayerRow:
    node, other = pair.original.producer(), pair.result.producer()
    assert node is not None
    assert other is not None
    path = modules.get(node, ())
    return LayerRow(
        pair.original.name or "",
        pair.result.name or "",
        op_of(node),
        op_of(other),
        node_name(node),
        layer_of(path),
        "/".join(path),
        type_text(pair.original),
        shape_text(pair.original),
        pair.by,
        "" if pair.record is None else pair.record.transformer,
        () if pair.record is None else pair.record.origins,
        error,
    )
