"""What is told of intermediate values of two models side by side: a row for each value, and for each layer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ortopt.verification.comparison import OutputRow

_NUMBERED: Final = re.compile(r"\d$")


@dataclass(frozen=True, slots=True)
class LayerRow:
    """An intermediate value of the original beside its counterpart in the result.

    Attributes:
        value: The value's name in the original.
        result_value: Its name in the result.
        op: The op that computes it in the original, as ``Add`` or ``com.microsoft::Gelu``.
        result_op: The op that computes it in the result.
        node: The original's node.
        layer: The layer that the node stands in: its modules up to the first that is numbered; empty at the top.
        module: The modules around the node, as ``encoder/layer.0/attention``.
        dtype: The element type.
        shape: The shape, as far as it is known.
        joined_by: ``origin`` where the result's node records what it stands for; ``name`` where names are the same.
        made_by: The pass that made the result's node, and empty where none is recorded.
        origins: The names of the nodes that it was made from.
        error: How the values compare, as outputs do.
        is_made_up_for: Whether it differs, and on every way to an output there is a value that agrees: an optimizer
            has moved a bias, a scale or the like past it.
        begins: Whether it differs, is not made up for, and is computed from nothing of that kind.
    """

    value: str
    result_value: str
    op: str
    result_op: str
    node: str
    layer: str
    module: str
    dtype: str
    shape: str
    joined_by: Literal["name", "origin"]
    made_by: str
    origins: tuple[str, ...]
    error: OutputRow
    is_made_up_for: bool = False
    begins: bool = False

    @property
    def differs(self) -> bool:
        """Whether it differs, and what is computed from it does not make up for that."""
        return not self.error.agrees and not self.is_made_up_for


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """The values of one layer.

    Attributes:
        layer: Its name; empty for what stands in no module.
        values: How many were compared.
        differing: How many of them differ.
        made_up_for: How many more differ that are made up for; what follows is not about these.
        worst: The greatest error, relative to the value's scale.
        worst_value: The value that has it.
        absolute: The greatest absolute error.
    """

    layer: str
    values: int
    differing: int
    made_up_for: int
    worst: float
    worst_value: str
    absolute: float


@dataclass(frozen=True, slots=True)
class Layers:
    """How the intermediate values of a result compare with those of its original.

    Attributes:
        rows: What was compared, in the order of the original's graph.
        first: The first value that differs and is not made up for; None where there is none.
        agreeing: The nearest values that were compared, of those that the first is computed from: none differs so.
        by_layer: The layers, in the order of the graph.
        original_values: How many tensors the original's main graph computes.
        result_values: How many that of the result computes.
        by_name: How many rows are joined by name.
        by_origin: How many are joined by what is recorded.
        nested: How many values the original computes in subgraphs and functions: these are not compared.
        unlike: Names of both models whose values are of another type or shape, so that they are not compared.
        not_run: Values that could not be computed in the original alone, or that stand behind the first that could not
            be computed in the result.
        batches: In how many parts the values were fetched.
        input_set: What is particular about the input set, and empty where it is an ordinary one.
    """

    rows: tuple[LayerRow, ...]
    first: LayerRow | None
    agreeing: tuple[str, ...]
    by_layer: tuple[LayerSummary, ...]
    original_values: int
    result_values: int
    by_name: int
    by_origin: int
    nested: int
    unlike: tuple[str, ...]
    not_run: tuple[str, ...]
    batches: int
    input_set: str


def layer_of(path: Sequence[str]) -> str:
    """The layer of a node: its modules up to the first that is numbered, else the outer two.

    Args:
        path: The modules around it, outermost first.
    """
    numbered = next((at for at, part in enumerate(path) if _NUMBERED.search(part)), 1)
    return "/".join(path[: numbered + 1])


def by_layer(rows: Iterable[LayerRow]) -> Iterator[LayerSummary]:
    """The layers of some values, in the order in which they begin."""
    layers: dict[str, list[LayerRow]] = {}
    for row in rows:
        layers.setdefault(row.layer, []).append(row)
    for layer, every in layers.items():
        some = [row for row in every if not row.is_made_up_for]
        worst = max(some, key=lambda row: (row.differs, row.error.worst), default=None)
        yield LayerSummary(
            layer,
            len(every),
            sum(row.differs for row in some),
            len(every) - len(some),
            0.0 if worst is None else worst.error.worst,
            "" if worst is None else worst.value,
            max((row.error.absolute for row in some), default=0.0),
        )
