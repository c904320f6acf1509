"""What a run gives, as facts that can be compared: plain data, the same for the same model, options and versions.

==============  ====================================================================================================
``model``       SHA-256 of the model, external data included
``options``     the options of the run that are no defaults, as flags
``verified``    ``verified``, ``not shown``, ``impossible`` or ``not asked for`` (see docs/verification.md)
``inputs``      name and type of each, in order; so ``outputs``
``nodes``       nodes of the result in all; ``ops`` by op
``original``    of the original: ``nodes`` in all, and ``weights``, the bytes of its constants
``blocks``      of the result, by family of those it has: how many were ``found``, and how many are one op (``fused``)
``fused``       ops of several nodes' work that the result has and the original has not, or has fewer of
``size``        bytes of the result, external data included
``error``       the worst error of an output, and the ``bound`` that it must keep to
``rewrites``    by pass; ``repairs`` and ``failures``: how often a pass was left out because of numbers, or because it
                raised
``result``      SHA-256 of the result
``seconds``     of optimizing and verifying; ``memory``: bytes at the worst moment
``latency``     where it was measured: ``ratio`` of the result's time to the original's, ``low`` and ``high``; ``at``
                has the same for each of the sizes
``layers``      where the result differs, and it was asked for: the first value that does, and the error by layer
==============  ====================================================================================================
"""

from __future__ import annotations

import functools
import hashlib
import math
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired, TypeAlias, TypedDict

import onnx_ir as ir
from msgspec import Meta

from ortopt.documents import Amount, Count, typed
from ortopt.options import Options, as_arguments
from ortopt.semantics import GROUP_DOMAIN
from ortopt.semantics.domains import ML, TRAINING
from ortopt.terminal_text import one_line

Facts: TypeAlias = dict[str, Any]

ALWAYS: Final = (
    *("model", "options", "verified", "inputs", "outputs", "nodes", "ops", "fused", "size", "rewrites", "repairs"),
    *("failures", "result", "seconds"),
)
"""Facts that every result has, since there are baselines."""

_Error: TypeAlias = Amount | Literal["inf", "-inf", "nan"]
_Ratio: TypeAlias = Annotated[float, Meta(gt=0, le=sys.float_info.max)]


class _Original(TypedDict):
    nodes: Count
    weights: Count


class _Blocks(TypedDict):
    found: Count
    fused: Count


class _Spread(TypedDict):
    ratio: _Ratio
    low: _Ratio
    high: _Ratio


class _LatencyAt(_Spread):
    sizes: dict[str, Count]
    inputs: str
    fallback: str | None


class _Latency(_Spread):
    rounds: Count
    at: NotRequired[list[_LatencyAt]]


class _Facts(TypedDict, total=False):
    """The types of facts; of others, nothing is asked, as a newer ortopt may have written them."""

    model: str
    options: str
    verified: Literal["verified", "not shown", "impossible", "not asked for"]
    inputs: list[str]
    outputs: list[str]
    nodes: Count
    ops: dict[str, Count]
    original: _Original
    blocks: dict[str, _Blocks]
    fused: dict[str, Count]
    size: Count
    error: _Error
    bound: _Error | None
    rewrites: dict[str, Count]
    repairs: dict[str, Count]
    failures: dict[str, Count]
    result: str
    seconds: Amount
    memory: Count
    latency: _Latency
    reasons: list[str]


def checked(data: Any, *, whole: bool) -> Facts:
    """What a file has as facts, whose values are of the types that comparisons count on.

    Args:
        data: A part of a document.
        whole: Whether they are those of a result, so that none of `ALWAYS` may be missing.

    Raises:
        ValueError: If a value is of another type, or missing.
    """
    typed(data, _Facts)
    facts: Facts = data
    missing = [fact for fact in ALWAYS if fact not in facts] if whole else []
    if missing:
        raise ValueError(f"there is no `{missing[0]}`")
    return facts


_CHUNK: Final = 1 << 22
_ROUNDED: Final = 3  # significant digits of what is measured
_STANDARD: Final = frozenset({"", "ai.onnx", ML, "ai.onnx.training", TRAINING})


def versions(costs: Iterable[str | None] = (None,)) -> dict[str, str]:
    """The versions that results depend on, the tables of costs among them.

    Args:
        costs: The files of the tables; None is the one that ships.
    """
    from ortopt.analysis.cost_tables import table_of
    from ortopt.analysis.providers import installed_version
    from ortopt.reporting import reproducer

    known = reproducer.versions() | {"onnxruntime": installed_version()}  # whichever distribution has brought it
    tables = {f"{table.name} {table.digest[:16]}" for table in map(table_of, costs)}
    found = {name: known[name] for name in ("ortopt", "onnx", "onnx-ir", "onnxruntime") if known.get(name)}
    return {**found, "costs": ", ".join(sorted(tables))}


