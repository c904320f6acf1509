"""`optimize`: a model in, an optimized and verified model out; and the public names around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from ortopt.cancellation import CancellationToken
from ortopt.errors import UsageError
from ortopt.observers import Observer
from ortopt.optimization.request import make_options
from ortopt.optimization.result import (
    CostRefusal,
    ModelFigures,
    OptimizeResult,
    PassTotal,
    Repair,
    SizeRefusal,
    Summary,
    figures,
)
from ortopt.optimization.run import Optimization, Source
from ortopt.options import declarations
from ortopt.transformer import GraphTransformer

if TYPE_CHECKING:
    import numpy as np


def optimize(
    model: Source,
    *,
    level: int = 3,
    providers: Sequence[str] = ("cpu",),
    target: Literal["onnx", "ort"] = "ort",
    fusions: Literal["default", "all", "none"] = "default",
    native: bool = False,
    opset: int | None = None,
    min_onnxruntime: str | None = None,
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
    enforce_timeout: bool = False,
    verify: bool | Literal["thorough"] = True,
    inputs: Mapping[str, np.ndarray] | None = None,
    strict: bool = True,
    check_each: bool = False,
    repair: bool = True,
    keep_pass: bool = False,
    provenance: bool = False,
    keep_functions: bool = False,
    transformers: Iterable[GraphTransformer] = (),
    observers: Iterable[Observer] = (),
    cancellation: CancellationToken | None = None,
) -> OptimizeResult:
    """Optimize a model; the argument itself is never changed.

    Args:
        model: A path, the bytes of a file, a binary stream, an `onnx.ModelProto` or an `ir.Model`.
        level: Optimization level, 0 to 4.
        providers: Execution providers, the preferred one first: cpu, cuda, or ONNX Runtime's names.
        target: Keep to the official opsets (onnx), or use ONNX Runtime's own ops too (ort).
        fusions: Fused ops to use: those that run faster on the provider (default), all, or none.
        native: Allow forms that are fast only on processors like this one.
        opset: Convert the model to exactly this opset of ai.onnx.
        min_onnxruntime: Oldest ONNX Runtime that the result must run on, e.g. ``"1.20"``: no newer opset and no newer
            op comes into the model. None is the installed version.
        dims: Sizes of symbolic input dimensions, by name or denotation.
        disable: Passes to leave out: NAME, or NAME@LEVEL at one level only.
        enable: Passes to add that are off by default.
        only: Run these passes only.
        passes: Pipeline of passes with options: 'NAME{option=value},NAME'.
        settings: Options of single passes, as a mapping from pass name to options.
        limit: Stop after this number of rewrites.
        max_growth: Number of bytes by which the file may grow. None is max(1 MB, 1 %).
        steps: Most times that the passes of a level are repeated.
        timeout: Stop after this number of seconds, and keep the best result so far, verified and marked `stopped`.
            Verification and repair may take as long again, and 60 s in any case. By itself it is cooperative: the
            deadline is checked before each pass, between rewrites and while graphs are walked, so a pass that does not
            come back to the framework is waited for, however long that takes.
        enforce_timeout: Interrupt a pass that does not return in time, by an exception raised in its thread. The run
            then ends soon after the deadline although a pass loops forever; a pass in a call outside of Python is
            still waited for. The exception may also arrive in code of yours that the pass has called.
        verify: Whether to run the result against the original; ``"thorough"`` on many more input sets.
        inputs: Inputs to verify with, by name; seeded ones if None.
        strict: Stop if a pass fails, instead of leaving that pass out.
        check_each: Check the model after every pass; a pass that breaks it counts as failed.
        repair: If the result differs from the original, leave out what causes it. The first rewrite after which it
            differs is found by replaying the run: passes must do the same to the same graph each time, so instances of
            yours must not keep state between runs that changes what they do.
        keep_pass: When repairing, leave out single rewrites instead of their whole pass.
        provenance: Record in each new node which pass made it, and from which nodes.
        keep_functions: Do not inline local functions.
        transformers: Transformers of your own, instances, beside the installed ones.
        observers: Observers of the run.
        cancellation: Cancellation token.

    Returns:
        The optimized model and what was done.

    Raises:
        UsageError: If an option makes no sense.
        InvalidModelError: If the model is broken.
        TransformerError: If a transformer raised, with `strict`.
        VerificationError: If the result differs from the original, and could not be repaired.
        OptimizationCancelled: If it was stopped; ``.result`` holds what was reached: before verification, all rewrites
            that had completed, else the original.
    """
    arguments = locals()  # by name, as the options are declared
    if verify not in (True, False, "thorough"):
        raise UsageError(f"verify takes True, False or 'thorough', not {verify!r}")
    options = make_options(**{name: arguments[name] for name in declarations()})
    return Optimization(model, options, transformers=transformers, observers=observers, cancellation=cancellation).run(
        verify=verify, inputs=inputs
    )


__all__ = [
    "CostRefusal",
    "ModelFigures",
    "Optimization",
    "OptimizeResult",
    "PassTotal",
    "Repair",
    "SizeRefusal",
    "Source",
    "Summary",
    "figures",
    "make_options",
    "optimize",
]
