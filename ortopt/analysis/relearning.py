"""Inference of a whole model anew, and what it has taught: a rewrite is inferred alone, and not what follows it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.graph.facts import Dims, all_contents, dims_of
from ortopt.graph.symbolic import is_invented

_Facts = tuple[ir.TypeProtocol | None, Dims | None, Dims | None]


def learn(model: ir.Model, graphs: Iterable[ir.Graph]) -> list[ir.Value]:
    """Infer a whole model once more, as a run on its file would.

    Args:
        model: A model that has been inferred before, and edited since.
        graphs: Its graphs.

    Returns:
        The values of which something else is known now; other names of invented symbols are nothing else. Linear in
        the model.
    """
    values = [
        value
        for graph in graphs
        for value in itertools.chain(graph.inputs, itertools.chain.from_iterable(node.outputs for node in graph))
    ]
    before = [_facts(value) for value in values]
    shapes.infer_model(model)
    same = _Renaming()
    return [value for value, facts in zip(values, before, strict=True) if not same(facts, _facts(value))]


def _facts(value: ir.Value) -> _Facts:
    return value.type, dims_of(value), all_contents(value)


class _Renaming:
    """Whether facts are the same but for the names of invented symbols, each of which has one other name."""

    def __init__(self) -> None:
        self._there: dict[str | None, str | None] = {}
        self._back: dict[str | None, str | None] = {}

    def __call__(self, one: _Facts, other: _Facts) -> bool:
        if one == other and not any(dims and any(map(is_invented, dims)) for dims in one[1:]):
            return True
        return one[0] == other[0] and all(map(self._same_dims, one[1:], other[1:]))

    def _same_dims(self, one: Dims | None, other: Dims | None) -> bool:
        if one is None or other is None:
            return one is other
        if len(one) != len(other):
            return False
        for left, right in zip(one, other, strict=True):
            if isinstance(left, int) or isinstance(right, int):
                if left != right:
                    return False
            elif not (is_invented(left) and is_invented(right)):
                if left.value != right.value:
                    return False
            elif (
                self._there.setdefault(left.value, right.value) != right.value
                or self._back.setdefault(right.value, left.value) != left.value
            ):
                return False
        return True
