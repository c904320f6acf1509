"""What a user can ask of an optimization: levels, targets, and the one frozen record that travels with a run."""

from __future__ import annotations

import enum
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

from ortopt.errors import UsageError


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
    """What will run the result: any ONNX runtime (official opsets only), or ONNX Runtime (contrib ops too)."""

    ONNX = "onnx"
    ORT = "ort"


class Numerics(enum.Enum):
    """What a transformer may do to numbers."""

    EXACT = "exact"
    REORDERED = "reordered"
    APPROXIMATE = "approximate"


def whole_number(option: str, value: object, *, least: int = 0) -> int:
    """An option's value, if it is a whole number; a bool is none.

    Args:
        option: Its name, for messages.
        value: What was passed.
        least: The smallest that makes sense.

    Raises:
        UsageError: If it is none, or too small.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise UsageError(f"{option} must be a whole number, not {value!r}")
    if number < least:
        raise UsageError(f"{option} must be at least {least}, not {number}")
    return number


MEGABYTE = 1_000_000
GROWTH_SHARE = 0.01
DEFAULT_STEPS = 10


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that shapes a run, apart from the model.

    Attributes:
        level: 0 to 4; levels above it do not run.
        providers: Execution providers by ONNX Runtime's names, in order of preference.
        target: What will run the result.
        native: Whether the result may be tied to this very processor.
        opset: The opset of ai.onnx that the result should have; None keeps the model's.
        min_onnxruntime: The oldest release of ONNX Runtime that the result must run on, as (major, minor); None is the
            installed one.
        dims: Values for symbolic dimensions of the inputs, by name or denotation.
        disable: Transformers left out, as ``NAME`` or ``NAME@LEVEL``.
        enable: Transformers put in that are off unless asked for.
        only: If not empty, nothing else runs.
        passes: A pipeline spelled out, e.g. ``"constant_folding{max_growth=1MB},matmul_add_fusion"``.
        limit: Stop after this many rewrites; None is no limit.
        max_growth: Bytes by which the result may exceed the original; None is max(1 MB, 1 %).
        steps: The bound of each level's fixed-point loop.
        timeout: Seconds until the run returns the best so far; None is no limit.
        strict: Whether a transformer that raises ends the run.
        check_each: Whether the model is looked at after every transformer; one that breaks it fails.
        repair: Whether what makes the result differ from the original is found and left out.
        keep_pass: Whether a repair leaves out single rewrites instead of their passes.
        provenance: Whether the file says which transformer made each node, and from what.
        keep_functions: Whether local functions stay functions.
        settings: Options of single transformers: name to option to value.
    """

    level: int = 3
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    target: Target = Target.ORT
    native: bool = False
    opset: int | None = None
    min_onnxruntime: tuple[int, int] | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    disable: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    passes: str | None = None
    limit: int | None = None
    max_growth: int | None = None
    steps: int = DEFAULT_STEPS
    timeout: float | None = None
    strict: bool = False
    check_each: bool = False
    repair: bool = True
    keep_pass: bool = False
    provenance: bool = False
    keep_functions: bool = False
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
