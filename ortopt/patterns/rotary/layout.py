"""Which dimensions of the heads are batch, positions and heads: the tables tell, as they vary along positions."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph import symbolic
from ortopt.graph.match import Dim, Refusal, need, same_dim
from ortopt.patterns.rotary.lanes import Source, outer


class Order(enum.Enum):
    """Where positions stand among the dimensions in front of a head."""

    POSITIONS_FIRST = 0
    """[positions, heads …]: one sequence."""

    HEADS_LAST = 1
    """[batch, positions, heads …]."""

    HEADS_FIRST = 2
    """[batch, heads, positions]."""


class Layout(Struct, frozen=True):
    """The dimensions in front of a head.

    Attributes:
        around: All of them.
        order: Where positions stand.
        varying: The dimensions that tables vary along: positions, and the batch if each sequence has tables of its own.
    """

    around: tuple[Dim, ...]
    order: Order
    varying: tuple[int, ...]

    @property
    def shared(self) -> bool:
        """Whether there is one table for all sequences."""
        return len(self.varying) < 2

    @property
    def heads(self) -> tuple[Dim, ...]:
        """The dimensions that count heads."""
        if self.order is Order.HEADS_FIRST:
            return self.around[1:2]
        return self.around[self.order.value + 1 :]

    @property
    def head_count(self) -> int:
        """How many heads there are."""
        return math.prod(dim for dim in self.heads if isinstance(dim, int))


def layout_of(around: tuple[Dim, ...], tables: Sequence[Source], about: ir.Value) -> Layout:
    """The layout of heads that tables are multiplied with.

    Args:
        around: The dimensions in front of a head.
        tables: The tables; their dimensions are aligned with the last of these.
        about: What a refusal is about.

    Raises:
        Refusal: If no op has such a layout.
    """
    need(2 <= len(around) <= 4, "the heads have too many dimensions, or too few", about)
    found = {_varying(around, table) for table in tables}
    need(len(found) == 1, "the tables have different dimensions", about)
    varying = found.pop()
    layout = Layout(around, _order(around, varying, about), varying)
    known = all(isinstance(dim, int) and dim > 0 for dim in layout.heads)
    need(known, "the number of heads is not known", about)
    return layout


def _order(around: tuple[Dim, ...], varying: tuple[int, ...], about: ir.Value) -> Order:
    """Where positions stand.

    Raises:
        Refusal: If no op has such an order.
    """
    if varying == (0,):
        return Order.POSITIONS_FIRST
    if varying in {(1,), (0, 1)} or (not varying and same_dim(around[1], 1)):
        return Order.HEADS_LAST
    single = not varying and len(around) == 3 and same_dim(around[2], 1)
    if single or (varying in {(2,), (0, 2)} and len(around) == 3):
        return Order.HEADS_FIRST
    raise Refusal("the tables vary along other dimensions than batch and positions", about)


def _alike(dim: Dim, whole: Dim) -> bool:
    """Whether a table's dimension is that of the heads wherever the model runs."""
    if same_dim(dim, whole) or same_dim(dim, symbolic.maximum(whole, 0)):  # no dimension is below 0
        return True
    return symbolic.is_capped(dim, whole, 2)  # the end of a cache: shorter ones are refused, as 1 is none of them


def _varying(around: tuple[Dim, ...], table: Source) -> tuple[int, ...]:
    """The dimensions that a table varies along."""
    own = outer(*table)
    need(len(own) <= len(around), "a table has more dimensions than the heads", table.value)
    own = (*((1,) * (len(around) - len(own))), *own)
    for dim, whole in zip(own, around, strict=True):
        need(
            same_dim(dim, 1) or _alike(dim, whole),
            "a table is not known to have the batch size and length of the heads",
            table.value,
        )
    return tuple(place for place, dim in enumerate(own) if not same_dim(dim, 1))
