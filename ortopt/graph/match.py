"""Questions that a match asks: each answers, or refuses with a reason that a user can read.

A refusal is an exception, `Refusal`, so that a match reads as a list of conditions with the happy path at the lowest
indent. Nothing here changes a graph.

Where a pattern can be found in several ways, as the operands of an Add can stand in two orders, the match takes one
with `choose` (`operand_from` and `operand_constant` do), and goes on as if it were the right one: after a refusal the
match is run again with the next (see `ortopt.graph.backtracking`). So a match must not keep anything between its runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar, cast

import numpy as np
import onnx_ir as ir

from ortopt.graph import facts, scope, symbolic
from ortopt.graph.backtracking import MAX_ALTERNATIVES, choose, first_match
from ortopt.graph.constants import (
    BFLOAT16,
    DOUBLE,
    EPSILONS,
    FLOAT,
    FLOAT16,
    FLOATS,
    SMALL,
    array_of,
    integers,
    is_constant,
    is_scalar,
    scalar,
    small_array,
    tensor_of,
)
from ortopt.graph.refusal import ONLY_DECLARED, Absent, Code, Refusal, need, need_known, need_present
from ortopt.graph.walk import Question, walk
from ortopt.onnx_ir_internals import attributes_of, first_use, use_count
from ortopt.semantics.op_traits import MOVING

T = TypeVar("T")
Dim = int | ir.SymbolicDim

INTEGERS = facts.INTEGERS - {ir.DataType.BOOL}
"""The element types of whole numbers; arithmetic in them is exact, and wraps around."""


def with_claims(refusal: Refusal, node: ir.Node, match: Callable[[ir.Node], object] | None = None) -> Refusal:
    """The refusal, with what is declared but not proven of the values around a node; for a user who asks why.

    Args:
        refusal: Why a node is left as it is.
        node: The node.
        match: The match that refused: only claims that would change its answer are added. None adds all.
    """
    values = [item for item in (*node.inputs, *node.outputs, *refusal.about) if isinstance(item, ir.Value)]
    claims = tuple(value for value in dict.fromkeys(values) if facts.claim_of(value) is not None)
    if claims and (match is None or _says_otherwise(refusal, node, match, claims)):
        refusal.claims = claims
    return refusal


def _says_otherwise(
    refusal: Refusal, node: ir.Node, match: Callable[[ir.Node], object], claims: Sequence[ir.Value]
) -> bool:
    with facts.believed(claims):
        try:
            first_match(match, node)
        except Refusal as other:
            return str(other) != str(refusal)
        return True


# -- nodes ------------------------------------------------------------------------------------------------------------


def opset(node: ir.Node, domain: str | None = None) -> int:
    """The version of a domain where a node stands.

    Args:
        node: A node of a graph.
        domain: The domain; None is the node's own.

    Raises:
        Refusal: If the domain is not imported there.
    """
    where = node.domain if domain is None else domain
    version = scope.of_node(node).opset_imports.get(where)
    if version is None:
        raise Refusal(f"the domain {where!r} is not imported", node)
    return version


def is_op(node: ir.Node | None, *ops: str, domain: str = "") -> TypeGuard[ir.Node]:
    """Whether a node is one of some ops.

    Args:
        node: A node, or None.
        ops: Op types.
        domain: Their domain.
    """
    return node is not None and node.domain == domain and node.op_type in ops


def producer(value: ir.Value | None, *ops: str, domain: str = "", alone: str = "") -> ir.Node:
    """The node behind a value, which must be one of some ops.

    Args:
        value: A value, or None for an input that is left out.
        ops: Op types.
        domain: Their domain.
        alone: Why more than one reader of the value, or a graph output, is refused; they are not if it is empty.

    Raises:
        Refusal: If the value comes from elsewhere, or has other readers.
    """
    node = None if value is None else value.producer()
    if node is None or node.domain != domain or node.op_type not in ops:
        raise Absent(f"no {' or '.join(ops)} comes before", value)
    if alone and value is not None and not is_used_once(value):
        raise Refusal(alone, value)
    return node


def before(value: ir.Value, *ops: str, most: int = sys.maxsize) -> ir.Value:
    """The value that some ops made another one of, each from its first operand: itself where none did.

    Args:
        value: A value.
        ops: Op types.
        most: How many nodes are passed.
    """
    for _ in range(most):
        node = value.producer()
        source = node.inputs[0] if is_op(node, *ops) and node.inputs else None
        if source is None:
            break
        value = source
    return value


def inputs(node: ir.Node, count: int) -> tuple[ir.Value, ...]:
    """The first inputs of a node, all of them present.

    Args:
        node: A node.
        count: How many.

    Raises:
        Refusal: If one is left out.
    """
    present = node.inputs[:count]
    if len(present) != count or None in present:
        raise Refusal(f"{node.op_type} has an input left out", node)
    return present  # type: ignore[return-value]


def optional(node: ir.Node, position: int) -> ir.Value | None:
    """An input of a node, or None where it is left out."""
    return node.inputs[position] if position < len(node.inputs) else None


def _two_operands(node: ir.Node) -> tuple[ir.Value, ...]:
    if len(node.inputs) != 2:
        raise Refusal(f"{node.op_type} has not two operands", node)
    return inputs(node, 2)


def operand_from(node: ir.Node, *ops: str, domain: str = "") -> tuple[ir.Node, ir.Value]:
    """The operand of a two-operand node that comes from some op, and the other operand; both orders are tried.

    Args:
        node: A node with two operands.
        ops: Op types.
        domain: Their domain.

    Returns:
        The node behind the one operand, and the other operand.

    Raises:
        Refusal: If neither comes from such a node, or there are not two operands, as Max, Min and Sum may have it.
    """
    a, b = _two_operands(node)
    pairs = []
    behind = a.producer()
    if behind is not None and is_op(behind, *ops, domain=domain):
        pairs.append((behind, b))
    if a is not b:
        behind = b.producer()
        if behind is not None and is_op(behind, *ops, domain=domain):
            pairs.append((behind, a))
    if not pairs:
        raise Absent(f"no operand comes from {' or '.join(ops)}", node)
    return choose(pairs)


def operand_constant(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """The operand of a two-operand node that is a constant, and the other operand; both orders are tried.

    Returns:
        The constant, and the other operand.

    Raises:
        Refusal: If neither is a constant, or there are not two operands, as Max, Min and Sum may have it.
    """
    a, b = _two_operands(node)
    pairs = [pair for pair in ((b, a), (a, b)) if is_constant(pair[0])]
    if not pairs:
        raise Refusal("no operand is a constant", node)
    return choose(pairs)


def only_user(value: ir.Value, *ops: str, domain: str = "") -> ir.Node:
    """The one node that uses a value, which is no graph output.

    Args:
        value: A value.
        ops: Op types that the user must be one of; any if empty.
        domain: Their domain.

    Raises:
        Refusal: If the value is a graph output, is used more than once, in a subgraph, or by another op.
    """
    use = first_use(value)
    if use is None or use_count(value) != 1 or value.is_graph_output():
        raise Refusal("the value is used elsewhere", value)
    if use.node.graph is not value.graph and value.producer() is not None:
        raise Refusal("a subgraph uses the value", value)
    if ops and not is_op(use.node, *ops, domain=domain):
        raise Absent(f"no {' or '.join(ops)} comes after", value)
    node: ir.Node = use.node
    return node


def users(value: ir.Value) -> list[ir.Node]:
    """The nodes that use a value, each once."""
    return list(dict.fromkeys(use.node for use in value.uses()))


def is_used(value: ir.Value) -> bool:
    """Whether a node, or the graph's outputs, need a value."""
    return value.is_graph_output() or bool(value.uses())


