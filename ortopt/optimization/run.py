"""`Optimization`: one run, phase by phase, from the source to the result."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeAlias

import onnx_ir as ir

from ortopt import registry
from ortopt.analysis import dimensions, releases, targets
from ortopt.analysis import providers as execution
from ortopt.analysis.costs import Cost
from ortopt.analysis.load_time_fusions import slow_residuals
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError, OptimizationCancelled, TransformerError, VerificationError
from ortopt.framework import fusions
from ortopt.framework.workspace import NO_GROWTH
from ortopt.graph import scope
from ortopt.graph.names import check_names, rename
from ortopt.instrumentation.check_each import CheckEach
from ortopt.interface.ports import changed
from ortopt.observers import HistoryEntry, Observer
from ortopt.optimization.pipeline import Pipeline
from ortopt.optimization.replay import StopPointReached
from ortopt.optimization.result import CostRefusal, OptimizeResult, PassTotal, Repair, SizeRefusal, Summary, figures
from ortopt.optimization.transformation import Transformation
from ortopt.optimization.user_rules import UserRules
from ortopt.options import Numerics, Options
from ortopt.serialization.load import held
from ortopt.transformer import GraphTransformer

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from ortopt.instrumentation.lineage import Lineage
    from ortopt.optimization.bisection import Blame
    from ortopt.optimization.missing_providers import NotShown
    from ortopt.serialization.load import HoldsModel
    from ortopt.serialization.save import ExternalData, Saved
    from ortopt.verification.verify import Reference, Verification

Source: TypeAlias = "str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto | ir.Model | HoldsModel"


class Optimization:
    """One run, phase by phase; `ortopt.optimize` in pieces, for callers that do something in between.

    Args:
        source: The model.
        options: Options of the run.
        transformers: Transformers beside the installed ones.
        observers: Observers of the run.
        cancellation: Cancellation token.

    Attributes:
        before: The size of the original.
        required: The runtimes that can load the original.
        seconds: Seconds by phase.
        verification: How the result compares with the original; None before it is verified.
        saved: What `run` has written where, if it has.
        repairs: What was left out because the result differed.
        is_thorough: Whether many more input sets are verified.
        not_shown: What of the result could not be run here, because a provider is not here.

    Raises:
        UsageError: If a name or a pipeline makes no sense.
        InvalidModelError: If the model is broken.
        OptimizationCancelled: If it was stopped while it loaded.
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
        self.token = cancellation or CancellationToken()
        if options.timeout is not None:
            self.token = _with_deadline(self.token, options.timeout)
        # what is no list is refused by `select`, in words
        own = tuple(transformers) if isinstance(transformers, Iterable) else transformers
        self.selected = registry.select(options, own)
        if options.force_forms:  # all passes are imported for that
            fusions.check_taken(options, (op for kind in registry.installed() for op in getattr(kind, "produces", ())))
        self._own = UserRules(own)
        self.observers = (*observers, *self._own.observers)
        if options.limit is not None:
            from ortopt.optimization.replay import RewriteLimit

            self.observers += (RewriteLimit(options.limit),)
        if options.check_each:
            self.observers += (CheckEach(token=self.token),)
        self.seconds: dict[str, float] = {}
        # A stream can be read once only, but verification needs the original again.
        self._original: Source = source.read() if hasattr(source, "read") else held(source)
        pipeline = Pipeline(self._original, options, self.selected)
        with self._timed("load"):  # whose end no deadline cuts: there is no model to return before
            self._transformation = Transformation(pipeline, self.observers, self.token)
            self.before = pipeline.figures or figures(self.model, self.token.with_timeout(None))
            self.required = releases.requirement(self.model, self.token.with_timeout(None))
        check_names(self.model, options.rename, self.token.with_timeout(None))
        pipeline.original_bytes = self.before.nbytes
        self.verification: Verification | None = None
        self.saved: Saved | None = None
        self.repairs: list[Repair] = []
        self._prepared: Reference | None = None
        self._inputs: Mapping[str, np.ndarray] | None = None
        self._named = False
        self.is_thorough = False
        self.not_shown: NotShown | None = None

    @property
    def model(self) -> ir.Model:
        """The model that has been reached."""
        return self._transformation.model

    @property
    def stopped(self) -> bool:
        """Whether the deadline ended the run."""
        return self._transformation.stopped

    def run(
        self,
        *,
        verify: bool | Literal["thorough"] = True,
        require_verified: bool = False,
        layers: bool = False,
        inputs: Mapping[str, np.ndarray] | None = None,
        save_to: str | os.PathLike[str] | BinaryIO | None = None,
        external_data: ExternalData = "auto",
        metadata: Mapping[str, str] = MappingProxyType({}),
        phase: Callable[[str], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> OptimizeResult:
        """Transform, verify, repair, name, save: the one conductor of a run.

        Args:
            verify: Whether to run the result against the original, and how thoroughly.
            require_verified: Whether a result that could not be verified is an error.
            layers: Whether intermediate values are compared, too, where the result differs: `verification` has them.
            inputs: Inputs to verify with.
            save_to: The file or stream that the result is written to.
            external_data: Where its weights go.
            metadata: Metadata that it has beside the original's.
            phase: Called with ``optimize``, ``verify`` and ``save``: each runs inside of what it returns.

        Returns:
            The result.

        Raises:
            VerificationError: If it differs from the original; nothing has been written then, and `result` tells what
                has been done.
            TransformerError: If a transformer raised, with `Options.strict`.
            OutputError: If it cannot be written.
            OptimizationCancelled: If it was stopped.
        """
        with contextlib.closing(self):
            self.is_thorough = verify == "thorough"
            inputs = self._given(inputs)
            if verify:
                self.begin_verification(inputs)
            left: Callable[[], OptimizeResult] = self.result
            try:
                with phase("optimize"):
                    self.transform()
                if verify:
                    left = self._original_as_result  # what is not verified may be wrong: the original is not
                    with phase("verify"):
                        outcome = self.verify(inputs, layers=layers)
                    if require_verified and (unmet := self._unmet()):
                        raise VerificationError(f"{unmet[0]} (--strict)")
                    if require_verified and outcome.status != "verified":
                        raise VerificationError(f"the result could not be verified: {outcome.reason} (--strict)")
                if save_to is not None:
                    with phase("save"), self._timed("save"):
                        self._save(save_to, external_data, metadata)
                result = self.result(self.verification, self.token.with_timeout(None))
            except OptimizationCancelled as cancelled:
                cancelled.leave(left)
                raise
        for message in self._own.warnings(result.repairs):
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        return result

    def _save(
        self, to: str | os.PathLike[str] | BinaryIO, external_data: ExternalData, metadata: Mapping[str, str]
    ) -> None:
        from ortopt.optimization.formats import save_as

        self.name_interface()
        self.model.metadata_props.update(metadata)
        provenance, libraries = self.options.provenance, self.options.custom_op_libraries
        self.saved = save_as(self.model, to, external_data=external_data, provenance=provenance, libraries=libraries)

    def begin_verification(self, inputs: Mapping[str, np.ndarray] | None = None) -> None:
        """Start running the original in a process of its own, so that `verify` has less to do; `close` ends it.

        Where that is not possible, nothing happens: `verify` then does it all.

        Args:
            inputs: As `verify` takes them.
        """
        self._inputs = inputs
        fixed = self.options.dims or self.options.input_shapes or self._transformation.pipeline.changes
        readable = self._transformation.pipeline.is_readable
        if fixed or not readable or not isinstance(self._original, str | os.PathLike):
            return
        self._prepared = self.reference(inputs)
        self._prepared.begin(self.model)

    def close(self) -> None:
        """End what `begin_verification` started, if `verify` has not used it."""
        if self._prepared is not None:
            self._prepared.close()
            self._prepared = None

    def _original_as_result(self) -> OptimizeResult:
        self._transformation.go_back(0)
        return self.result()

    def transform(self) -> None:
        """Apply the levels, in place.

        Raises:
            InvalidModelError: If the original does not run in the sizes that are asked for.
            TransformerError: If a transformer raised, with `Options.strict`.
            OptimizationCancelled: If it was stopped; `model` is valid and holds what was completed.
        """
        if self._transformation.pipeline.resized:
            self._require_running()
        with self._timed("optimize"):
            self._transformation.execute(self.token)

    def _require_running(self) -> None:
        """Refuse sizes with which the original does not run although it does with its own.

        The original in the new sizes, once it has run, is what `verify` compares with.
        """
        from ortopt.optimization.resizing import check_sizes

        with self._timed("verify"):
            if all(execution.usable(provider)[0] for provider in self.options.providers):
                self._prepared = self.reference(self._inputs)
                check_sizes(self._prepared, self._transformation.pipeline, self.options.providers, self.token)
                return
            with self.reference(self._inputs, (execution.CPU,)) as reference:
                check_sizes(reference, self._transformation.pipeline, (execution.CPU,), self.token)

    def verify(self, inputs: Mapping[str, np.ndarray] | None = None, *, layers: bool = False) -> Verification:
        """Run the result against the original under ONNX Runtime without optimization, and repair it if it differs.

        Args:
            inputs: Inputs by name; seeded ones if None.
            layers: Whether intermediate values are compared, too, where they differ.

        Returns:
            How they compare.

        Raises:
            VerificationError: If they differ, and it could not be repaired.
            OptimizationCancelled: If it was stopped during the repair.
        """
        from ortopt.optimization.repair import Repairer

        not_repaired = ""
        with self._timed("verify"), self.reference(inputs) as reference:
            self.not_shown = self._not_shown()
            if self.not_shown is not None:
                outcome = self._verified_without(reference)
            else:
                repairer = Repairer(self._transformation, reference, self.repairs, self.token)
                outcome = repairer.verified()
                not_repaired = repairer.not_repaired
                if layers and outcome.status == "differs":
                    outcome = dataclasses.replace(outcome, layers=reference.layers(self.model, outcome))
            if outcome.status != "differs" and self._transformation.pipeline.changes:
                from ortopt.optimization.adapter_check import check_adapters

                check_adapters(
                    reference, self._transformation.pipeline, execution.here(self.options.providers), self.token
                )
        self.verification = outcome
        if outcome.status == "differs":
            raise VerificationError(f"the result differs from the original: {outcome.reason}{not_repaired}")
        return outcome

    def _not_shown(self) -> NotShown | None:
        """What of the result cannot run here, because a provider is not here."""
        if not execution.missing(self.options.providers):
            return None
        from ortopt.optimization import missing_providers

        return missing_providers.not_shown(self.model, execution.here(self.options.providers))

    def _verified_without(self, reference: Reference) -> Verification:
        """Compare what the same passes make without those whose ops cannot run here; the result itself is not shown.

        What makes that model differ is left out of the result, too.
        """
        from ortopt.optimization import missing_providers
        from ortopt.optimization.repair import Repairer

        result, hidden = self._transformation, self.not_shown
        assert hidden is not None
        makers = set(hidden.transformers)
        while True:
            other = Transformation(result.pipeline, (), self.token, result.left_out | makers, result.without)
            other.execute(self.token)
            more = missing_providers.not_shown(other.model, execution.here(self.options.providers))
            if more is None or makers.issuperset(more.transformers):
                break
            makers.update(more.transformers)
        count = len(self.repairs)
        outcome = Repairer(other, reference, self.repairs, self.token).verified()
        if len(self.repairs) > count:
            result.left_out |= other.left_out - makers
            result.without |= other.without
            result.restart()
            result.execute(self.token)
        if outcome.status == "verified":
            self.not_shown = dataclasses.replace(hidden, transformers=tuple(sorted(makers)), without=True)
            return dataclasses.replace(outcome, status="not shown", reason=str(self.not_shown))
        return outcome

    def blame(self, inputs: Mapping[str, np.ndarray] | None = None) -> Blame | None:
        """Find the first rewrite after which the result of `transform` differs from the original; repair nothing.

        Args:
            inputs: Inputs by name; seeded ones if None.

        Returns:
            The rewrite and the models around it; None where nothing differs (`verification` says how it compares).

        Raises:
            VerificationError: If it differs, but no rewrite can be blamed.
            OptimizationCancelled: If it was stopped.
        """
        from ortopt.optimization.repair import Repairer

        with self._timed("verify"), self.reference(self._given(inputs)) as reference:
            repairer = Repairer(self._transformation, reference, self.repairs, self.token)
            self.verification = repairer.compared()
            return repairer.blame(self.verification) if self.verification.status == "differs" else None

    def reference(
        self, inputs: Mapping[str, np.ndarray] | None = None, providers: Sequence[str] | None = None
    ) -> Reference:
        """The original to compare results with, which the caller closes; the one of `begin_verification`, once.

        Args:
            inputs: Inputs by name; seeded ones if None.
            providers: What runs it; those of the options if None.
        """
        from ortopt.optimization.resizing import name_nodes
        from ortopt.verification import runtimes
        from ortopt.verification.inputs import Interface
        from ortopt.verification.verify import Reference

        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            if inputs is None or inputs is self._inputs:
                return prepared
            prepared.close()
        original = self._original
        source: Path | ir.Model
        interface: Interface | None = None
        dims, shapes = self.options.dims, self.options.input_shapes
        sizes = dict(dims)
        pipeline = self._transformation.pipeline
        is_as_filed = pipeline.is_readable and not (dims or shapes or pipeline.changes)
        if not is_as_filed or not isinstance(original, str | os.PathLike):
            source = pipeline.original(self.token.with_timeout(None))
            if dims or shapes:
                interface = Interface(source, self.token.with_timeout(None), shapes)
                sizes = dimensions.sizes_of_symbols(source, dims, shapes)
                if dimensions.override(source, dims, shapes):
                    name_nodes(source)
        elif Path(original).is_file():
            source = Path(original)
        else:
            raise InvalidModelError(f"{original}: the file has gone")
        deployed_on = dict.fromkeys((*self.options.providers, *targets.providers_of(self.options.target)))
        return Reference(
            source,
            inputs=inputs,
            sizes=sizes,
            interface=interface,
            nonempty=self._transformation.pipeline.nonempty,
            thorough=self.is_thorough,
            providers=execution.here(self.options.providers if providers is None else providers),
            rtol=self.options.rtol,
            atol=self.options.atol,
            libraries=self.options.custom_op_libraries,
            runtimes=[runtimes.find(text, self.token, deployed_on) for text in self.options.verify_with],
            token=self.token,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the caller should know of the result: what was asked for has a price, or is not all in our hands."""
        outcome = self.verification
        theirs = (outcome.not_as_deployed,) if outcome is not None and outcome.not_as_deployed else ()
        copied = (self.saved.not_reused,) if self.saved is not None and self.saved.not_reused else ()
        return (*theirs, *self._unmet(), *self._not_for_target(), *self._prices(), *copied)

    def _given(self, inputs: Mapping[str, np.ndarray] | None) -> Mapping[str, np.ndarray] | None:
        """Inputs that were given for the original, as the result takes them."""
        changes = self._transformation.pipeline.changes
        if inputs is None or not changes:
            return inputs
        given = dict(inputs)
        for change in changes:
            given = change.given(given)
        return type(inputs)(given)  # type: ignore[call-arg]

    def _unmet(self) -> tuple[str, ...]:
        """Why the result is not for the oldest ONNX Runtime that was asked for."""
        least = self.options.min_onnxruntime
        if least is None:
            return ()
        reasons = releases.unmet(self.model, least, self.token.with_timeout(None))
        return tuple(f"--min-onnxruntime {releases.shown(least)} cannot be met: {reason}" for reason in reasons)

    def _not_for_target(self) -> tuple[str, ...]:
        """Why the runtime that the result is for does not take it, or not all of it."""
        declared = targets.of(self.options.target)
        if declared is None:
            return ()
        return tuple(
            f"--target {self.options.target.value}: {reason}" for reason in targets.unmet(self.model, declared)
        )

    def _prices(self) -> tuple[str, ...]:
        if not self.options.value_info or execution.CPU not in self.options.providers:
            return ()
        joined = sum(1 for _ in slow_residuals(self.model, self.token.with_timeout(None)))
        if not joined:
            return ()
        return (
            f"ONNX Runtime joins {joined} Add with the LayerNormalization behind it when it loads the model, for it now"
            " knows their shapes: that kernel is slower on the CPU (leave out --value-info)",
        )

    def name_interface(self) -> None:
        """Give inputs and outputs the names that `Options.rename` asks for: the last thing before the model is used.

        All that comes before, inputs to verify with among it, speaks of them as the original does.
        """
        if self.options.rename and not self._named:
            rename(self.model, self.options.rename, self.token.with_timeout(None))
        self._named = True

    def model_before(self, failure: TransformerError) -> ir.Model:
        """The model as a transformer that failed found it.

        Args:
            failure: From `Summary.failures`.
        """
        transformation = self._transformation
        left_out = transformation.left_out - {failure.transformer}
        return transformation.replay(left_out=left_out, besides=[_StopBefore(failure)]).model

    def result(self, verification: Verification | None = None, token: CancellationToken = NEVER) -> OptimizeResult:
        """The result so far.

        Args:
            verification: How it compares with the original.
            token: Cancellation token.
        """
        self.name_interface()
        run = self._transformation
        entries: dict[str, list[HistoryEntry]] = {}
        for entry in run.manager.history:
            entries.setdefault(entry.transformer, []).append(entry)
        kinds = {chosen.transformer.name: chosen.transformer for chosen in run.pipeline.selected}
        finite = {name for name, numerics in run.state.numerics if numerics is Numerics.FINITE}  # for some matches
        passes = [
            PassTotal(
                name,
                rewrites,
                sum(one.seconds for one in own),
                sum(one.visits for one in own),
                Numerics.FINITE if name in finite else kinds[name].numerics,
                kinds[name].error_bound,
                sum((one.growth for one in own), NO_GROWTH),
            )
            for name, own in entries.items()
            if (rewrites := sum(one.rewrites for one in own))
        ]
        passes.sort(key=lambda total: (-total.rewrites, total.transformer))
        summary = Summary(
            self.before,
            figures(self.model, token),
            tuple(passes),
            dict(self.seconds),
            tuple(level.value for level in run.manager.bound_reached),
            (*run.failures, *run.manager.failures),
            run.state.offered,
            _size_refusals(run.state.too_large),
            releases.requirement(self.model, token),
            _cost_refusals(run.state.declined),
            self.required,
        )
        return OptimizeResult(
            self.model, run.manager.history, summary, verification, self.stopped, tuple(self.repairs),
            self.options.provenance, self._lineage(), None,
            () if verification is None else execution.here(self.options.providers), self.not_shown,
            changed(run.pipeline.ports, self.model, self.options),
        )  # fmt: skip

    def _lineage(self) -> Lineage | None:
        if not self.observers:
            return None
        from ortopt.instrumentation.lineage import Lineage

        return next((observer for observer in self.observers if isinstance(observer, Lineage)), None)

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started


def _size_refusals(too_large: Mapping[tuple[str, ir.Node], int]) -> tuple[SizeRefusal, ...]:
    sizes: dict[str, list[int]] = {}
    for (name, node), nbytes in too_large.items():
        if node.graph is not None:  # else it has gone later on, with others or by another pass
            sizes.setdefault(name, []).append(nbytes)
    return tuple(SizeRefusal(name, len(each), sum(each)) for name, each in sorted(sizes.items()))


def _cost_refusals(declined: Mapping[tuple[str, ir.Node], Cost]) -> tuple[CostRefusal, ...]:
    counts: dict[tuple[str, str, str, str], CostRefusal] = {}
    for (name, _), cost in declined.items():
        key = name, str(cost.form), cost.provider, cost.sizes
        counts[key] = CostRefusal(name, cost, counts[key].count + 1 if key in counts else 1)
    return tuple(refusal for _, refusal in sorted(counts.items()))


def _with_deadline(token: CancellationToken, timeout: float) -> CancellationToken:
    """A token that also expires after the timeout."""
    deadline = time.monotonic() + timeout
    token.deadline = deadline if token.deadline is None else min(token.deadline, deadline)
    return token


class _StopBefore(Observer):
    """Ends a run before a transformer fails.

    Args:
        failure: The failure.
    """

    decides = True

    def __init__(self, failure: TransformerError) -> None:
        self._failure = failure

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """Stop where the transformer failed."""
        failure = self._failure
        position = transformer.name, level, step, scope.label(graph)
        if position == (failure.transformer, failure.level, failure.step, failure.graph):
            raise StopPointReached
