"""The kind of run that the options ask for: only one that converts to 16 bits loads the modules for that."""

from __future__ import annotations

from collections.abc import Iterable

from ortopt.cancellation import CancellationToken
from ortopt.observers import Observer
from ortopt.optimization.run import Optimization, Source
from ortopt.options import Options
from ortopt.transformer import GraphTransformer


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
