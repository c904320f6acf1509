"""What a reader of an op is, and new nodes: as others are but for some attributes, in the form of an opset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir

from ortopt.graph.detached import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import Refusal, attribute, need, optional
from ortopt.graph.provenance import stands_for
from ortopt.semantics.opset_changes import AXES_ARE_AN_INPUT_FROM, SIZES_ARE_AN_INPUT_FROM


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


Setting: TypeAlias = int | float | str | Sequence[int] | None
"""What an attribute is set to; None leaves it out."""


def changed(attributes: Iterable[ir.Attr], **settings: Setting) -> list[ir.Attr]:
    """Attributes, some of them changed, added or left out.

    Args:
        attributes: Those of a node.
        settings: The others by name: a number, a text, a list of integers, or None for one that is left out.
    """
    kept = [entry for entry in attributes if entry.name not in settings]
    return [*kept, *(_attribute(name, to) for name, to in settings.items() if to is not None)]


def _attribute(name: str, content: Setting) -> ir.Attr:
    if isinstance(content, str):
        return ir.AttrString(name, content)
    if isinstance(content, float):
        return ir.AttrFloat32(name, content)
    return ir.AttrInt64(name, int(content)) if isinstance(content, int) else ir.AttrInt64s(name, content or ())


def copied(node: ir.Node, operands: Sequence[ir.Value | None], **settings: Setting) -> ir.Node:
    """A new node of the same op on other operands, with one output; it stands for the node that it is a copy of.

    Args:
        node: The node to copy.
        operands: What the copy reads.
        settings: Attributes that differ (see `changed`).
    """
    return stands_for(ir.Node(node.domain, node.op_type, operands, changed(node.attributes.values(), **settings)), node)


def followed(value: ir.Value, nodes: Iterable[ir.Node]) -> ir.Value:
    """What copies of some nodes give, the first of another value, each other one of the result of the one before.

    Args:
        value: What the first of them reads as its first operand.
        nodes: The nodes.
    """
    for node in nodes:
        value = copied(node, [value, *node.inputs[1:]]).outputs[0]
    return value


def node_along(
    op: str,
    value: ir.Value,
    axes: Sequence[int],
    version: int,
    attributes: Mapping[str, int] | None = None,
) -> ir.Node:
    """A new node of an op that goes along axes, as the opset wants them.

    Args:
        op: Squeeze, Unsqueeze, or a reduction.
        value: What it reads.
        axes: Along what.
        version: The opset of ai.onnx where the node will stand.
        attributes: Its other attributes.
    """
    if version < AXES_ARE_AN_INPUT_FROM[op]:
        return ir.node(op, [value], {"axes": list(axes), **(attributes or {})})
    return ir.node(op, [value, constant(list(axes))], attributes)


def squeezed(value: ir.Value, axes: Sequence[int], version: int) -> ir.Value:
    """A value without axes of one element (see `node_along`)."""
    return node_along("Squeeze", value, axes, version).outputs[0]


def unsqueezed(value: ir.Value, axes: Sequence[int], version: int) -> ir.Value:
    """A value with new axes of one element (see `node_along`)."""
    return node_along("Unsqueeze", value, axes, version).outputs[0]


def split_node(value: ir.Value, axis: int, sizes: Sequence[int], version: int) -> ir.Node:
    """A Split into parts, as the opset wants it.

    Args:
        value: What is split.
        axis: Along which axis.
        sizes: The sizes of the parts.
        version: The opset of ai.onnx where the node will stand.
    """
    if version < SIZES_ARE_AN_INPUT_FROM["Split"]:
        return ir.node("Split", [value], {"axis": axis, "split": list(sizes)}, num_outputs=len(sizes))
    return ir.node("Split", [value, constant(list(sizes))], {"axis": axis}, num_outputs=len(sizes))
