"""`optimize`: a model in, an optimized and verified model out."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias

import onnx_ir as ir

from ortopt import registry, semantics
from ortopt.analysis import dimensions
from ortopt.analysis import providers as execution
from ortopt.cancellation import CancellationToken, DeadlinePassed
from ortopt.errors import InvalidModelError, OptimizationCancelled, TransformerError, UsageError, VerificationError
from ortopt.graph import scope
from ortopt.graph.load import load
from ortopt.graph.validate import validate
from ortopt.manager import GraphTransformerManager, HistoryEntry
from ortopt.observers import Observer, RewriteLimit
from ortopt.options import Options, Target, TransformerLevel
from ortopt.transformer import GraphTransformer, Workspace

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from ortopt.verify import Reference, Verification

Source: TypeAlias = "str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto | ir.Model"

MOST_ROUNDS = 10
"""How often levels 2 to 4 run again while level 4 changes something, as in ONNX Runtime's session."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFigures:
    """The size of a model.

    Attributes:
        ops: Node count by op, as ``Add`` or ``com.microsoft::Gelu``; subgraphs and functions included.
        initializers: How many constants, Constant nodes apart.
        nbytes: Bytes of all constants, Constant nodes included.
        functions: How many local functions.
    """

    ops: Mapping[str, int]
    initializers: int
    nbytes: int
    functions: int

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return sum(self.ops.values())


@dataclasses.dataclass(frozen=True, slots=True)
class PassTotal:
    """What one transformer did in a whole run.

    Attributes:
        transformer: Its name.
        rewrites: How many rewrites it made.
        seconds: How long it ran.
        visits: How many nodes a rule was offered.
    """

    transformer: str
    rewrites: int
    seconds: float
    visits: int


