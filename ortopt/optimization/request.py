"""The options of a run, checked and normalized as `ortopt.optimize` takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ortopt.analysis import providers as execution
from ortopt.analysis import releases, targets
from ortopt.analysis.cost_tables import table_of
from ortopt.cancellation import CancellationToken
from ortopt.errors import UsageError
from ortopt.observers import Observer
from ortopt.optimization.run import Optimization, Source
from ortopt.options import Options, declarations
from ortopt.transformer import GraphTransformer


def make_options(**values: Any) -> Options:
    """Check and normalize options.

    Args:
        **values: Options by name, as `ortopt.optimize` takes them; the defaults of those that are missing.

    Raises:
        UsageError: If a value makes no sense.
    """
    default = {field.name: field.default for field in dataclasses.fields(Options)}
    if values.get("target", default) is None:  # what the providers imply, below
        del values["target"]
    for name, declared in declarations().items():
        if name in values and not (values[name] is None and default[name] is None):
            values[name] = declared.kind.checked(name, values[name])
    if values.get("min_onnxruntime") is not None:
        values["min_onnxruntime"] = releases.parse_release(values["min_onnxruntime"])
    if values.get("passes") is not None and values.get("only"):
        raise UsageError("give either a pipeline or a selection (only), not both")
    _check_half_precision(values)
    if "providers" in values:
        values["providers"] = execution.full_names(values["providers"])
        if not values["providers"]:
            raise UsageError("at least one execution provider is needed")
    providers = values.get("providers", default["providers"])
    if "target" in values:
        targets.check(values["target"], providers)
    else:
        values["target"] = targets.implied(providers)
    if values.get("costs") is not None:
        table_of(values["costs"])  # what is no table is told of before a run begins
    return Options(**values)


def _check_half_precision(values: Mapping[str, Any]) -> None:
    """Options that say how to compute in 16 bits need one that says so."""
    if values.get("float16") and values.get("bfloat16"):
        raise UsageError("a model computes in float16 or in bfloat16, not in both")
    if not (values.get("float16") or values.get("bfloat16")):
        for name in ("float16_tolerance", "float16_io", "keep_float32"):
            if values.get(name):
                raise UsageError(f"{name} says how to compute in 16 bits: give float16 or bfloat16, too")


def new_optimization(
    source: Source,
    options: Options,
    *,
    transformers: Iterable[GraphTransformer] = (),
    observers: Iterable[Observer] = (),
    cancellation: CancellationToken | None = None,
) -> Optimization:
    """A run, with a conversion to 16 bits where the options ask for one; see `Optimization`."""
    kind: type[Optimization] = Optimization
    if options.float16 or options.bfloat16:
        from ortopt.optimization.half_precision_run import HalfPrecisionOptimization

        kind = HalfPrecisionOptimization
    return kind(source, options, transformers=transformers, observers=observers, cancellation=cancellation)