def is_used_once(value: ir.Value) -> bool:
    """Whether one node input, and no graph output, needs a value."""
    return use_count(value) == 1 and not value.is_graph_output()


# -- attributes -------------------------------------------------------------------------------------------------------


def attribute(node: ir.Node, name: str, default: T) -> T:
    """An attribute of a node.

    Args:
        node: A node.
        name: The attribute's name.
        default: Its value where it is left out, which also sets the type. Lists are tuples, strings are str.

    Raises:
        Refusal: If the function's caller decides it.
    """
    entry = attributes_of(node).get(name)
    if entry is None:
        return default
    if entry.is_ref():
        raise Refusal(f"the function's caller decides {name}", node)
    content: Any = tuple(entry.value) if isinstance(entry.value, list | tuple) else entry.value
    return cast(T, content)


def plain_attributes(node: ir.Node) -> Mapping[str, ir.Attr]:
    """All attributes of a node, none of them decided by a function's caller.

    Raises:
        Refusal: If one is.
    """
    for entry in node.attributes.values():
        if entry.is_ref():
            raise Refusal(f"the function's caller decides {entry.name}", node)
    return node.attributes


# -- types and shapes -------------------------------------------------------------------------------------------------


def dtype(value: ir.Value) -> ir.DataType:
    """The element type of a value.

    Raises:
        Refusal: If it is unknown.
    """
    if value.dtype is None:
        raise Refusal("the type is unknown", value)
    return value.dtype