def hash_of(paths: Iterable[Path]) -> str:
    """SHA-256 of the contents of files, one after the other.

    Args:
        paths: The model's file, then those of its external data.
    """
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def options_text(options: Options) -> str:
    """The options of a run that are no defaults, as flags."""
    settings = [f"{name}{{{key}={value}}}" for name, some in options.settings.items() for key, value in some.items()]
    return shlex.join((*as_arguments(options), *sorted(settings)))


def facts_of(data: Mapping[str, Any], model: ir.Model, options: Options) -> Facts:
    """The facts that stand in a report.

    Args:
        data: From `ortopt.reporting.report.as_dict`.
        model: The result.
        options: The options of the run.
    """
    outcome = data["verification"]
    by_op = data["nodes"]["by_op"]
    facts = {
        "options": options_text(options),
        "verified": "not asked for" if outcome is None else outcome["status"],
        "inputs": [_signature(value) for value in model.graph.inputs],
        "outputs": [_signature(value) for value in model.graph.outputs],
        "nodes": data["nodes"]["after"],
        "ops": {op: counts["after"] for op, counts in by_op.items() if counts["after"]},
        "original": {"nodes": data["nodes"]["before"], "weights": data["constant_bytes"]["before"]},
        "blocks": dict(_blocks(data["blocks"])),
        "fused": fused({op: counts["after"] - counts["before"] for op, counts in by_op.items()}),
        "rewrites": {row["pass"]: row["rewrites"] for row in data["passes"] if row["rewrites"]},
        "repairs": dict(Counter(row["pass"] for row in data["repairs"])),
        "failures": dict(Counter(row["pass"] for row in data["failures"])),
        "seconds": rounded(sum(data["seconds"].values())),
    }
    if outcome is not None and outcome["outputs"]:
        facts["error"] = measured(outcome["worst"])
        row = next((row for row in outcome["outputs"] if row["name"] == outcome["worst_output"]), None)
        facts["bound"] = None if row is None else measured(row["tolerance"])
    return facts


def _blocks(families: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, int]]]:
    for name, counts in families.items():
        fused, spelled_out = counts["after"]["fused"], counts["after"]["spelled_out"]
        if fused + spelled_out:
            yield name, {"found": fused + spelled_out, "fused": fused}


def measured(value: Any) -> Any:
    """A number as JSON has it, rounded; infinities and NaN are texts."""
    return rounded(value) if isinstance(value, int | float) and math.isfinite(value) else str(value)


def rounded(value: float) -> float:
    """A number with as many digits as a measurement has."""
    return float(f"{value:.{_ROUNDED}g}")


def times(ratio: float) -> str:
    """A ratio of times for people, as thresholds are written: ``0.80×`` takes four fifths of the time."""
    return f"{ratio:.2f}×"


def latency_of(facts: Facts) -> str:
    """The ratio of the result's time to the original's, for people; empty where it was not measured."""
    return times(facts["latency"]["ratio"]) if "latency" in facts else ""


def fused(gained: Mapping[str, int]) -> dict[str, int]:
    """Of the ops that a result has more of than its original, those that do the work of several nodes.

    Args:
        gained: How many more there are, by op as a report has it.
    """
    return {op: more for op, more in sorted(gained.items()) if more > 0 and is_composite(op)}


@functools.cache
def is_composite(op: str) -> bool:
    """Whether an op does the work of several: one that is no standard op, or is defined by a function of others."""
    domain, _, name = op.rpartition("::")
    if domain == GROUP_DOMAIN:
        return False
    if domain not in _STANDARD:
        return True
    import onnx.defs

    if not onnx.defs.has(name, domain):
        return True
    schema: Any = onnx.defs.get_schema(name, domain=domain)
    return bool(schema.has_function or schema.has_context_dependent_function)


def latency_in_words(latency: Mapping[str, Any]) -> str:
    """How long a result takes for its original's time, and at which sizes that was measured; of several, at each.

    Args:
        latency: The fact.
    """
    text = f"{times(latency['ratio'])} the original's (95 %: {times(latency['low'])} to {times(latency['high'])})"
    places = latency.get("at", ())
    if len(places) == 1:
        text += f" at {_place(places[0])}"
    elif places:
        text += ": " + ", ".join(f"{times(one['ratio'])} at {_place(one)}" for one in places)
    fallbacks = dict.fromkeys(one["fallback"] for one in places if one["fallback"])
    return one_line("; ".join((text, *fallbacks)))


def _place(row: Mapping[str, Any]) -> str:
    """The sizes of open dimensions, else the inputs' shapes."""
    return ", ".join(f"{name}={size}" for name, size in row["sizes"].items()) or str(row["inputs"])


def measured_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two latencies were measured at the same sizes, as far as they tell them."""
    return [*map(_place, one.get("at", ()))] == [*map(_place, other.get("at", ()))]


def _signature(value: ir.Value) -> str:
    dims = None if value.shape is None else [d if isinstance(d, int) else d.value or "?" for d in value.shape.dims]
    shape = "" if dims is None else f"[{','.join(map(str, dims))}]"
    return one_line(f"{value.name}: {str(value.type).lower()}{shape}")
