"""Transformers of the caller's own: what came to nothing of them is said, for nobody else looks for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ortopt.observers import Observer
from ortopt.optimization.result import Repair
from ortopt.placement import is_about_ops
from ortopt.transformer import GraphTransformer

if TYPE_CHECKING:
    from ortopt.instrumentation.explanation import Explanation


class OwnRules:
    """Listens to the caller's own transformers.

    Args:
        transformers: The transformers.
    """

    def __init__(self, transformers: Sequence[GraphTransformer]) -> None:
        self._names = frozenset(transformer.name for transformer in transformers)
        self._listener = _listener(self._names)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """What listens; nothing where there is nobody to listen to."""
        return () if self._listener is None else (self._listener,)

    def complaints(self, repairs: Sequence[Repair]) -> Iterator[str]:
        """What came to nothing, a sentence each.

        Args:
            repairs: What verification left out.
        """
        for repair in repairs:
            name = repair.rewrite.transformer
            if name in self._names:
                what = "it" if repair.left_out == "pass" else f"rewrite {repair.rewrite.number} of it"
                yield f"{name} makes the result differ from the original ({repair.reason}): {what} was left out"
        refusals = () if self._listener is None else self._listener.refusals
        counts = Counter((refusal.transformer, refusal.reason) for refusal in refusals if is_about_ops(refusal.reason))
        for (name, reason), count in sorted(counts.items()):
            yield f"{name} did nothing at {count} of its matches: {reason}"


def _listener(names: frozenset[str]) -> Explanation | None:
    if not names:
        return None
    from ortopt.instrumentation.explanation import Explanation

    return Explanation(names)


__all__ = ["OwnRules"]