def need_float32(value: ir.Value, why: str = "it is") -> None:
    """Go on only with a value of single precision.

    Args:
        value: The value.
        why: What is for that type only, with its verb: "the gain was measured".

    Raises:
        Refusal: If its elements are of another type.
    """
    need(dtype(value) == FLOAT, f"{why} for single precision only", value, code=Code.TYPE)


def need_float(value: ir.Value) -> None:
    """Go on only with a value of floating-point numbers.

    Args:
        value: The value.

    Raises:
        Refusal: If its elements are of another type.
    """
    need(dtype(value) in FLOATS, "it is no float", value, code=Code.TYPE)


def dims(value: ir.Value, rank: int | None = None) -> tuple[Dim, ...]:
    """The dimensions of a value; each an int, a symbolic expression, or unknown.

    Args:
        value: A value.
        rank: What the rank must be; None is any.

    Raises:
        Refusal: If the shape is unknown or has another rank.
    """
    shape = shape_of(value)
    if shape is None:
        raise Refusal("the shape is unknown", value)
    if rank is not None and len(shape) != rank:
        raise Absent(f"the rank is not {rank}", value)
    return shape


def shape_of(value: ir.Value) -> tuple[Dim, ...] | None:
    """The dimensions of a value, or None where the rank is unknown."""
    shape = facts.shape_of(value)
    if shape is None:
        return None
    known: tuple[Dim, ...] = shape.dims
    return known


def static_dims(value: ir.Value, rank: int | None = None) -> tuple[int, ...]:
    """The dimensions of a value, all of them numbers.

    Raises:
        Refusal: If one is not, or the rank is another.
    """
    return need_fixed(dims(value, rank), "a dimension is not fixed", value)


def need_fixed(sizes: Sequence[Dim], why: str, about: object) -> tuple[int, ...]:
    """Go on only with dimensions that are numbers.

    Args:
        sizes: The dimensions.
        why: The reason otherwise.
        about: What it is about.

    Returns:
        The numbers.

    Raises:
        Refusal: If one is not.
    """
    known = tuple(size for size in sizes if isinstance(size, int))
    need(len(known) == len(sizes), why, about)
    return known


def rank(value: ir.Value) -> int:
    """The rank of a value.

    Raises:
        Refusal: If it is unknown.
    """
    return len(dims(value))


