"""`optimize`: a model in, an optimized and verified model out; and the public names around it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from ortopt.analysis.providers import check_installation, in_place_of
from ortopt.cancellation import CancellationToken
from ortopt.errors import UsageError
from ortopt.observers import Observer
from ortopt.optimization.request import make_options, new_optimization
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
from ortopt.options import Options, Target, declarations
from ortopt.system import memory
from ortopt.transformer import GraphTransformer

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from ortopt.verification.inputs import Recorded

TargetName: TypeAlias = Literal["onnx", "ort", "openvino", "web", "tensorrt", "coreml", "qnn", "mobile"]
"""What runs a result; see `ortopt.options.Target`."""

ZOO: Final = "zoo:"
"""What the name of a model of the zoo begins with."""


def optimize(
    model: Source,
    *,
    level: int | str = 3,
    providers: str | Sequence[str] = ("cpu",),
    target: TargetName | Target | None = None,
    fusions: Literal["default", "all", "none"] = "default",
    force_forms: str | Sequence[str] = (),
    costs: str | Path | None = None,
    dim_hints: str | Mapping[str, int | tuple[int, int]] | None = None,
    custom_op_libraries: Sequence[str] = (),
    finite_math: bool = True,
    bounded_error: bool = False,
    march: Literal["any", "native"] = "any",
    for_threads: int | None = None,
    opset: int | Literal["latest"] | None = None,
    min_onnxruntime: str | None = None,
    dims: str | Mapping[str, int] | None = None,
    input_shapes: str | Mapping[str, str | Sequence[int | None]] | None = None,
    rename_dims: str | Mapping[str, str] | None = None,
    value_info: bool = False,
    rename: str | Mapping[str, str] | None = None,
    keep_outputs: Sequence[str] = (),
    drop_outputs: Sequence[str] = (),
    int32_inputs: bool = False,
    image_inputs: str | Mapping[str, str | Mapping[str, object]] | None = None,
    dynamic_batch: str | None = None,
    disable: str | Sequence[str] = (),
    enable: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
    passes: str | None = None,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    limit: int | None = None,
    max_growth: int | str | None = None,
    steps: int = 10,
    timeout: float | None = None,
    enforce_timeout: bool = False,
    verify: bool | Literal["thorough"] = True,
    inputs: Mapping[str, np.ndarray] | None = None,
    strict: bool = True,
    check_each: bool = False,
    repair: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    keep_pass: bool = False,
    verify_with: Sequence[str | Path] = (),
    provenance: bool = False,
    freeze_initializers: bool = False,
    nonempty: Sequence[str] = (),
    keep_functions: bool = False,
    float16: bool = False,
    bfloat16: bool = False,
    float16_tolerance: float | None = None,
    float16_io: bool = False,
    keep_float32: str | Sequence[str] = (),
    transformers: Iterable[GraphTransformer] = (),
    observers: Iterable[Observer] = (),
    max_memory: int | str | None = None,
    cancellation: CancellationToken | None = None,
) -> OptimizeResult:
    """Optimize a model; the argument itself is never changed.

    Args:
        model: A path, the bytes of a file, a binary stream, an `onnx.ModelProto`, an `ir.Model`, what
            ``torch.onnx.export(..., dynamo=True)`` returns (its weights are shared, not copied), or the text
            ``"zoo:NAME"`` for a model of the zoo.
        level: Optimization level, 0 to 4; or a text: ``"3"``, ``"O3"``.
        providers: Execution providers, the preferred one first: cpu, cuda, or ONNX Runtime's names. A text is read as
            the flag's value: ``"cuda,cpu"``; so are those of all lists of names below.
        target: What runs the result: any runtime (onnx), ONNX Runtime (ort), or one of the others. These are
            ``"openvino"``, ``"web"``, ``"tensorrt"``, ``"coreml"``, ``"qnn"`` and ``"mobile"`` (docs/runtimes.md); of
            them ``"web"`` and ``"mobile"`` get ONNX Runtime's own ops, too. None is what the first provider other than
            the CPU and CUDA implies, else ``"ort"``.
        fusions: Fused ops to use: those that run faster on the provider (default), all, or none.
        force_forms: Forms of the table of costs to take whatever is known of them, as ``ortopt costs show`` names them:
            ``"com.microsoft::Attention with bias"``.
        costs: Table of costs to ask before the shipped one; ortopt costs measure writes one.
        dim_hints: Sizes that symbolic dimensions are expected to have: forms are chosen for them. By name a size, or
            the least and the greatest; a text is read as the flag's value: ``"batch=1,seq=1..512"``. Nothing is
            fixed: the result runs at all sizes. Other dimensions have representative sizes.
        custom_op_libraries: Shared libraries of ops of your own, for every session that runs the model. The ops
            themselves are left as they are.
        finite_math: Allow forms in which a NaN or an infinity may spread to its neighbours. They are of level 3, and
            the same for finite numbers, as far as rounding goes.
        bounded_error: Allow forms whose proven error bound is more than rounding. Those whose bound is below the last
            place of a probability are used anyway.
        march: Processors to choose forms for: any, or those like this one (native).
        for_threads: Threads that the result will run with; 1 allows forms that lose with several. The
            ``intra_op_num_threads`` of its sessions.
        opset: Convert the model to exactly this opset of ai.onnx, or the newest that may be (``"latest"``: the newest
            that `min_onnxruntime` reads). None keeps the model's with target ``"onnx"``, else takes a newer one where
            it has an op that replaces several nodes.
        min_onnxruntime: Oldest ONNX Runtime that the result must run on, e.g. ``"1.20"``: no newer opset and no newer
            op comes into the model. None is the installed version.
        dims: Sizes of symbolic input dimensions, by name or denotation. A text is read as the flag's value:
            ``"batch=1,seq=128"``.
        input_shapes: Shapes of inputs; changes fixed sizes too, where the model allows it. By input a list of sizes,
            None for one that stays as it is; a text is read as the flag's value: ``"pixel_values=1,3,224,224"``. Where
            a fixed size changes, the result is compared with the original with its inputs' declared sizes changed and
            what it declares of computed values dropped.
        rename_dims: New names of dimensions of inputs; those of one name are of one size in every run.
        value_info: Write what is known of all values' types and shapes. Otherwise only what the model states is
            written, corrected.
        rename: New names of inputs and outputs. Until the model is written, all is called as in the original.
        keep_outputs: Outputs that stay; the others go, and what serves only them. ``*`` in a name stands for any text.
            Inputs stay, so that callers give what they gave.
        drop_outputs: Outputs to leave out, and what serves only them. Likewise; those that `keep_outputs` keeps, too.
        int32_inputs: Make inputs of int64 inputs of int32. Those that have a default stay.
        image_inputs: Images as they are decoded: NHWC, uint8, not normalized. By input a text, as the flag takes it, or
            some of ``layout`` (``"nchw"`` or ``"nhwc"``), ``dtype`` (``"float32"`` or ``"uint8"``), ``scale``, ``mean``
            and ``std`` (a number, or one for each channel). The result computes ``(image * scale - mean) / std`` and
            transposes itself; what folds into the first convolution costs nothing.
        dynamic_batch: Make a fixed batch symbolic, and call it so, where every op is proven to allow it. The batch is
            the first dimension of the first input that has a fixed one, and of the others where it is as large.
        disable: Passes to leave out: NAME, or NAME@LEVEL at one level only.
        enable: Passes to add that are off by default.
        only: Run these passes only.
        passes: Pipeline of passes with options: 'NAME{option=value},NAME'.
        settings: Options of single passes, as a mapping from pass name to options.
        limit: Stop after this number of rewrites.
        max_growth: Number of bytes by which the file may grow, or a text such as ``"10MB"``. None is max(1 MB, 1 %).
        steps: Most times that the passes of a level run without making the main graph smaller.
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
            yours that keep state reset it in their method `begin`, which is called whenever a run begins.
        rtol: Relative error of floats that verification allows. If it or ``atol`` is given, floats agree where
            ``|got - expected| <= atol + rtol * |expected|``, and the model's own noise is not asked for. Without
            ``atol``, an error is relative to the output's root mean square where that is greater than the number.
            If both are None, the limit goes by dtype, scale and noise.
        atol: Absolute error of floats that verification allows, beside the relative one; see ``rtol``.
        keep_pass: When repairing, leave out single rewrites instead of their whole pass.
        verify_with: Verify on another runtime, too: a Python that has one, openvino, or a package for node. Several may
            be given, each the path of an interpreter or of its environment, which needs numpy besides; ``openvino`` of
            this environment; or ``onnxruntime-web`` or ``onnxruntime-node``, in ``node_modules`` or as a path. An ONNX
            Runtime there that has the execution provider of the run, or of its target, runs it on that. What differs
            there is repaired in the same way.
        provenance: Record in each new node which pass made it, and from which nodes.
        freeze_initializers: Make constants of weights that are inputs, too: no caller gives others.
        nonempty: Dimensions of inputs that are never 0, * for any text: none is handled that is. So no If asks whether
            there is anything; inputs without elements may give other results, or fail.
        keep_functions: Do not inline local functions.
        float16: Compute in float16 where kernels, range and tolerance allow. What must stays in float32, as do inputs
            and outputs; with `verify`, layers that cost more than the tolerance are found and stay, too.
        bfloat16: Compute in bfloat16 where kernels and tolerance allow; otherwise as `float16`.
        float16_tolerance: What 16 bits may change of an output, relative to its slices. None is 0.01, and 0.05 of
            bfloat16.
        float16_io: Inputs and outputs of 16 bits, too.
        keep_float32: What stays in float32: ops, or names of nodes, also of the original, with * for any text.
        transformers: Transformers of your own, instances, beside the installed ones.
        observers: Observers of the run.
        max_memory: Bytes of memory that this process and its children may use meanwhile, mapped files apart, or a text
            such as ``"2GB"``; above it, MemoryError is raised. None is no limit; only Linux enforces one.
        cancellation: Cancellation token.

    Returns:
        The optimized model and what was done.

    Raises:
        UsageError: If an option makes no sense.
        MissingRuntimeError: If no ONNX Runtime is installed, or one that is too old, with `verify`.
        InvalidModelError: If the model, or the table of costs, is missing or broken.
        TransformerError: If a transformer raised, with `strict`.
        VerificationError: If the result differs from the original, and could not be repaired.
        OptimizationCancelled: If it was stopped; ``.result`` holds what was reached: before verification, all rewrites
            that had completed, else the original.
    """
    arguments = locals()  # by name, as the options are declared
    if verify not in (True, False, "thorough"):
        raise UsageError(f"verify takes True, False or 'thorough', not {verify!r}")
    options = make_options(**{name: arguments[name] for name in declarations()})
    if verify:
        check_installation()
    if isinstance(model, str) and model.startswith(ZOO):
        model, given = _of_zoo(model.removeprefix(ZOO), options)
        inputs = given if inputs is None and verify is True else inputs
    with memory.bounded(None if max_memory is None else memory.parse_limit("max_memory", max_memory)):
        run = new_optimization(
            model, options, transformers=transformers, observers=observers, cancellation=cancellation
        )
        if verify and (absent := in_place_of(options.providers)):
            warnings.warn(absent, RuntimeWarning, stacklevel=2)
        result = run.run(verify=verify, inputs=inputs)
    for text in run.warnings:
        warnings.warn(text, stacklevel=2)
    return result


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
    "new_optimization",
    "optimize",
]
