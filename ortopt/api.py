"""`optimize`: a model in, an optimized and verified model out; and the public names around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

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
from ortopt.options import Options, declarations
from ortopt.transformer import GraphTransformer

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from ortopt.verification.inputs import Recorded

ZOO: Final = "zoo:"
"""What the name of a model of the zoo begins with."""


def optimize(
    model: Source,
    *,
    level: int = 3,
    providers: Sequence[str] = ("cpu",),
    target: Literal["onnx", "ort"] = "ort",
    fusions: Literal["default", "all", "none"] = "default",
    custom_op_libraries: Sequence[str] = (),
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
        model: A path, the bytes of a file, a binary stream, an `onnx.ModelProto`, an `ir.Model`, or the text
            ``"zoo:NAME"`` for a model of the zoo.
        level: Optimization level, 0 to 4.
        providers: Execution providers, the preferred one first: cpu, cuda, or ONNX Runtime's names.
        target: Keep to the official opsets (onnx), or use ONNX Runtime's own ops too (ort).
        fusions: Fused ops to take: those that pay on the provider (default), all, or none.
        custom_op_libraries: Shared libraries of ops of your own, for every session that runs the model. The ops
            themselves are left as they are.
        native: Allow what is tied to this very processor.
        opset: Convert to this opset of ai.onnx, and raise it no further.
        min_onnxruntime: Oldest ONNX Runtime that the result must run on, e.g. ``"1.20"``: no newer opset and no newer
            op comes into the model. None is the installed version.
        dims: Sizes of symbolic input dimensions, by name or denotation.
        disable: Passes to leave out: NAME, or NAME@LEVEL at one level only.
        enable: Passes to add that are off by default.
        only: The only passes to run.
        passes: Pipeline of passes with options: 'NAME{option=value},NAME'.
        settings: Options of single passes: name to option to value.
        limit: Stop after this number of rewrites.
        max_growth: Bytes by which the file may grow. None is max(1 MB, 1 %).
        steps: Limit on the steps of each level.
        timeout: Seconds after which the run ends with the best result so far, verified and marked `stopped`.
            Verification and repair may take as long again, and 60 s in any case. By itself it is cooperative: the
            deadline is checked before each pass, between rewrites and while graphs are walked, so a pass that does not
            come back to the framework is waited for, however long that takes.
        enforce_timeout: Interrupt a pass that does not return in time, by an exception raised in its thread. The run
            then ends soon after the deadline although a pass loops forever; a pass in a call outside of Python is
            still waited for. The exception may also arrive in code of yours that the pass has called.
        verify: Whether to run the result against the original; ``"thorough"`` on many more input sets.
        inputs: Inputs to verify with, by name; seeded ones if None.
        strict: End the run where a pass fails. Otherwise the pass is left out.
        check_each: Check the model after every pass; one that breaks it has failed.
        repair: Leave out what makes the result differ from the original. The first rewrite after which it differs is
            found by replaying the run: passes must do the same to the same graph each time, so instances of yours must
            not keep state between runs that changes what they do.
        keep_pass: Repair by leaving out single rewrites, not their pass.
        provenance: Write into each new node which pass made it, from which nodes.
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
    if isinstance(model, str) and model.startswith(ZOO):
        model, given = _of_zoo(model.removeprefix(ZOO), options)
        inputs = given if inputs is None and verify is True else inputs
    run = Optimization(model, options, transformers=transformers, observers=observers, cancellation=cancellation)
    return run.run(verify=verify, inputs=inputs)


def _of_zoo(name: str, options: Options) -> tuple[Path, Recorded]:
    """A model of the zoo, and the inputs that it is verified with."""
    from ortopt import zoo

    return zoo.cached(name), zoo.inputs(name, sizes=options.dims)


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