def same_dim(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are equal whatever the inputs are; unknown ones never are."""
    return symbolic.equal(a, b)


def is_never_zero(dim: Dim, at: ir.Node) -> bool:
    """Whether a dimension is at least 1 wherever a node's graph runs."""
    graph = at.graph
    positive = graph.meta.get(facts.POSITIVE) or () if isinstance(graph, ir.Graph) else ()
    return symbolic.is_positive(dim, positive)


def need_never_zero(sizes: Iterable[Dim], why: str, about: ir.Node) -> None:
    """Go on only with dimensions that are at least 1 wherever a node's graph runs; a caller may know more of them.

    Args:
        sizes: The dimensions.
        why: The reason otherwise.
        about: The node.

    Raises:
        Refusal: If one may be 0; the reason names the option that tells otherwise.
    """
    need(
        all(is_never_zero(dim, about) for dim in sizes),
        f"{why} (--nonempty tells that it is not)",
        about,
        code=Code.OPTION,
    )


def is_vector_of(value: ir.Value, size: Dim) -> bool:
    """Whether a value has one dimension only, of this size whatever the inputs are."""
    shape = shape_of(value)
    return shape is not None and len(shape) == 1 and symbolic.equal(shape[0], size)


def same_type(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values are tensors of the same known element type."""
    return a.dtype is not None and a.dtype == b.dtype


def broadcasts_to(value: ir.Value, shape: Sequence[Dim]) -> bool:
    """Whether a value broadcasts to a shape one way: the result has this very shape, whatever the inputs are.

    Args:
        value: A value.
        shape: The dimensions of the result.
    """
    own = shape_of(value)
    return own is not None and dims_broadcast_to(own, shape)


def dims_broadcast_to(own: Sequence[Dim], shape: Sequence[Dim]) -> bool:
    """Whether dimensions broadcast one way to a shape, whatever the inputs are."""
    if len(own) > len(shape):
        return False
    aligned = shape[len(shape) - len(own) :]
    return all(
        (isinstance(dim, int) and dim == 1) or symbolic.equal(dim, to) for dim, to in zip(own, aligned, strict=True)
    )


# -- constants --------------------------------------------------------------------------------------------------------


def keeps_rank(number: ir.Value, value: ir.Value) -> bool:
    """Whether a constant with one element leaves the shape of a value that it is combined with."""
    own, other = tensor_of(number).shape, shape_of(value)
    return len(own) == 0 or (other is not None and len(own) <= len(other))


def operand_scalar(node: ir.Node, expected: float) -> ir.Value:
    """The operand of a commutative two-operand node that is left when the other is a constant scalar.

    Args:
        node: Add or Mul.
        expected: The number (see `is_scalar`).

    Returns:
        The other operand.

    Raises:
        Refusal: If no operand is that number, or it would raise the rank of the other.
    """
    a, b = inputs(node, 2)
    for number, other in ((b, a), (a, b)):
        if is_scalar(number, expected):
            need(keeps_rank(number, other), "the constant would raise the rank", number)
            return other
    raise Refusal(f"no operand is {expected:g}", node)


def splat(value: ir.Value | None) -> np.ndarray:
    """The one number that all elements of a value are, as an array of rank 0 in the value's type.

    Args:
        value: A constant of equal bits, a ConstantOfShape, or what ops that only move elements make of one, or a
            Concat of several.

    Raises:
        Refusal: If they are not known to be alike.
    """
    return walk(_splat, value, unknown=Refusal("too many nodes move its elements", value))


def _splat(value: ir.Value | None) -> Question[ir.Value | None, np.ndarray]:
    node = None if value is None else value.producer()
    if node is not None and is_op(node, "Concat"):
        numbers: dict[tuple[np.dtype[Any], bytes], np.ndarray] = {}
        for part in dict.fromkeys(node.inputs):
            number = yield part
            numbers[number.dtype, number.tobytes()] = number
        need(len(numbers) == 1, "its elements differ", value)
        return next(iter(numbers.values()))
    if node is not None and node.domain == "" and node.op_type in MOVING:
        return (yield optional(node, 0))
    if node is not None and is_op(node, "ConstantOfShape"):
        tensor: ir.TensorProtocol | None = attribute(node, "value", None)
        return np.zeros((), np.float32) if tensor is None else np.asarray(tensor.numpy()).reshape(-1)[:1].reshape(())
    content = array_of(value).reshape(-1)
    need(content.size > 0 and content.dtype != object, "it has no one number", value)
    bits = content.view(f"V{content.dtype.itemsize}")
    need(bool((bits == bits[0]).all()), "its elements differ", value)
    first: np.ndarray = content[:1].reshape(())
    return first


__all__ = [
    "BFLOAT16",
    "DOUBLE",
    "EPSILONS",
    "FLOAT",
    "FLOAT16",
    "FLOATS",
    "INTEGERS",
    "MAX_ALTERNATIVES",
    "ONLY_DECLARED",
    "SMALL",
    "Absent",
    "Code",
    "Dim",
    "Refusal",
    "array_of",
    "attribute",
    "before",
    "broadcasts_to",
    "choose",
    "dims",
    "dims_broadcast_to",
    "dtype",
    "first_match",
    "inputs",
    "integers",
    "is_constant",
    "is_op",
    "is_scalar",
    "is_used",
    "is_used_once",
    "is_vector_of",
    "keeps_rank",
    "need",
    "need_float",
    "need_float32",
    "need_known",
    "need_never_zero",
    "need_present",
    "only_user",
    "operand_constant",
    "operand_from",
    "operand_scalar",
    "opset",
    "optional",
    "plain_attributes",
    "producer",
    "rank",
    "same_dim",
    "same_type",
    "scalar",
    "shape_of",
    "small_array",
    "splat",
    "static_dims",
    "tensor_of",
    "users",
    "with_claims",
]
