"""A run with a conversion to 16 bits: levels 1 to 3 before it, verified against the original, and all levels behind it.

What comes before is verified against the original, what comes behind against the converted model, each at its own
bounds: the tolerance of the conversion, which is measured between the two, hides no wrong rewrite.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx_ir as ir
from msgspec import structs

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.half_precision.formats import BFLOAT16, Format
from ortopt.half_precision.rounded_copy import rounded_copy
from ortopt.observers import Observer
from ortopt.optimization.half_precision_conversion import (
    HalfPrecision,
    HalfPrecisionConversion,
    NamedNodes,
    format_of,
)
from ortopt.optimization.result import OptimizeResult, PassTotal, Summary
from ortopt.optimization.run import Optimization, Source
from ortopt.options import Numerics, Options, TransformerLevel
from ortopt.transformer import GraphTransformer
from ortopt.verification.runner import nbytes

NO_CHANGES: Final[dict[str, Any]] = {
    **{"opset": None, "dims": {}, "input_shapes": {}, "rename": {}, "rename_dims": {}},
    **{"keep_outputs": (), "drop_outputs": (), "int32_inputs": False, "image_inputs": {}, "dynamic_batch": None},
}
"""Options that change what a model is before the conversion, or what it is called behind it, and so only once."""

_LARGE: Final = 1 << 30
"""Bytes of weights in 16 bits from which a model does not run as it is."""

if TYPE_CHECKING:
    from ortopt.verification.verify import Reference, Verification


class HalfPrecisionOptimization(Optimization):
    """A run with a conversion; see `Optimization`.

    Attributes:
        half_precision: What became of the conversion; None before it.
    """

    def __init__(
        self,
        source: Source,
        options: Options,
        *,
        transformers: Iterable[GraphTransformer],
        observers: Iterable[Observer],
        cancellation: CancellationToken | None,
    ) -> None:
        self._asked = options
        self._both_runs: dict[str, Any] = {"transformers": tuple(transformers), "observers": tuple(observers)}
        self._behind: _RunBehind | None = None
        self._is_verified = False
        self.half_precision: HalfPrecision | None = None
        before = dataclasses.replace(options, level=min(options.level, TransformerLevel.LEVEL3))
        super().__init__(source, before, **self._both_runs, cancellation=cancellation)
        self._kept = NamedNodes(super().model, options.keep_float32)

    @property
    def model(self) -> ir.Model:
        """The model that has been reached."""
        return super().model if self._behind is None else self._behind.model

    @property
    def stopped(self) -> bool:
        """Whether the deadline ended the run, before or behind the conversion."""
        return super().stopped or (self._behind is not None and self._behind.stopped)

    def begin_verification(self, inputs: Mapping[str, np.ndarray] | None = None) -> None:
        """As `Optimization` does; the conversion waits for `verify`."""
        self._is_verified = True
        super().begin_verification(inputs)

    def close(self) -> None:
        """End what was begun."""
        super().close()
        if self._behind is not None:
            self._behind.close()

    def transform(self) -> None:
        """Apply the levels; without a verification convert, which measures nothing then, and apply them again.

        Raises:
            UsageError: If nothing in the model is, or was made from, what shall stay in float32.
        """
        super().transform()
        self._kept.among(super().model)  # what names nothing is said before anything is verified
        if not self._is_verified:
            self._convert(None, measured=False)

    def verify(self, inputs: Mapping[str, np.ndarray] | None = None, *, layers: bool = False) -> Verification:
        """Verify, convert, apply the levels again, and verify that against the converted model."""
        outcome = super().verify(inputs, layers=layers)
        self._convert(inputs, measured=True)
        assert self._behind is not None
        behind = self._behind.verify(self._inputs_behind(inputs), layers=layers)
        self.verification = behind if outcome.status == "verified" else outcome
        return self.verification

    def _convert(self, inputs: Mapping[str, np.ndarray] | None, *, measured: bool) -> None:
        with self._timed("convert"):
            token = self.token.with_timeout(None)
            conversion = HalfPrecisionConversion(super().model, self._asked, self._kept, token)
            if measured:
                conversion.measure(inputs)
            converted, self.half_precision = conversion.result()
        limit = self._asked.limit
        if limit is not None:
            limit = max(0, limit - self._transformation.state.offered)
        options = dataclasses.replace(self._asked, limit=limit, timeout=None, **NO_CHANGES)
        rounded = format_of(self._asked) if self._runs_as_a_copy(converted) else None
        self._behind = _RunBehind(converted, options, **self._both_runs, cancellation=self.token, rounded=rounded)
        self._behind.leave_out(self._transformation.left_out)
        self._behind.transform()

    def _runs_as_a_copy(self, converted: ir.Model) -> bool:
        """Whether what is behind the conversion is verified as rounded copies.

        That is where no CPU computes it, and where ONNX Runtime would cast all weights of a large model at once.
        """
        return format_of(self._asked) is BFLOAT16 or nbytes(converted) > _LARGE

    def _inputs_behind(self, inputs: Mapping[str, np.ndarray] | None) -> Mapping[str, np.ndarray] | None:
        """Inputs as the converted model takes them."""
        if inputs is None or not self._asked.float16_io:
            return inputs
        dtype = format_of(self._asked).dtype
        half = {value.name for value in self.model.graph.inputs if value.dtype == dtype}
        changed = {
            name: np.asarray(value).astype(dtype.numpy()) if name in half else value for name, value in inputs.items()
        }
        return type(inputs)(changed)  # type: ignore[call-arg]

    def result(self, verification: Verification | None = None, token: CancellationToken = NEVER) -> OptimizeResult:
        """The result so far: what was done before the conversion, and behind it."""
        before = super().result(verification, token)
        if self._behind is None:
            return before
        behind = self._behind.result(verification, token)
        return dataclasses.replace(
            before,
            model=behind.model,
            history=before.history + behind.history,
            summary=_together(before.summary, behind.summary, self.seconds),
            stopped=self.stopped,
            repairs=before.repairs + behind.repairs,
            half_precision=self.half_precision,
        )


class _RunBehind(Optimization):
    """The run behind the conversion; in a format in which copies are rounded, if any, it is verified as such."""

    def __init__(self, source: Source, options: Options, *, rounded: Format | None, **more: Any) -> None:
        super().__init__(source, options, **more)
        self._rounded = rounded

    def leave_out(self, names: Iterable[str]) -> None:
        """Run without transformers that were wrong before.

        Args:
            names: Their names.
        """
        self._transformation.left_out.update(names)

    def reference(
        self, inputs: Mapping[str, np.ndarray] | None = None, providers: Sequence[str] | None = None
    ) -> Reference:
        """The converted model to compare results with; a rounded copy runs on the CPU."""
        if self._rounded is None:
            return super().reference(inputs, providers)
        dtype = self._rounded.dtype
        from ortopt.verification.rendered_reference import RenderedReference

        def copy(model: ir.Model) -> ir.Model:
            return rounded_copy(model, dtype, self.token.with_timeout(None))

        original = self._transformation.pipeline.load(self.token.with_timeout(None))
        return RenderedReference(copy, original, inputs=inputs, thorough=self.is_thorough, token=self.token)


def _together(before: Summary, behind: Summary, seconds: Mapping[str, float]) -> Summary:
    """What both runs did."""
    totals: dict[str, PassTotal] = {}
    for total in (*before.passes, *behind.passes):
        one = totals.get(total.transformer)
        totals[total.transformer] = (
            total
            if one is None
            else structs.replace(
                total,
                rewrites=one.rewrites + total.rewrites,
                seconds=one.seconds + total.seconds,
                visits=one.visits + total.visits,
                numerics=Numerics.FINITE if one.numerics is Numerics.FINITE else total.numerics,
                growth=one.growth + total.growth,
            )
        )
    with contextlib.suppress(KeyError):
        seconds = {**seconds, "optimize": seconds["optimize"] + behind.seconds["optimize"]}
    return structs.replace(
        before,
        after=behind.after,
        passes=tuple(sorted(totals.values(), key=lambda total: (-total.rewrites, total.transformer))),
        seconds=seconds,
        bound_reached=tuple(dict.fromkeys((*before.bound_reached, *behind.bound_reached))),
        failures=before.failures + behind.failures,
        rewrites=before.rewrites + behind.rewrites,
        too_large=before.too_large + behind.too_large,
        requires=behind.requires,
        declined=before.declined + behind.declined,
    )


__all__ = ["HalfPrecision", "HalfPrecisionOptimization"]
