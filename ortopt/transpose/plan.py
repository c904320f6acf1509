"""What an op needs to work in another layout, and the registry of those that can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import onnx_ir as ir
from msgspec import Struct

from ortopt import semantics
from ortopt.graph import scope, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, integers, is_constant, need, need_known, opset, optional, shape_of
from ortopt.onnx_ir_internals import use_count
from ortopt.ops import OneAxis, Setting, changed
from ortopt.transpose.layout import Layout, Perm, inverse

SMALL_NODE = 1024
"""What a node on a small tensor costs, in bytes through a transpose."""

TYPICAL_SIZE = 16
"""What a dimension that is not known counts."""

FIRST_OPSET = 7
"""Elementwise ops broadcast as they do now from here on."""


class Flexible(Struct, frozen=True):
    """An input that is taken in either orientation, by an attribute."""


FLEXIBLE: Final = Flexible()


class Lift(Struct, frozen=True):
    """An operand of lower rank, which broadcasts: it is brought into a layout, and gets axes of size 1.

    Attributes:
        layout: The operand's layout relative to what is lifted.
        axes: Where the axes of size 1 come in.
    """

    layout: Layout
    axes: tuple[int, ...]


Demand: TypeAlias = Layout | Lift | Flexible


class Operands(Struct, frozen=True):
    """What a node in another layout is built on.

    Attributes:
        values: The inputs, each as its demand says.
        swapped: Which of the flexible inputs come in the other orientation.
    """

    values: list[ir.Value | None]
    swapped: tuple[bool, ...]


class Plan(NamedTuple):
    """How a node works in another layout.

    Attributes:
        inputs: What it needs of each input: its layout relative to the input that is wanted; None is as it is.
        outputs: The layout of each output relative to the output of the new node; None is as it is.
        build: Makes the node in the other layout; returns what stands for each output.
        cost: What it costs besides transposes, in bytes through a transpose.
    """

    inputs: tuple[Demand, ...]
    outputs: tuple[Layout, ...]
    build: Callable[[Operands], Sequence[ir.Value]]
    cost: int = 0


class At(Struct, frozen=True):
    """The input or output of a node from which a layout reaches it.

    Attributes:
        is_output: Whether it is an output.
        position: Which.
        layout: The layout of that value relative to what is wanted there.
    """

    is_output: bool
    position: int
    layout: Perm

    @property
    def moves_last_axis(self) -> bool:
        """Whether the last axis is another one in the other layout."""
        return self.layout[-1] != len(self.layout) - 1


_OPTIONAL_OUTPUTS = frozenset({"Dropout", "LayerNormalization"})

Handler: TypeAlias = Callable[[ir.Node, At], Plan]

_HANDLERS: dict[tuple[str, str], Handler] = {}


def typical_size(dim: Dim, each: int = TYPICAL_SIZE) -> int:
    """A dimension, or what it counts where it is not known.

    What strided ops leave of a short signal is nothing: such a dimension counts as one that is not known.

    Args:
        dim: The dimension.
        each: What each symbol in it counts.
    """
    return dim if isinstance(dim, int) else _typical(dim.value, each)


@lru_cache(1 << 12)
def _typical(text: str | None, each: int) -> int:
    if text is None:
        return each
    dim = symbolic.canonical(text)
    size = symbolic.substitute(dim, dict.fromkeys(symbolic.symbols(dim), each))
    return size if isinstance(size, int) and size > 1 else each


def handles(*ops: str, domain: str = "") -> Callable[[Handler], Handler]:
    """Register how some ops work in another layout."""

    def register(handler: Handler) -> Handler:
        for op in ops:
            assert (domain, op) not in _HANDLERS, op
            _HANDLERS[domain, op] = handler
        return handler

    return register


def ops() -> frozenset[tuple[str, str]]:
    """The domains and types of the ops that transposes can pass."""
    return frozenset(_HANDLERS)


def plan(node: ir.Node, at: At) -> Plan:
    """How a node works in another layout.

    Args:
        node: A node of a graph.
        at: Where the layout reaches it.

    Raises:
        Refusal: If it cannot.
    """
    handler = need_known(_HANDLERS.get((node.domain, node.op_type)), f"transposes do not pass {node.op_type}", node)
    own = scope.of_node(node).model.functions
    need(not own or node.op_identifier() not in own, "it is a local function", node)
    need(opset(node) >= FIRST_OPSET, f"transposes move from opset {FIRST_OPSET} on", node)
    need(not semantics.is_random(node), "its results are random", node)
    full_plan = handler(node, at)
    return full_plan._replace(
        inputs=tuple(
            None if isinstance(demand, tuple) and not isinstance(demand, Lift | Flexible) and is_one(value) else demand
            for value, demand in zip(node.inputs, full_plan.inputs, strict=True)
        ),
        outputs=tuple(
            None if is_one(value) else layout for value, layout in zip(node.outputs, full_plan.outputs, strict=True)
        ),
    )


def is_one(value: ir.Value | None) -> bool:
    """Whether a value has one element, and so all layouts at once."""
    shape = None if value is None else shape_of(value)
    return shape is not None and all(isinstance(dim, int) and dim == 1 for dim in shape)


# -- plans that many ops share ---------------------------------------------------------------------------------------


def need_data(node: ir.Node, at: At) -> None:
    """Refuse a layout that comes from a parameter: the first input and the results have layouts."""
    need(at.is_output or at.position == 0, f"it is a parameter of {node.op_type}", node)


def axis_of(node: ir.Node, at: At) -> int:
    """The axis that a node names, in the other layout."""
    return at.layout[OneAxis(node).axis_of(len(at.layout))]


def follows(node: ir.Node, at: At, **settings: Setting) -> Plan:
    """The plan of a node whose first input and results take the layout.

    Args:
        node: The node.
        at: Where the layout reaches it.
        settings: Attributes that differ (see `ortopt.ops.changed`).
    """
    need_data(node, at)
    inputs = (at.layout, *(None for _ in node.inputs[1:]))
    return Plan(
        inputs,
        (at.layout,) * len(node.outputs),
        lambda operands: rebuilt(node, operands.values, op_type="", **settings),
    )


def follows_with(node: ir.Node, at: At, position: int, parameter: Callable[[], ir.Value]) -> Plan:
    """As `follows`, where a parameter differs.

    Args:
        node: The node.
        at: Where the layout reaches it.
        position: Which input; one behind the last is added.
        parameter: Builds it.
    """

    def build(operands: Operands) -> Sequence[ir.Value]:
        values = list(operands.values)
        values[position : position + 1] = [parameter()]
        return rebuilt(node, values)

    old = optional(node, position)
    return follows(node, at)._replace(build=build, cost=0 if old is None or is_constant(old) else SMALL_NODE)


# -- building ---------------------------------------------------------------------------------------------------------


def rebuilt(
    node: ir.Node,
    inputs: Sequence[ir.Value | None],
    *,
    op_type: str = "",
    **settings: Setting,
) -> Sequence[ir.Value]:
    """A node as another one, on other inputs.

    Args:
        node: The other node.
        inputs: The inputs.
        op_type: The op, if another one.
        settings: Attributes that differ (see `ortopt.ops.changed`).

    Returns:
        Its outputs; optional ones that nobody uses are left out.
    """
    count = len(node.outputs)
    while count > 1 and node.op_type in _OPTIONAL_OUTPUTS:
        last = node.outputs[count - 1]
        if use_count(last) or last.is_graph_output():
            break
        count -= 1
    new = ir.Node(
        node.domain,
        op_type or node.op_type,
        inputs,
        changed(node.attributes.values(), **settings),
        overload=node.overload,
        num_outputs=count,
    )
    return new.outputs


def rearranged(vector: ir.Value, positions: Sequence[int]) -> ir.Value:
    """A list of integers in another order: a constant, or a Gather.

    Args:
        vector: A tensor of rank 1, constant or not.
        positions: For each place of the result, the place in `vector`.
    """
    if not is_constant(vector):
        return ir.node("Gather", [vector, constant(list(positions))], attributes={"axis": 0}).outputs[0]
    content = integers(vector)
    assert vector.dtype is not None
    return constant([content[position] for position in positions], vector.dtype)


def by_axis(vector: ir.Value, perm: Perm) -> ir.Value:
    """A vector with one item for each axis of a value, for the axes of what it is the transposed of."""
    back = inverse(perm)
    return vector if back is None else rearranged(vector, back)


def axes_by(axes: Sequence[int], perm: Perm) -> tuple[int, ...]:
    """Axes of a value as axes of what it is the transposed of, in increasing order."""
    return tuple(sorted(perm[axis] for axis in axes))
