"""What a reader of an op is: a node, seen as the op's specification defines it."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.facts import contents
from ortopt.graph.match import Refusal, attribute, need, optional


class Reader:
    """A node, read as its op defines it: with defaults, in the form of any opset, and axes counted from the front.

    All that it tells is read when it is asked for, and refused where it is not known, or decided by a caller.

    Attributes:
        node: The node.
    """

    __slots__ = ("node",)

    def __init__(self, node: ir.Node) -> None:
        self.node = node

    def _given(self, name: str) -> tuple[int, ...] | None:
        """A list of integers among the attributes; None where it is left out."""
        absent: tuple[int, ...] | None = None
        return attribute(self.node, name, absent)

    def _listed(self, position: int, what: str) -> tuple[int, ...] | None:
        """A list of integers that is an input; None where it is left out."""
        value = optional(self.node, position)
        if value is None:
            return None
        known = contents(value)
        numbers = () if known is None else tuple(number for number in known if isinstance(number, int))
        if known is None or len(numbers) != len(known):
            raise Refusal(f"the {what} are not known", value)
        return numbers

    def _from_front(self, axes: tuple[int, ...], of: int) -> tuple[int, ...]:
        """Axes counted from the front."""
        need(all(-of <= axis < of for axis in axes), "an axis is out of range", self.node)
        return tuple(axis % of for axis in axes)
