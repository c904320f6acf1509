"""Which rule infers which op, and what a rule sees of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ortopt.graph import symbolic
from ortopt.graph.facts import INTEGERS, MAX_ELEMENTS, Dims, all_contents, contents, dims_of, shape_from, shape_of
from ortopt.graph.integer_ranges import EXACT_IN_DOUBLES, EXACT_IN_FLOATS, Sizes
from ortopt.graph.symbolic import (
    UNKNOWN,
    Dim,
    at_least,
    canonical,
    equal,
    is_capped,
    is_floored,
    is_invented,
    is_one_or_none,
    number_where_zero,
)
from ortopt.onnx_ir_internals import attributes_of
from ortopt.semantics import constant_content

Steps: TypeAlias = Iterator[ir.Graph]
"""A rule for a node with subgraphs yields each graph that must be inferred before the rule goes on."""

Rule: TypeAlias = Callable[["Call"], Steps | None]

RULES: dict[tuple[str, str], Rule] = {}


def rule(*ops: str, domain: str = "", typed: int | ir.DataType | None = None) -> Callable[[Rule], Rule]:
    """Register a function as the rule of these ops, in every opset: the rule asks ``call.version``.

    Args:
        ops: The ops' types.
        domain: Their domain.
        typed: The element type of the first output, or the input that has the same; None leaves it to the rule.
    """

    def register(function: Rule) -> Rule:
        def of_type(call: Call) -> Steps | None:
            call.types[0] = typed if typed is None or isinstance(typed, ir.DataType) else call.dtype(typed)
            return function(call)

        for op in ops:
            if (domain, op) in RULES:
                raise ValueError(f"{domain or 'ai.onnx'}::{op} has two shape rules")
            RULES[domain, op] = function if typed is None else of_type
        return function

    return register


_LONGEST = 200


class Unknown(Exception):  # noqa: N818 -- not knowing is an answer, and no error
    """Something that the rule needs is not known; what it has set so far holds."""


class Host(Protocol):
    """What the run of inference offers to rules.

    Attributes:
        sizes: How large expressions get.
    """

    sizes: Sizes

    def is_positive(self, dim: Dim) -> bool:
        """Whether a dimension is at least 1 wherever the model runs."""

    def is_at_least(self, element: Dim, number: int) -> bool:
        """Whether an element of a tensor of integers is never below a number wherever the model runs."""

    def fails_without(self, node: ir.Node, dim: Dim) -> None:
        """Note that a node fails where a dimension is 0."""

    def doubts(self, node: ir.Node) -> None:
        """Infer a node again once more is known of the sizes."""

    def enter(self, graph: ir.Graph) -> None:
        """Number a nested graph, so that symbols can be invented in it."""

    def reopen(self, inputs: Iterable[ir.Value]) -> None:
        """Let inputs of a nested graph that state no shape forget what an earlier walk was told."""

    def spend(self, graph: ir.Graph) -> bool:
        """Ask whether a body may be walked to learn more; no where loops in loops would go on without end."""


class Call:
    """One node in the eyes of its rule: inputs are asked, outputs are set.

    Whatever a rule does not set stays unknown. A rule may raise `Unknown`, or by mistake anything else (the model may
    be invalid in any way): what it had set before holds.

    Attributes:
        node: The node.
        inputs: Its inputs; None where an optional one is left out.
        version: The opset of the node's domain.
        types: What is known of the outputs' types.
        shapes: What is known of the outputs' shapes.
        contents: What is known of the elements of small integer outputs, as mathematics has them: what may leave the
            range of the output's type is dropped when it is kept. Sums and products say `wrapped`.
        proven: Expressions among them that fit, whatever is known of the sizes: dimensions of tensors.
        believed: Whether the op is one that inference cannot know: what the file declares of the outputs is all there
            is, and is believed.
        host: The run that this is a part of.
    """

    __slots__ = ("believed", "contents", "host", "inputs", "node", "proven", "shapes", "types", "version")

    def __init__(self, node: ir.Node, version: int, host: Host) -> None:
        self.node = node
        self.host = host
        self.believed = False
        self.version = version
        self.inputs = node.inputs
        count = len(node.outputs)
        self.types: list[ir.TypeProtocol | ir.DataType | None] = [None] * count
        self.shapes: list[ir.Shape | Sequence[Dim] | None] = [None] * count
        self.contents: list[Sequence[Dim] | None] = [None] * count
        self.proven: Sequence[Dim] = ()

    # Questions

    def has(self, index: int) -> bool:
        """Whether the input is there."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> ir.Value:
        """The input; raises `Unknown` where it is left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise Unknown
        return value

    def dtype(self, index: int) -> ir.DataType | None:
        """The input's element type, or None."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            return None
        if value.type is None:
            return None if value.const_value is None else value.const_value.dtype
        return value.dtype if isinstance(value.type, ir.TensorType) else None

    def shape(self, index: int) -> ir.Shape:
        """The input's shape in canonical form, frozen; raises `Unknown` where the rank is not known."""
        shape = shape_of(self.value(index))
        if shape is None:
            raise Unknown
        return shape if shape.frozen else _canonical_shape(shape.dims)

    def dims(self, index: int) -> Dims:
        """The input's dimensions; raises `Unknown` where the rank is not known."""
        return self.shape(index).dims

    def dims_or_none(self, index: int) -> Dims | None:
        """The input's dimensions, or None."""
        if not self.has(index):
            return None
        shape = shape_of(self.value(index))
        return None if shape is None else (shape if shape.frozen else _canonical_shape(shape.dims)).dims

    def rank(self, index: int) -> int:
        """The input's rank; raises `Unknown` where it is not known."""
        shape = shape_of(self.value(index))
        if shape is None:
            raise Unknown
        return len(shape)

    def elements(self, index: int) -> Dims | None:
        """The input's elements as `facts.contents` gives them, or None; None too where it is left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        return None if value is None else contents(value)

    def array(self, index: int) -> npt.NDArray[np.object_] | None:
        """The input's elements in its shape, or None where they are not known."""
        value = self.inputs[index] if index < len(self.inputs) else None
        found = None if value is None else all_contents(value)
        dims = None if found is None else self.dims_or_none(index)
        if found is None or dims is None:
            return None
        array = np.empty(len(found), dtype=np.object_)
        array[:] = found
        return array.reshape(integers(dims))

    def integers(self, index: int) -> tuple[int, ...]:
        """The input's elements; raises `Unknown` where one of them is not a known integer."""
        found = self.elements(index)
        if found is None:
            raise Unknown
        return integers(found)

    def floored(self, element: Dim) -> Dim:
        """The element, or 0 where it is below: unless it never is where the model runs."""
        return element if self.host.is_at_least(element, 0) else symbolic.maximum(element, 0)

    def quotient(self, a: Dim, b: Dim) -> Dim:
        """A quotient of integers, rounded towards 0."""
        if isinstance(a, int) and isinstance(b, int):
            return truncated(a, b) if b else UNKNOWN
        if (exact := symbolic.quotient_exact(a, b)) is not None:
            return exact
        if self.host.is_at_least(a, 0) and self.host.is_at_least(b, 0):
            return symbolic.floordiv(a, b)
        if not isinstance(b, int) or b < 1:
            return UNKNOWN
        towards_zero = symbolic.maximum(symbolic.floordiv(a, b), symbolic.minimum(symbolic.ceildiv(a, b), 0))
        # It names the dividend twice: after a few poolings nobody reads it, so the dimension gets a name of its own.
        return towards_zero if len(str(towards_zero)) <= _LONGEST else UNKNOWN

    def survives_doubles(self, *elements: Dim) -> bool:
        """Whether a kernel that computes with doubles has the exact elements, whatever the sizes are."""
        sizes = self.host.sizes
        return all(sizes.lies_within(element, -EXACT_IN_DOUBLES, EXACT_IN_DOUBLES) for element in elements)

    def survives_floats(self, element: Dim) -> bool:
        """Whether single precision has the exact number of elements of the first output.

        It has where that output, which is as long as the rounded number says, is short enough. Where it is not known,
        the node is inferred again when more is known of the sizes.
        """
        sizes, own = self.host.sizes, dims_of(self.node.outputs[0])
        if sizes.lies_within(element, -EXACT_IN_FLOATS, EXACT_IN_FLOATS):
            return True
        length = own[0] if own is not None and len(own) == 1 else UNKNOWN
        if is_invented(length) and sizes.lies_within(length, 0, EXACT_IN_FLOATS - 1):  # others may be claims of a file
            return True
        self.host.doubts(self.node)
        return False

    def attribute(self, name: str, default: Any = None) -> Any:
        """The attribute's value, or the default; raises `Unknown` for a reference to a function's attribute."""
        attribute = attributes_of(self.node).get(name)
        if attribute is None:
            return default
        if attribute.is_ref():
            raise Unknown
        return attribute.value

    def constant(self, index: int) -> ir.TensorProtocol | None:
        """The input as a constant tensor of any type, or None."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            return None
        producer = value.producer()
        if producer is None:
            return None if value.is_graph_input() else value.const_value
        if producer.op_type == "Constant" and producer.domain == "":
            return constant_content(producer)
        return value.const_value

    # Answers

    def set(
        self,
        index: int,
        dtype: ir.DataType | ir.TypeProtocol | None,
        dims: ir.Shape | Sequence[Dim] | None = None,
        known: Sequence[Dim] | None = None,
    ) -> None:
        """Say what an output is; nothing happens where the node has no such output."""
        if index < len(self.types):
            self.types[index] = dtype
            self.shapes[index] = dims
            if known is not None and len(known) <= MAX_ELEMENTS and (not known or any(map(_is_known, known))):
                self.contents[index] = tuple(known)

    def hold(self, array: Any) -> None:
        """Say what the elements of the first output are: a numpy array of objects in its shape, or one element."""
        found = np.asarray(array, dtype=np.object_)
        known: list[Dim] = found.reshape(-1).tolist()
        if found.size <= MAX_ELEMENTS and any(map(_is_known, known)):
            self.contents[0] = tuple(known)

    def same(self, output: int, index: int) -> None:
        """Say that an output has the type and shape of an input."""
        if output >= len(self.types):
            return
        value = self.value(index)
        self.types[output] = self.dtype(index) or value.type
        shape = shape_of(value)
        if shape is not None:
            self.shapes[output] = shape if shape.frozen else _canonical_shape(shape.dims)

    def share_type(self, index: int) -> None:
        """Say that all outputs have the element type of an input."""
        self.types[:] = [self.dtype(index)] * len(self.types)

    def keep_elements(self) -> None:
        """Say that the first output has the elements of the first input, in their order."""
        if self.dtype(0) in INTEGERS:
            self.contents[0] = all_contents(self.value(0))

    def shape_as_listed(self, index: int, least: int = 0) -> None:
        """Say that the first output has as many dimensions as an input lists, at least so many."""
        vector = self.dims(index)
        if len(vector) == 1 and isinstance(vector[0], int):
            self.shapes[0] = (UNKNOWN,) * min(max(vector[0], least), MAX_ELEMENTS)

    def output_count(self) -> int:
        """How many outputs the node has, left out ones before the last included."""
        return len(self.types)

    def tracks(self, *indices: int) -> bool:
        """Whether these inputs may have contents worth following: integers of rank 0 or 1."""
        for index in indices:
            if self.dtype(index) not in INTEGERS:
                return False
            shape = shape_of(self.value(index))
            if shape is None or len(shape) > 1:
                return False
        return True

    def turns(self, index: int = 0) -> npt.NDArray[np.object_] | None:
        """The elements of an input as an array to reshape, slice or join, or None where there is nothing to follow."""
        return self.array(index) if self.dtype(index) in INTEGERS else None


def _is_known(element: Dim) -> bool:
    return isinstance(element, int) or element.value is not None


def _canonical_shape(dims: Iterable[Dim]) -> ir.Shape:
    return shape_from(tuple(dim if isinstance(dim, int) else canonical(dim) for dim in dims))


def integers(dims: Iterable[Dim]) -> tuple[int, ...]:
    """The same as integers; raises `Unknown` where one is not."""
    result = []
    for dim in dims:
        if not isinstance(dim, int):
            raise Unknown
        result.append(dim)
    return tuple(result)


def axis_of(axis: int, rank: int) -> int:
    """The axis counted from the front; raises `Unknown` where there is no such axis."""
    if not -rank <= axis < rank:
        raise Unknown
    return axis % rank


def axes_of(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """The axes counted from the front; raises `Unknown` where there is no such axis."""
    return tuple(axis_of(axis, rank) for axis in axes)


@lru_cache(1 << 14)
def broadcast(a: Dims, b: Dims) -> Dims:
    """The dimensions that two shapes broadcast to; unknown dimensions where that depends on the symbols' values.

    Raises:
        Unknown: If they provably do not broadcast.
    """
    if len(a) < len(b):
        a, b = b, a
    offset = len(a) - len(b)
    return a[:offset] + tuple(broadcast_dim(x, y) for x, y in zip(a[offset:], b, strict=True))


@lru_cache(1 << 14)
def broadcast_shape(a: Dims, b: Dims) -> ir.Shape:
    """As `broadcast`; the same frozen shape for the same operands."""
    return shape_from(broadcast(a, b))


def truncated(number: int, divisor: int) -> int:
    """The quotient of two integers, rounded towards 0."""
    return number // divisor if (number < 0) == (divisor < 0) else -(-number // divisor)


def broadcast_dim(x: Dim, y: Dim) -> Dim:
    """The dimension that two dimensions broadcast to; a symbol of its own, or unknown, if that is all that is known."""
    if isinstance(x, int) and isinstance(y, int):
        if y in (x, 1):
            return x
        if x == 1:
            return y
        raise Unknown
    if isinstance(y, int):
        x, y = y, x
    if isinstance(x, int):
        return y if x == 1 else x  # a symbol beside 4 is 1 or 4, beside 0 it is 1 or 0
    if equal(x, y) or at_least(x, 2):
        return x
    if at_least(y, 2) or is_capped(x, y, 2):
        return y  # beside min(512, N) it is N: they are equal, or else neither is 1 and the model does not run
    if is_capped(y, x, 2) or is_floored(y, x, 1):
        return x  # beside max(1, N) it is N: they are equal, or else N is 0 and the other 1
    if is_floored(x, y, 1) or is_one_or_none(x, y) or number_where_zero(x, y):
        return y
    if number_where_zero(y, x):
        return x  # they are equal, or else x is 0 and the model does not run, or the result is 0 as well
    return x if is_one_or_none(y, x) else symbolic.broadcast(x, y)


def meet(x: Dim, y: Dim) -> Dim:
    """What is known of a dimension that is both, where two inputs must agree: the better known of the two."""
    if isinstance(x, int):
        return x
    return y if isinstance(y, int) or x.value is None else x


def join(x: Dim, y: Dim) -> Dim:
    """What is known of a dimension that is one of the two."""
    return x if equal(x, y) else UNKNOWN


def join_dims(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> Dims | None:
    """What is known of a shape that is one of the two."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(map(join, a, b))
