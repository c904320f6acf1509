"""Ops along axes: one that an attribute names, or several in a list."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt.graph import symbolic
from ortopt.graph.facts import contents
from ortopt.graph.match import Dim, Refusal, attribute, inputs, need, opset, optional, rank, shape_of
from ortopt.ops.reader import Reader
from ortopt.semantics.opset_changes import ONE_AXIS_FROM, SIZES_ARE_AN_INPUT_FROM

_DEFAULTS: Final = {
    "ArgMax": 0,
    "ArgMin": 0,
    "DFT": 1,
    "DequantizeLinear": 1,
    "Flatten": 1,
    "Gather": 0,
    "GatherElements": 0,
    "Hardmax": -1,
    "LayerNormalization": -1,
    "LogSoftmax": -1,
    "LpNormalization": -1,
    "OneHot": -1,
    "QLinearSoftmax": -1,
    "QuantizeLinear": 1,
    "RMSNormalization": -1,
    "Scatter": 0,
    "ScatterElements": 0,
    "SimplifiedLayerNormalization": -1,
    "Softmax": -1,
    "Split": 0,
    "SplitToSequence": 0,
    "TopK": -1,
}
"""The axis where the attribute is left out, in the newest opset."""

_OF_THE_RESULT: Final = frozenset({"Concat", "ConcatFromSequence", "OneHot"})
"""Ops whose axis is one of the result."""


class OneAxis(Reader):
    """An op along one axis that its attribute names, as Gather, Split, Softmax, TopK or LayerNormalization."""

    __slots__ = ()

    @property
    def axis(self) -> int:
        """The axis, counted from the front.

        Raises:
            Refusal: If it is out of range, or the rank is not known.
        """
        return self.axis_of(self._rank())

    def _rank(self) -> int:
        """The rank that the axis counts in."""
        node = self.node
        return rank(node.outputs[0] if node.op_type in _OF_THE_RESULT else inputs(node, 1)[0])

    @property
    def is_stated(self) -> bool:
        """Whether an attribute says the axis."""
        return "axis" in self.node.attributes

    @property
    def is_last(self) -> bool:
        """Whether the axis is the last one.

        Raises:
            Refusal: If it is out of range, or the rank is not known.
        """
        return self.axis == self._rank() - 1

    def axis_of(self, size: int) -> int:
        """The axis in a rank, counted from the front.

        Args:
            size: The rank.

        Raises:
            Refusal: If it is out of range.
        """
        axis = self.stated_axis
        need(-size <= axis < size, "the axis is out of range", self.node)
        return axis % size

    def is_along(self, other: OneAxis, value: ir.Value) -> bool:
        """Whether another op is along the same axis of a value, whose rank need not be known if both say the same.

        Raises:
            Refusal: If an axis is out of range.
        """
        if self.stated_axis == other.stated_axis:
            return True
        shape = shape_of(value)
        return shape is not None and self.axis_of(len(shape)) == other.axis_of(len(shape))

    @property
    def stated_axis(self) -> int:
        """The axis as it is written, which may be counted from the end; the default where it is left out."""
        absent: int | None = None
        axis = attribute(self.node, "axis", absent)
        return self._default() if axis is None else axis

    def _default(self) -> int:
        op = self.node.op_type
        if op in ONE_AXIS_FROM and opset(self.node) < ONE_AXIS_FROM[op]:
            return 1
        if op not in _DEFAULTS:
            raise Refusal("it names no axis", self.node)
        return _DEFAULTS[op]


class Concat(OneAxis):
    """A Concat."""

    __slots__ = ()


class Gather(OneAxis):
    """A Gather."""

    __slots__ = ()


class Split(OneAxis):
    """A Split."""

    __slots__ = ()

    @property
    def stated_sizes(self) -> tuple[Dim, ...] | None:
        """The sizes of the parts as they are written: in an attribute, or from some opset on in an input; or None.

        Raises:
            Refusal: If they are not known.
        """
        if opset(self.node) < SIZES_ARE_AN_INPUT_FROM["Split"]:
            return self._given("split")
        given = optional(self.node, 1)
        known = None if given is None else contents(given)
        need(given is None or known is not None, "the sizes of the parts are not known", self.node)
        return known

    def sizes_of(self, size: Dim) -> tuple[Dim, ...]:
        """The sizes of the parts of a dimension.

        Args:
            size: The dimension that is split.

        Raises:
            Refusal: If they are not known.
        """
        stated, count = self.stated_sizes, len(self.node.outputs)
        if stated is not None:
            need(len(stated) == count, "it makes other parts", self.node)
            return stated
        if isinstance(size, int):
            part = -(-size // count)
            return (*[part] * (count - 1), size - part * (count - 1))
        part_of = symbolic.quotient_exact(size, count)
        if part_of is None:
            raise Refusal("the sizes of the parts are not known", self.node)
        return (part_of,) * count


class Softmax(OneAxis):
    """A Softmax, LogSoftmax or Hardmax."""

    __slots__ = ()

    @property
    def flattens(self) -> bool:
        """Whether all dimensions from the axis on are one, as before opset 13."""
        return opset(self.node) < ONE_AXIS_FROM[self.node.op_type]


class SplitToSequence(OneAxis):
    """A SplitToSequence."""

    __slots__ = ()

    @property
    def keeps_axis(self) -> bool:
        """Whether parts of size 1 keep the axis, where no sizes are given."""
        return attribute(self.node, "keepdims", 1) != 0


class Flatten(OneAxis):
    """A Flatten; its axis may be behind the last."""

    __slots__ = ()

    def axis_of(self, size: int) -> int:
        """The axis in a rank, counted from the front.

        Args:
            size: The rank.

        Raises:
            Refusal: If it is out of range.
        """
        axis = self.stated_axis
        need(-size <= axis <= size, "the axis is out of range", self.node)
        return axis + size if axis < 0 else axis


class Axes(Reader):
    """An op along axes that are listed: in an attribute, or from some opset on in the second input."""

    __slots__ = ()

    @property
    def stated_axes(self) -> tuple[int, ...]:
        """The axes as they are written; empty where none are named.

        Raises:
            Refusal: If they are not known.
        """
        return self._listed(1, "axes") or self._given("axes") or ()

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes in order, counted from the front: those of the result that are new for Unsqueeze, else of the input.

        Raises:
            Refusal: If none are named, or they are not known, or out of range.
        """
        new = len(self.stated_axes) if self.node.op_type == "Unsqueeze" else 0
        return self.axes_of(rank(inputs(self.node, 1)[0]) + new)

    def axes_of(self, size: int) -> tuple[int, ...]:
        """The axes in a rank, in order, counted from the front.

        Args:
            size: The rank.

        Raises:
            Refusal: If none are named, or they are not known, or out of range.
        """
        stated = self.stated_axes
        need(bool(stated), "it names no axes", self.node)
        return tuple(sorted(set(self._from_front(stated, size))))


class Reduce(Axes):
    """A reduction, ArgMax and ArgMin among them."""

    __slots__ = ()

    def axes_of(self, size: int) -> tuple[int, ...]:
        """The axes that are reduced, as above: all where none are named, none where that is asked for.

        Args:
            size: The rank.

        Raises:
            Refusal: If they are not known, or out of range.
        """
        if self.node.op_type in ("ArgMax", "ArgMin"):
            return (OneAxis(self.node).axis_of(size),)
        if not self.stated_axes:
            return () if self.does_nothing else tuple(range(size))
        return super().axes_of(size)

    @property
    def does_nothing(self) -> bool:
        """Whether it names no axes, and then reduces none: for ONNX Runtime, 1 alone is true."""
        return attribute(self.node, "noop_with_empty_axes", 0) == 1 and not self.stated_axes

    @property
    def keeps_axes(self) -> bool:
        """Whether the axes stay, with size 1: likewise."""
        return attribute(self.node, "keepdims", 1) == 1


class Squeeze(Axes):
    """A Squeeze."""

    __slots__ = ()


class Unsqueeze(Axes):
    """An Unsqueeze."""

    __slots__ = ()
