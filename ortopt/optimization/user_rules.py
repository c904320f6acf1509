"""Transformers of the caller's own: what came to nothing of them is said, for nobody else looks for it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from ortopt.graph.refusal import Code
from ortopt.observers import Observer
from ortopt.optimization.result import Repair
from ortopt.transformer import GraphTransformer

if TYPE_CHECKING:
    from ortopt.instrumentation.explanation import Explanation


class UserRules:
    """Listens to the caller's own transformers.

    Args:
        transformers: The transformers.
    """

    def __init__(self, transformers: Sequence[GraphTransformer]) -> None:
        self._names = frozenset(transformer.name for transformer in transformers)
        self._listener = _listener(self._names)
        self._runs = _Runs(transformers) if self._names else None

    @property
    def observers(self) -> tuple[Observer, ...]:
        """What listens; nothing where there is nobody to listen to."""
        return tuple(observer for observer in (self._listener, self._runs) if observer is not None)

    def warnings(self, repairs: Sequence[Repair]) -> Iterator[str]:
        """What came to nothing, a sentence each.

        Args:
            repairs: What verification left out.
        """
        for repair in repairs:
            name = repair.rewrite.transformer
            if name in self._names:
                what = "it" if repair.left_out == "pass" else f"rewrite {repair.rewrite.number} of it"
                yield f"{name} makes the result differ from the original ({repair.reason}): {what} was left out"
        left_out = {repair.rewrite.transformer for repair in repairs}
        for name, before, after in self._runs.lost() if repairs and self._runs is not None else ():
            if name not in left_out:
                yield (
                    f"{name} made {before} rewrites, and {after} when the model was optimized again without what made"
                    " the result differ: it keeps state from run to run, which its method begin is there to reset"
                )
        refusals = () if self._listener is None else self._listener.refusals
        counts = Counter((each.transformer, each.reason) for each in refusals if each.code is Code.KERNEL)
        for (name, reason), count in sorted(counts.items()):
            yield f"{name} did nothing at {count} of its matches: {reason}"


class _Runs(Observer):
    """Counts what transformers rewrite in each run, and sees whether they keep state.

    Args:
        transformers: The transformers.
    """

    def __init__(self, transformers: Sequence[GraphTransformer]) -> None:
        without = [one for one in transformers if type(one).begin is GraphTransformer.begin]
        self._states = {one.name: (one, _state(one)) for one in without}
        self._counts: list[Counter[str]] = []

    def begin(self) -> None:
        """Another run."""
        self._counts.append(Counter())

    def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
        """Count."""
        if transformer.name in self._states:
            self._counts[-1][transformer.name] += 1

    def lost(self) -> Iterator[tuple[str, int, int]]:
        """Who keeps state and rewrote less in the last run than in the first: names, with both counts."""
        first, last = self._counts[0], self._counts[-1]
        for name, (transformer, state) in self._states.items():
            if last[name] < first[name] and _is_another(_state(transformer), state):
                yield name, first[name], last[name]


def _state(transformer: GraphTransformer) -> dict[str, object]:
    """What an instance holds, as it is now."""
    held = {name: value for name, value in vars(transformer).items() if name != "options"}
    return {name: copy.copy(value) if isinstance(value, list | dict | set) else value for name, value in held.items()}


def _is_another(state: dict[str, object], other: dict[str, object]) -> bool:
    try:
        return state != other
    except Exception:  # arrays, say: they are compared element by element, which is no answer
        return False


def _listener(names: frozenset[str]) -> Explanation | None:
    if not names:
        return None
    from ortopt.instrumentation.explanation import Explanation

    return Explanation(names)
