"""The options of a run, each declared once: its name and type, default, help, flag, and the values that it takes.

`Options` is the frozen record that travels with a run. Its fields carry their declarations: the command line's flags,
the check of values, the arguments that reproduce a run and docs/options.md derive from them, and a test holds the
signature and the documentation of `ortopt.optimize` to them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ortopt.interface_options import ImageInput, ImageInputs
from ortopt.option_kinds import (
    Choice,
    Count,
    Extents,
    File,
    Files,
    Kind,
    Level,
    Names,
    NewNames,
    Opset,
    Paths,
    Release,
    Renames,
    Seconds,
    Settings,
    Shapes,
    Share,
    Size,
    Sizes,
    Switch,
    Text,
    Tolerance,
    whole_number,
)


class TransformerLevel(enum.IntEnum):
    """When a transformer runs; ONNX Runtime's levels.

    LEVEL1 preserves semantics in standard ops and assumes no provider, LEVEL2 fuses for the chosen providers, LEVEL3
    lays out data for them, LEVEL4 changes data types and groups nodes.
    """

    LEVEL1 = 1
    LEVEL2 = 2
    LEVEL3 = 3
    LEVEL4 = 4


class Target(enum.Enum):
    """What will run the result: any ONNX runtime (official opsets only), ONNX Runtime (contrib ops too), or another.

    What is known of the others is in `ortopt.analysis.targets`.
    """

    ONNX = "onnx"
    ORT = "ort"
    OPENVINO = "openvino"
    WEB = "web"
    TENSORRT = "tensorrt"
    COREML = "coreml"
    QNN = "qnn"
    MOBILE = "mobile"

    @property
    def keeps_to_onnx(self) -> bool:
        """Whether its results have ops of the official opsets only: what runs them has no others, or does not say."""
        return self not in ONNX_RUNTIMES


ONNX_RUNTIMES = (Target.ORT, Target.WEB, Target.MOBILE)
"""Targets that have ONNX Runtime's own ops."""

MEASURED_TARGETS = (Target.ORT, Target.OPENVINO, Target.WEB)
"""Targets on whose runtimes the forms of the table of costs were measured: rules for these ask the table about each of
their forms, and take what is faster on the runtime that the result is for."""


class Fusions(enum.Enum):
    """Which fused forms, one op for several nodes, a run takes from level 2 on.

    DEFAULT are those that are known to be no slower on the provider that runs them, ALL every one that it has a kernel
    for, NONE none.
    """

    DEFAULT = "default"
    ALL = "all"
    NONE = "none"


class March(enum.Enum):
    """The processors for which forms are chosen: any that may run the result, or those like this one."""

    ANY = "any"
    NATIVE = "native"


class Numerics(enum.Enum):
    """What a transformer may do to numbers.

    EXACT keeps all bits, REORDERED rounds otherwise. QUANTIZED rounds otherwise before numbers become integers of a
    quantized tensor: an integer may then be its neighbour, one quantization step away, where the number lies in the
    middle between two. BOUNDED differs from the exact value by at most a proven absolute bound, which the transformer
    declares, beside rounding. FINITE rounds otherwise and is equal for finite numbers only: where the original holds a
    NaN or an infinity, the elements around it may become NaN or infinite too, and what it multiplies by 0 may be left
    out. APPROXIMATE is anything else.
    """

    EXACT = "exact"
    REORDERED = "reordered"
    QUANTIZED = "quantized"
    BOUNDED = "bounded"
    FINITE = "finite"
    APPROXIMATE = "approximate"


MEGABYTE = 1_000_000
GROWTH_SHARE = 0.01
DEFAULT_STEPS = 10


class Declaration:
    """All that is declared of an option beside its name, type and default.

    Args:
        kind: The values that it takes.
        help_: Its meaning, in a sentence.
        flag: Its flag on the command line; empty where it has none.
        metavar: The placeholder for its value in the command line's help.
        default: The default in words, where None does not say it.
    """

    def __init__(self, kind: Kind, help_: str, flag: str = "", metavar: str = "", default: str = "") -> None:
        self.kind = kind
        self.help = help_
        self.flag = flag
        self.metavar = metavar
        self.default = default


