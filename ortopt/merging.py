"""Merge two exports of a decoder, with and without past, into one model that shares their weights, as Optimum does."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError, VerificationError
from ortopt.graph import scope
from ortopt.graph.names import set_name
from ortopt.optimization.request import make_options, new_optimization
from ortopt.serialization.load import load
from ortopt.system.files import temporary_folder
from ortopt.terminal_text import one_line, quoted

if TYPE_CHECKING:
    from ortopt.serialization.load import Source
    from ortopt.serialization.save import Saved

BRANCH: Final = "use_cache_branch"
"""The input of one boolean that chooses: whether there is a past."""

_SETS: Final = 2
"""How many input sets each branch is verified on."""


@dataclasses.dataclass(frozen=True, slots=True)
class Merged:
    """A merged decoder.

    Attributes:
        model: The model; its weights are those of the originals, mapped.
        weights: How many weights both originals have together.
        verified: Whether both branches have been run against the originals and agree.
        reason: Why not, in words; empty if they were, or it was not asked for.
    """

    model: ir.Model
    weights: int
    verified: bool = False
    reason: str = ""

    def save(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        external_data: Literal["auto", "inline", "copy", "reuse"] = "auto",
    ) -> Saved:
        """Write it, atomically.

        Args:
            path: The file, or a binary stream.
            external_data: Where weights go, as `ortopt.extraction.Part.save` takes it.

        Raises:
            OutputError: If it cannot be written.
        """
        from ortopt.serialization.save import save

        return save(self.model, Path(path) if isinstance(path, str) else path, external_data=external_data)


def merge_decoders(
    decoder: Source, decoder_with_past: Source, *, verify: bool = True, cancellation: CancellationToken = NEVER
) -> Merged:
    """Merge a decoder and the same one with past into one model.

    The result has the inputs of both and ``use_cache_branch``, a boolean of shape [1]: where it is true, the decoder
    with past runs, else the other one, which reads no past, although one must be given. A weight that both have is
    stored once; none is an input that a caller may replace. What only the decoder without past gives, such as the keys
    of an encoder, is the past that was given.

    Args:
        decoder: A path, bytes, a stream or a model: the decoder for the first call.
        decoder_with_past: The one for those behind it.
        verify: Whether both branches are run against the originals.
        cancellation: Cancellation token.

    Raises:
        UsageError: If the two do not fit one another.
        InvalidModelError: If one is broken.
        VerificationError: If a branch differs from its original.
    """
    sources = [one.read() if hasattr(one, "read") else one for one in (decoder, decoder_with_past)]
    models = [load(source, cancellation) for source in sources]
    weights = sum(len(model.graph.initializers) for model in models)
    merged = _Merge(*models).model
    options = make_options(level=1, only=("constant_sharing",), max_growth=0)
    shared = new_optimization(merged, options, cancellation=cancellation).run(verify=False).model
    if not verify:
        return Merged(shared, weights)
    originals = [load(source, cancellation) for source in sources]
    reason = next(filter(None, _not_run(shared, originals, cancellation)), "")
    return Merged(shared, weights, not reason, reason)


class _Merge:
    """The merge of two models, which it takes apart.

    Args:
        first: The decoder without past.
        later: The one with past.

    Attributes:
        model: The merged one.

    Raises:
        UsageError: They do not fit one another.
    """

    def __init__(self, first: ir.Model, later: ir.Model) -> None:
        _check(first, later)
        self._inputs: dict[str, ir.Value] = {}
        for value in itertools.chain(first.graph.inputs, later.graph.inputs):
            if not value.is_initializer():
                self._add_input(value)
        branch = ir.Value(name=BRANCH, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.BOOL))
        self._initializers: dict[str, ir.Value] = {}
        outputs = [_both(value, _named(later.graph.outputs).get(value.name or "")) for value in first.graph.outputs]
        for value in (value for value in first.graph.outputs if value.name not in _named(later.graph.outputs)):
            _give_past(later.graph, value)
        later.graph.outputs[:] = [_named(later.graph.outputs)[value.name or ""] for value in first.graph.outputs]
        for model in (first, later):
            self._lift(model.graph)
        taken = {*self._inputs, *self._initializers, BRANCH, *(value.name for value in outputs)}
        for model, suffix in ((first, "no_past"), (later, "with_past")):
            model.graph.name = suffix
            _rename_inside(model.graph, taken, suffix)
        node = ir.node(
            "If",
            [branch],
            {"then_branch": later.graph, "else_branch": first.graph},
            outputs=outputs,
            name=f"{BRANCH}/If",
        )
        self.model = ir.Model(
            ir.Graph(
                [*self._inputs.values(), branch],
                outputs,
                nodes=[node],
                initializers=list(self._initializers.values()),
                opset_imports={**first.opset_imports, **later.opset_imports},
                name="merged",
            ),
            ir_version=max(first.ir_version, later.ir_version),
            producer_name=first.producer_name,
            functions=[*first.functions.values(), *later.functions.values()],
        )

    def _add_input(self, value: ir.Value) -> None:
        name = value.name or ""
        known = self._inputs.get(name)
        if known is None:
            self._inputs[name] = ir.Value(name=name, type=value.type, shape=value.shape, doc_string=value.doc_string)
        else:
            self._inputs[name].shape = _both(known, value).shape

    def _lift(self, graph: ir.Graph) -> None:
        """Let the nodes of a branch read the inputs and the weights of the graph around it."""
        given = [value for value in graph.inputs if not value.is_initializer()]
        graph.inputs.clear()
        for value in list(graph.initializers.values()):
            name = value.name or ""
            taken = {*self._initializers, *self._inputs}
            fresh = next(each for each in _numbered(name) if each not in taken)
            graph.initializers.pop(name)
            if fresh != name:
                set_name(value, fresh)
            self._initializers[fresh] = value
        for value in given:
            value.replace_all_uses_with(self._inputs[value.name or ""], replace_graph_outputs=True)
        inner = {value for node in graph for value in node.outputs}
        for index, value in enumerate(graph.outputs):
            if value not in inner or value in graph.outputs[:index]:  # a branch gives nothing of the graph around it
                copied = ir.node("Identity", [value])
                copied.outputs[0].name = value.name
                copied.outputs[0].type, copied.outputs[0].shape = value.type, value.shape
                graph.append(copied)
                graph.outputs[index] = copied.outputs[0]


def _check(first: ir.Model, later: ir.Model) -> None:
    """Refuse models that are not two exports of one decoder."""
    for domain in first.opset_imports.keys() & later.opset_imports.keys():
        versions = first.opset_imports[domain], later.opset_imports[domain]
        if versions[0] != versions[1]:
            raise UsageError(f"the decoders have opsets {versions[0]} and {versions[1]}: convert one with --opset")
    both = first.functions.keys() & later.functions.keys()
    if both:
        raise UsageError(f"both decoders have the local function {quoted(next(iter(both))[1])}: optimize them first")
    for kind, one, other in (
        ("input", first.graph.inputs, later.graph.inputs),
        ("output", first.graph.outputs, later.graph.outputs),
    ):
        for name in _named(one).keys() & _named(other).keys():
            types = _named(one)[name].type, _named(other)[name].type
            if types[0] != types[1]:
                raise UsageError(f"{kind} {quoted(name)} is {types[0]} in one decoder and {types[1]} in the other")
    if BRANCH in _named(first.graph.inputs) or BRANCH in _named(later.graph.inputs):
        raise UsageError(f"a decoder has the input {quoted(BRANCH)}: it is merged already")
    more = _named(later.graph.outputs).keys() - _named(first.graph.outputs).keys()
    if more:
        raise UsageError(f"only the decoder with past gives {quoted(min(more))}")
    for name in _named(first.graph.outputs).keys() - _named(later.graph.outputs).keys():
        if _past_of(name) not in _named(later.graph.inputs):
            raise UsageError(
                f"only the decoder without past gives {quoted(name)}, and the other takes no {quoted(_past_of(name))}"
            )
    if not _named(later.graph.inputs).keys() - _named(first.graph.inputs).keys():
        raise UsageError("the second decoder takes no past: name that without past first")


def _named(values: Any) -> dict[str, ir.Value]:
    return {value.name or "": value for value in values}


def _past_of(name: str) -> str:
    """The input that takes what an output gave in the call before, as Optimum names them."""
    return name.replace("present", "past_key_values", 1)


def _both(value: ir.Value, other: ir.Value | None) -> ir.Value:
    """A value as both branches have it: dimensions that they call otherwise have no name."""
    shape = value.shape
    if other is not None and shape is not None and other.shape is not None:
        shape = (
            ir.Shape([a if a == b else None for a, b in zip(shape.dims, other.shape.dims, strict=True)])
            if len(shape) == len(other.shape)
            else None
        )
    elif other is not None:
        shape = None
    return ir.Value(name=value.name, type=value.type, shape=shape, doc_string=value.doc_string)


def _give_past(graph: ir.Graph, output: ir.Value) -> None:
    """Let a decoder with past give what it does not compute: the past that it was given."""
    past = _named(graph.inputs)[_past_of(output.name or "")]
    node = ir.node("Identity", [past])
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = output.name, past.type, past.shape
    graph.append(node)
    graph.outputs.append(node.outputs[0])


def _numbered(name: str) -> Iterator[str]:
    return itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))


def _rename_inside(graph: ir.Graph, taken: set[str | None], suffix: str) -> None:
    """Give values of a branch names that the graph around it does not have."""
    inside = dict.fromkeys(value for below in scope.below(graph) for node in below for value in node.outputs)
    inside |= dict.fromkeys(value for below in scope.below(graph) if below is not graph for value in below.inputs)
    names = {value.name for value in inside}
    for value in inside:
        if value.name and value.name in taken:
            fresh = next(each for each in _numbered(f"{value.name}/{suffix}") if each not in names | taken)
            names.add(fresh)
            set_name(value, fresh)


def _not_run(merged: ir.Model, originals: list[ir.Model], token: CancellationToken) -> Iterator[str]:
    """Run each branch against its original; why it was not, for each."""
    import numpy as np

    from ortopt.analysis.providers import CPU
    from ortopt.verification.inputs import Interface
    from ortopt.verification.runner import ModelRunner
    from ortopt.verification.verify import Reference

    interfaces = [Interface(original, token) for original in originals]
    with temporary_folder("ortopt-merge-") as folder:
        runner = ModelRunner(Path(folder), (CPU,), token)
        with contextlib.closing(runner):
            for with_past, original in enumerate(originals):
                others: Mapping[str, Any] = interfaces[1 - with_past].draw()
                with Reference(original, token=token) as reference:
                    failure = reference.run()
                    if failure is not None:
                        yield one_line(failure.reason)
                        continue
                    for inputs, outputs, comparison in reference.kept_runs(_SETS):
                        got = runner.outputs(merged, {**others, **inputs, BRANCH: np.array([bool(with_past)])})
                        for (name, type_), expected in outputs.items():
                            row = comparison.of(name, type_, expected, got[name])
                            if not row.agrees:
                                branch = "with past" if with_past else "without past"
                                raise VerificationError(
                                    f"{branch}, the merged decoder differs: {quoted(name)}: {one_line(row.detail)}"
                                )


__all__ = ["BRANCH", "Merged", "merge_decoders"]