@dataclasses.dataclass(frozen=True, slots=True)
class SizeRefusal:
    """What one transformer left as it is because the file would have grown by more than it may.

    Attributes:
        transformer: Its name.
        count: How many candidates.
        nbytes: What they would have added in all.
    """

    transformer: str
    count: int
    nbytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What a run did.

    Attributes:
        before: The size of the original.
        after: The size of the result.
        passes: Totals by transformer, the most rewrites first; those that did nothing left out.
        seconds: Seconds by phase: ``load``, ``optimize``, ``verify``.
        bound_reached: The levels whose fixed-point loop ended at its bound.
        failures: Transformers that raised and were left out, with the reasons.
        rewrites: How many rewrites were offered.
        too_large: What transformers left as it is because the file would have grown too much.
    """

    before: ModelFigures
    after: ModelFigures
    passes: tuple[PassTotal, ...]
    seconds: Mapping[str, float]
    bound_reached: tuple[int, ...]
    failures: tuple[TransformerError, ...]
    rewrites: int
    too_large: tuple[SizeRefusal, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class OptimizeResult:
    """What `optimize` returns.

    Attributes:
        model: The optimized model.
        history: Every run of every transformer.
        summary: What changed.
        verification: How the result compares with the original; None if it was not asked for.
        stopped: Whether the deadline cut the run short.
    """

    model: ir.Model
    history: tuple[HistoryEntry, ...]
    summary: Summary
    verification: Verification | None = None
    stopped: bool = False

    @property
    def verified(self) -> bool:
        """Whether the result has been run against the original and agrees."""
        return self.verification is not None and self.verification.status == "verified"

    def save(
        self, path: str | os.PathLike[str], *, external_data: Literal["auto", "inline", "copy", "reuse"] = "auto"
    ) -> None:
        """Write the model, atomically.

        Args:
            path: Where to.
            external_data: Where weights go: inside the file, copied beside it, or left in the original's files.

        Raises:
            OutputError: If it cannot be written.
        """
        from ortopt.graph.save import save

        save(self.model, Path(path), external_data=external_data)


def optimize(
    model: Source,
    *,
    level: int = 3,
    providers: Sequence[str] = ("cpu",),
    target: Literal["onnx", "ort"] = "ort",
    native: bool = False,
    opset: int | None = None,
    dims: Mapping[str, int] | None = None,
    disable: Sequence[str] = (),
    enable: Sequence[str] = (),
    only: Sequence[str] = (),
    passes: str | None = None,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    limit: int | None = None,
    max_growth: int | None = None,
    steps: int = 10,
    timeout: float | None = None,
    verify: bool = True,
    inputs: Mapping[str, np.ndarray] | None = None,
    strict: bool = True,
    provenance: bool = False,
    keep_functions: bool = False,
    transformers: Iterable[GraphTransformer] = (),
    observers: Iterable[Observer] = (),
    cancellation: CancellationToken | None = None,
) -> OptimizeResult:
    """Optimize a model; what was given is never changed.

    Args:
        model: A path, the bytes of a file, a binary stream, an `onnx.ModelProto` or an `ir.Model`.
        level: 0 to 4.
        providers: Execution providers in order of preference: ``"cpu"``, ``"cuda"``, or ONNX Runtime's names.
        target: ``"onnx"`` keeps to the official opsets, ``"ort"`` may use contrib ops.
        native: Whether the result may be tied to this very processor.
        opset: Raise the opset of ai.onnx to this version.
        dims: Values for symbolic input dimensions, by name or denotation.
        disable: Transformers to leave out: ``NAME``, or ``NAME@LEVEL``.
        enable: Transformers to put in that are off unless asked for.
        only: If given, nothing else runs.
        passes: A pipeline spelled out, e.g. ``"constant_folding{max_growth=1MB},matmul_add_fusion"``.
        settings: Options of single transformers.
        limit: Stop after this many rewrites.
        max_growth: Bytes by which the file may grow; None is max(1 MB, 1 %).
        steps: The bound of each level's fixed-point loop.
        timeout: Seconds until the best so far is returned, marked `stopped`.
        verify: Whether to run the result against the original.
        inputs: Inputs to verify with, by name; seeded ones if None.
        strict: Whether a transformer that raises ends the run; else it is left out.
        provenance: Whether a saved file says which transformer made each node.
        keep_functions: Whether local functions stay functions.
        transformers: Transformers of your own, instances, beside the installed ones.
        observers: Who watches.
        cancellation: Who may stop it.

    Returns:
        The optimized model and what was done.

    Raises:
        UsageError: If an option makes no sense.
        InvalidModelError: If the model is broken.
        TransformerError: If a transformer raised, with `strict`.
        VerificationError: If the result differs from the original.
        OptimizationCancelled: If it was stopped; ``.result`` holds what was reached.
    """
    options = make_options(
        level=level,
        providers=tuple(providers),
        target=target,
        native=native,
        opset=opset,
        dims=dict(dims or {}),
        disable=tuple(disable),
        enable=tuple(enable),
        only=tuple(only),
        passes=passes,
        settings=dict(settings or {}),
        limit=limit,
        max_growth=max_growth,
        steps=steps,
        timeout=timeout,
        strict=strict,
        provenance=provenance,
        keep_functions=keep_functions,
    )
    return Optimization(model, options, transformers=transformers, observers=observers, cancellation=cancellation).run(
        verify=verify, inputs=inputs
    )


def make_options(**values: Any) -> Options:
    """Check and normalize options as `optimize` takes them.

    Raises:
        UsageError: If one makes no sense.
    """
    if values["level"] not in range(5):
        raise UsageError(f"the level must be 0 to 4, not {values['level']}")
    if values["target"] not in ("onnx", "ort"):
        raise UsageError(f"the target must be onnx or ort, not {values['target']!r}")
    if values["steps"] < 1:
        raise UsageError(f"steps must be at least 1, not {values['steps']}")
    if values.get("limit") is not None and values["limit"] < 0:
        raise UsageError(f"the limit must not be negative, but it is {values['limit']}")
    if values.get("timeout") is not None and not values["timeout"] > 0:
        raise UsageError(f"the timeout must be positive, not {values['timeout']}")
    if values["passes"] is not None and values["only"]:
        raise UsageError("give either a pipeline or a selection (only), not both")
    values["target"] = Target(values["target"])
    values["providers"] = tuple(dict.fromkeys(execution.normalize(name) for name in values["providers"]))
    if not values["providers"]:
        raise UsageError("at least one execution provider is needed")
    return Options(**values)


class Optimization:
    """One run, phase by phase; `optimize` in pieces for those who want to do something in between.

    Args:
        source: The model.
        options: What is wanted.
        transformers: Transformers beside the installed ones.
        observers: Who watches.
        cancellation: Who may stop it.

    Raises:
        UsageError: If a name or a pipeline makes no sense.
        InvalidModelError: If the model is broken.
    """

    def __init__(
        self,
        source: Source,
        options: Options,
        *,
        transformers: Iterable[GraphTransformer] = (),
        observers: Iterable[Observer] = (),
        cancellation: CancellationToken | None = None,
    ) -> None:
        self.options = options
        self.selected = registry.select(options, transformers)
        self.observers = tuple(observers)
        if options.limit is not None:
            self.observers += (RewriteLimit(options.limit),)
        self.token = cancellation or CancellationToken()
        if options.timeout is not None:
            self.token = _with_deadline(self.token, options.timeout)
        self.seconds: dict[str, float] = {}
        self.stopped = False
        # A stream can be read once only, but verification wants the original again.
        self._original: Source = source.read() if hasattr(source, "read") else source
        with self._timed("load"), _no_collection():
            self.model = load(self._original)
            self.before = figures(self.model)
        self._manager = self._make_manager()
        self._offered = 0
        self.verification: Verification | None = None
        self._reference: Reference | None = None
        self._too_large: dict[tuple[str, ir.Node], int] = {}

    def _make_manager(self) -> GraphTransformerManager:
        manager = GraphTransformerManager(
            self.options.steps,
            options=self.options,
            observers=self.observers,
            on_error="raise" if self.options.strict else "skip",
            keep_order=self.options.passes is not None,
        )
        for chosen in self.selected:
            for level in chosen.levels:
                manager.register(chosen.transformer, level)
        return manager

    def run(self, *, verify: bool = True, inputs: Mapping[str, np.ndarray] | None = None) -> OptimizeResult:
        """Transform, validate, verify.

        Args:
            verify: Whether to run the result against the original.
            inputs: Inputs to verify with.

        Returns:
            The result.
        """
        with contextlib.closing(self):
            if verify:
                self.begin_verification(inputs)
            try:
                self.transform()
            except OptimizationCancelled as cancelled:
                cancelled.result = self.result(None)
                raise
            return self.result(self.verify(inputs) if verify else None)

    def begin_verification(self, inputs: Mapping[str, np.ndarray] | None = None) -> None:
        """Let the original run, in a process of its own, while it is transformed here: `verify` has less to do then.

        Nothing happens, and nothing is lost, where that cannot be; whoever calls this calls `close` in the end.

        Args:
            inputs: As `verify` takes them.
        """
        from ortopt.verify import Reference

        original = self._original
        usable = all(execution.usable(provider)[0] for provider in self.options.providers)
        if self.options.dims or not isinstance(original, str | os.PathLike) or not usable:
            return
        self._reference = Reference(Path(original), inputs=inputs, providers=self.options.providers)
        self._reference.begin(self.model)

    def close(self) -> None:
        """End what `begin_verification` began."""
        if self._reference is not None:
            self._reference.close()
            self._reference = None

    def transform(self) -> None:
        """Apply the levels, in place.

        Raises:
            TransformerError: If a transformer raised, with `Options.strict`.
            OptimizationCancelled: If it was stopped; `model` is valid and holds what was completed.
        """
        options = self.options
        with self._timed("optimize"), _no_collection():
            if options.dims:
                dimensions.override(self.model, options.dims)
            if options.opset is not None:
                from ortopt import opset_conversion

                self.model = opset_conversion.convert(self.model, options.opset)
            if options.level == 0:
                validate(self.model)
                return
            allowance = semantics.growth_allowance(self.before.nbytes, options)
            workspace = Workspace(self.model, options, allowance)
            try:
                self._apply_levels(workspace)
            except DeadlinePassed:
                self.stopped = True
            finally:
                self._offered = workspace.offered
                self._too_large = workspace.too_large
            validate(self.model)

    def _apply_levels(self, workspace: Workspace) -> None:
        manager, token, top = self._manager, self.token, self.options.level
        manager.run(workspace, TransformerLevel.LEVEL1, token)
        for _ in range(MOST_ROUNDS):
            again = False
            for level in (TransformerLevel.LEVEL2, TransformerLevel.LEVEL3, TransformerLevel.LEVEL4):
                if level <= top:
                    again = manager.run(workspace, level, token)
            if top < TransformerLevel.LEVEL4 or not again:
                return

    def verify(self, inputs: Mapping[str, np.ndarray] | None = None) -> Verification:
        """Run the result against the original under ONNX Runtime without optimization.

        Args:
            inputs: Inputs by name; seeded ones if None.

        Returns:
            How they compare.

        Raises:
            VerificationError: If they differ. (Bisection and repair will step in here.)
        """
        from ortopt.verify import Reference

        for provider in self.options.providers:
            works, reason = execution.usable(provider)
            if not works:
                raise VerificationError(f"a result for {provider} cannot be verified here: {reason}")
        with self._timed("verify"):
            if self._reference is None:
                self._reference = Reference(self._reference_model(), inputs=inputs, providers=self.options.providers)
            try:
                outcome = self._reference.compare(self.model)
            finally:
                self.close()
        self.verification = outcome
        if outcome.status == "differs":
            raise VerificationError(f"the result differs from the original: {outcome.reason}")
        return outcome

    def _reference_model(self) -> Path | ir.Model:
        original = self._original
        if self.options.dims or not isinstance(original, str | os.PathLike):
            model = load(original)
            dimensions.override(model, self.options.dims)
            return model
        if not Path(original).is_file():
            raise InvalidModelError(f"{original}: the file has gone")
        return Path(original)

    def result(self, verification: Verification | None) -> OptimizeResult:
        """What has been reached so far."""
        totals: dict[str, list[float]] = {}
        for entry in self._manager.history:
            total = totals.setdefault(entry.transformer, [0, 0.0, 0])
            total[0] += entry.rewrites
            total[1] += entry.seconds
            total[2] += entry.visits
        passes = [PassTotal(name, int(t[0]), t[1], int(t[2])) for name, t in totals.items() if t[0]]
        passes.sort(key=lambda total: (-total.rewrites, total.transformer))
        summary = Summary(
            self.before,
            figures(self.model),
            tuple(passes),
            dict(self.seconds),
            tuple(level.value for level in self._manager.bound_reached),
            tuple(self._manager.failures),
            self._offered,
            self._size_refusals(),
        )
        return OptimizeResult(self.model, self._manager.history, summary, verification, self.stopped)

    def _size_refusals(self) -> tuple[SizeRefusal, ...]:
        sizes: dict[str, list[int]] = {}
        for (name, _), nbytes in self._too_large.items():
            sizes.setdefault(name, []).append(nbytes)
        return tuple(SizeRefusal(name, len(each), sum(each)) for name, each in sorted(sizes.items()))

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started


def figures(model: ir.Model) -> ModelFigures:
    """Count what a model holds. Linear in the nodes."""
    ops: Counter[str] = Counter()
    initializers = nbytes = 0
    for graph in scope.graphs(model):
        for value in graph.initializers.values():
            initializers += 1
            nbytes += value.const_value.nbytes if value.const_value is not None else 0
        for node in graph:
            ops[f"{node.domain}::{node.op_type}" if node.domain else node.op_type] += 1
            if node.op_type == "Constant" and not node.domain:
                tensor = semantics.constant_tensor(node.outputs[0])
                nbytes += tensor.nbytes if tensor is not None else 0
    return ModelFigures(dict(sorted(ops.items())), initializers, nbytes, len(model.functions))


def _with_deadline(token: CancellationToken, timeout: float) -> CancellationToken:
    """A token that is also expired once the timeout has passed."""
    deadline = time.monotonic() + timeout
    token.deadline = deadline if token.deadline is None else min(token.deadline, deadline)
    return token


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Without the cycle collector: it would walk the graph's millions of objects again and again, to free none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


__all__ = ["Optimization", "OptimizeResult", "Summary", "optimize"]