def _option(default: Any, kind: Kind, flag: str, help_: str, *, metavar: str = "", says: str = "") -> Any:
    """A field of `Options` with its declaration.

    Args:
        default: The default; a callable makes it.
        kind: See `Declaration`.
        flag: See `Declaration`.
        help_: See `Declaration`.
        metavar: See `Declaration`.
        says: The default in words.
    """
    metadata = {"declaration": Declaration(kind, help_, flag, metavar, says)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that shapes a run, apart from the model; `declarations` documents each attribute."""

    level: int = _option(3, Level(), "-O", "Optimization level, 0 to 4.")
    providers: tuple[str, ...] = _option(
        ("CPUExecutionProvider",),
        Names(),
        "--provider",
        "Execution providers, the preferred one first: cpu, cuda, or ONNX Runtime's names.",
        metavar="NAME",
        says="cpu",
    )
    target: Target = _option(  # noqa: RUF009 -- a field, as dataclasses.field gives one
        Target.ORT,
        Choice(Target),
        "--target",
        "What runs the result: any runtime (onnx), ONNX Runtime (ort), or one of the others.",
        says="ort, or what the provider implies",
    )
    fusions: Fusions = _option(  # noqa: RUF009 -- a field, as dataclasses.field gives one
        Fusions.DEFAULT,
        Choice(Fusions),
        "--fusions",
        "Fused ops to use: those that run faster on the provider (default), all, or none.",
    )
    force_forms: tuple[str, ...] = _option(
        (),
        Names(),
        "--force-forms",
        "Forms of the table of costs to take whatever is known of them.",
        metavar="FORM,FORM",
    )
    costs: str | None = _option(
        None,
        File(),
        "--costs",
        "Table of costs to ask before the shipped one; ortopt costs measure writes one.",
        metavar="FILE",
        says="the shipped table",
    )
    dim_hints: Mapping[str, tuple[int, int]] = _option(
        dict,
        Extents(),
        "--dim-hint",
        "Sizes that symbolic dimensions are expected to have: forms are chosen for them.",
        metavar="NAME=SIZE|LOW..HIGH,...",
        says="representative sizes",
    )
    custom_op_libraries: tuple[str, ...] = _option(
        (),
        Files(),
        "--custom-op-library",
        "Shared libraries of ops of your own, for every session that runs the model.",
        metavar="FILE",
    )
    finite_math: bool = _option(
        True, Switch(), "--finite-math", "Allow forms in which a NaN or an infinity may spread to its neighbours."
    )
    bounded_error: bool = _option(
        False, Switch(), "--bounded-error", "Allow forms whose proven error bound is more than rounding."
    )
    march: March = _option(  # noqa: RUF009 -- as above
        March.ANY, Choice(March), "--march", "Processors to choose forms for: any, or those like this one (native)."
    )
    for_threads: int | None = _option(
        None,
        Count(1),
        "--for-threads",
        "Threads that the result will run with; 1 allows forms that lose with several.",
        says="any number",
    )
    opset: int | Literal["latest"] | None = _option(
        None,
        Opset(),
        "--opset",
        "Convert the model to exactly this opset of ai.onnx, or the newest that may be.",
        metavar="OPSET",
        says="the model's, or a newer one for ONNX Runtime",
    )
    min_onnxruntime: tuple[int, int] | None = _option(
        None,
        Release(),
        "--min-onnxruntime",
        "Oldest ONNX Runtime that the result must run on.",
        metavar="VERSION",
        says="the installed one",
    )
    dims: Mapping[str, int] = _option(
        dict, Sizes(), "--dim", "Sizes of symbolic input dimensions, by name or denotation.", metavar="NAME=SIZE,..."
    )
    input_shapes: Mapping[str, tuple[int | None, ...]] = _option(
        dict,
        Shapes(),
        "--input-shape",
        "Shapes of inputs; changes fixed sizes too, where the model allows it.",
        metavar="NAME=SIZE,...",
    )
    rename_dims: Mapping[str, str] = _option(
        dict,
        NewNames(),
        "--rename-dim",
        "New names of dimensions of inputs; those of one name are of one size in every run.",
        metavar="OLD=NEW",
    )
    value_info: bool = _option(False, Switch(), "--value-info", "Write what is known of all values' types and shapes.")
    rename: Mapping[str, str] = _option(
        dict, Renames(), "--rename", "New names of inputs and outputs.", metavar="OLD=NEW"
    )
    keep_outputs: tuple[str, ...] = _option(
        (),
        Names(),
        "--keep-outputs",
        "Outputs that stay; the others go, and what serves only them.",
        metavar="A,B",
        says="all",
    )
    drop_outputs: tuple[str, ...] = _option(
        (), Names(), "--drop-outputs", "Outputs to leave out, and what serves only them.", metavar="A,B"
    )
    int32_inputs: bool = _option(False, Switch(), "--int32-inputs", "Make inputs of int64 inputs of int32.")
    image_inputs: Mapping[str, ImageInput] = _option(
        dict,
        ImageInputs(),
        "--image-input",
        "Images as they are decoded: NHWC, uint8, not normalized.",
        metavar="NAME=HOW",
    )
    dynamic_batch: str | None = _option(
        None,
        Text(),
        "--dynamic-batch",
        "Make a fixed batch symbolic, and call it so, where every op is proven to allow it.",
        metavar="NAME",
        says="as it is",
    )
    disable: tuple[str, ...] = _option(
        (), Names(), "--disable", "Passes to leave out: NAME, or NAME@LEVEL at one level only.", metavar="A,B"
    )
    enable: tuple[str, ...] = _option((), Names(), "--enable", "Passes to add that are off by default.", metavar="A,B")
    only: tuple[str, ...] = _option((), Names(), "--only", "Run these passes only.", metavar="A,B", says="all")
    passes: str | None = _option(
        None, Text(), "--passes", "Pipeline of passes with options: 'NAME{option=value},NAME'.", metavar="TEXT"
    )
    limit: int | None = _option(None, Count(0), "--limit", "Stop after this number of rewrites.", says="none")
    max_growth: int | None = _option(
        None,
        Size(),
        "--max-growth",
        "Number of bytes by which the file may grow.",
        metavar="SIZE",
        says="max(1 MB, 1 %)",
    )
    steps: int = _option(
        DEFAULT_STEPS,
        Count(1),
        "--steps",
        "Most times that the passes of a level run without making the main graph smaller.",
    )
    timeout: float | None = _option(
        None,
        Seconds(),
        "--timeout",
        "Stop after this number of seconds, and keep the best result so far.",
        metavar="SECONDS",
        says="none",
    )
    enforce_timeout: bool = _option(
        False, Switch(), "", "Interrupt a pass that does not return in time, by an exception raised in its thread."
    )
    strict: bool = _option(False, Switch(), "--strict", "Stop if a pass fails, instead of leaving that pass out.")
    check_each: bool = _option(
        False, Switch(), "--check-each", "Check the model after every pass; a pass that breaks it counts as failed."
    )
    repair: bool = _option(
        True, Switch(), "--repair", "If the result differs from the original, leave out what causes it."
    )
    keep_pass: bool = _option(
        False, Switch(), "--keep-pass", "When repairing, leave out single rewrites instead of their whole pass."
    )
    rtol: float | None = _option(
        None,
        Tolerance(),
        "--rtol",
        "Relative error of floats that verification allows.",
        metavar="NUMBER",
        says="by dtype, scale and noise",
    )
    atol: float | None = _option(
        None,
        Tolerance(),
        "--atol",
        "Absolute error of floats that verification allows, beside the relative one.",
        metavar="NUMBER",
        says="by dtype, scale and noise",
    )
    verify_with: tuple[str, ...] = _option(
        (),
        Paths(),
        "--verify-with",
        "Verify on another runtime, too: a Python that has one, openvino, or a package for node.",
        metavar="PYTHON",
        says="the ONNX Runtime here alone",
    )
    provenance: bool = _option(
        False, Switch(), "--provenance", "Record in each new node which pass made it, and from which nodes."
    )
    freeze_initializers: bool = _option(
        False,
        Switch(),
        "--freeze-initializers",
        "Make constants of weights that are inputs, too: no caller gives others.",
    )
    nonempty: tuple[str, ...] = _option(
        (),
        Names(),
        "--nonempty",
        "Dimensions of inputs that are never 0, * for any text: none is handled that is.",
        metavar="A,B",
        says="any may be 0",
    )
    keep_functions: bool = _option(False, Switch(), "--keep-functions", "Do not inline local functions.")
    float16: bool = _option(
        False, Switch(), "--float16", "Compute in float16 where kernels, range and tolerance allow."
    )
    bfloat16: bool = _option(False, Switch(), "--bfloat16", "Compute in bfloat16 where kernels and tolerance allow.")
    float16_tolerance: float | None = _option(
        None,
        Share(),
        "--float16-tolerance",
        "What 16 bits may change of an output, relative to its slices.",
        metavar="SHARE",
        says="0.01; 0.05 of bfloat16",
    )
    float16_io: bool = _option(False, Switch(), "--float16-io", "Inputs and outputs of 16 bits, too.")
    keep_float32: tuple[str, ...] = _option(
        (),
        Names(),
        "--keep-float32",
        "What stays in float32: ops, or names of nodes, also of the original, with * for any text.",
        metavar="A,B",
        says="what must",
    )
    settings: Mapping[str, Mapping[str, object]] = _option(
        dict, Settings(), "", "Options of single passes, as a mapping from pass name to options."
    )


@functools.cache
def declarations() -> Mapping[str, Declaration]:
    """The declaration of each option, by name, in order."""
    return {field.name: field.metadata["declaration"] for field in dataclasses.fields(Options)}


def as_arguments(options: Options) -> list[str]:
    """The arguments of the command line that ask for these options, as far as there are flags for them."""
    default = Options()
    return [
        argument
        for name, declared in declarations().items()
        if declared.flag and (value := getattr(options, name)) != getattr(default, name)
        for argument in declared.kind.arguments(declared.flag, value)
    ]


__all__ = [
    "DEFAULT_STEPS",
    "GROWTH_SHARE",
    "MEGABYTE",
    "ONNX_RUNTIMES",
    "Declaration",
    "Fusions",
    "March",
    "Numerics",
    "Options",
    "Target",
    "TransformerLevel",
    "as_arguments",
    "declarations",
    "whole_number",
]
