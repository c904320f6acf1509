"""What an attention reads its keys and values from, and gives its result as: for what happens to these outside of it.

The attention may be spelled out, or be one op. It is one whose probabilities are those of all keys that there are, and
add up to 1 in each row: none with a past, and none whose scores are bent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import (
    Absent,
    Dim,
    Refusal,
    attribute,
    dims,
    is_never_zero,
    is_op,
    is_used,
    need,
    only_user,
    optional,
    same_dim,
    users,
)
from ortopt.patterns.attention import mask
from ortopt.patterns.attention.block import attention
from ortopt.patterns.attention.contraction import is_product
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import RESHAPING
from ortopt.views.axes import Axis, Group, View, all_above, all_below, leaves

_OWN_OP = "MultiHeadAttention"
_MOVES = (*sorted(RESHAPING), "Identity", "Transpose")
_ON_SCORES = (*_MOVES, "Add", "Div", "Max", "Mul", "Softmax", "Sub", "Tanh", "Where")
_SOFTMAXES = ("Softmax", "Attention", _OWN_OP)
_MAX_NODES = 24
_MAX_CHANGED = 64
_LONGEST = 8


class Reading(Struct, frozen=True):
    """Operands and result of an attention, followed as far as their elements are only moved.

    Attributes:
        keys: The keys, before they were moved, repeated or scaled.
        values: The values, before they were moved or repeated.
        result: The result, after it was moved.
        positions: The axes of the keys' positions, in the keys and in the values.
        adds_up: Whether each row of probabilities adds up to 1, or is NaN.
    """

    keys: View
    values: View
    result: View
    positions: Group
    adds_up: bool


def reading(node: ir.Node) -> Reading:
    """What an attention reads and gives.

    Args:
        node: The product of probabilities and values; or an op for the whole attention.

    Raises:
        Refusal: If it is no such attention.
    """
    if is_op(node, "Attention"):
        return _of_standard_op(node)
    return _of_own_op(node) if is_op(node, _OWN_OP, domain=MICROSOFT) else _of_product(node)


def behind_keys(value: ir.Value) -> ir.Node:
    """The attention that reads a value as its keys, if it reads it as anything: see `reading`.

    Raises:
        Refusal: If something else may read it.
    """
    node, at_last = _after_moves(value, ("Div", "Mul"))
    keys = node.inputs[-1] if is_product(node) else node.inputs[1] if len(node.inputs) > 1 else None
    need(keys is at_last, "it is not read as keys", node)  # a cheap question
    if not is_product(node):
        return node
    at: ir.Node | None = node
    softmax = False
    for _ in range(_MAX_NODES):
        assert at is not None
        following = [user for user in users(at.outputs[0]) if is_product(user) or is_op(user, *_ON_SCORES)]
        at = following[0] if following else None
        softmax = softmax or is_op(at, "Softmax")
        if at is None or is_product(at):
            break
    if at is None or not softmax or not is_product(at):
        raise Absent("no Softmax comes after", node)
    return at


def changed_below(value: ir.Value, ends: Collection[ir.Node], *, as_keys: bool) -> tuple[ir.Value, ...]:
    """A value whose bias goes, and all that is computed from it before something makes up for that.

    Args:
        value: The value.
        ends: Nodes that make up for it.
        as_keys: Whether a softmax, and an op for the whole attention, make up for it too: they read it as keys.
    """
    found, pending = {value: None}, [value]
    while pending and len(found) < _MAX_CHANGED:
        for user in users(pending.pop()):
            if user in ends or (as_keys and user.op_type in _SOFTMAXES):
                continue
            new = [output for output in user.outputs if output not in found]
            found.update(dict.fromkeys(new))
            pending += new
    return tuple(found)


def above_result(value: ir.Value) -> ir.Node:
    """The attention that a value is the result of, if it is that of one: see `reading`.

    Raises:
        Refusal: If it is computed otherwise.
    """
    node = value.producer()
    for _ in range(_LONGEST):
        if not is_op(node, *_MOVES) or node.inputs[0] is None:
            break
        node = node.inputs[0].producer()
    if node is None or not (is_product(node) or is_op(node, "Attention") or is_op(node, _OWN_OP, domain=MICROSOFT)):
        raise Absent("no attention comes before", value)
    return node


def may_have_biased_values(node: ir.Node) -> bool:
    """Whether the values of an attention may come from an Add: a cheap question, before `reading`.

    Args:
        node: The attention: see `reading`.
    """
    for value in node.inputs if is_product(node) else node.inputs[2:3]:  # ops have queries, keys and masks beside them
        above = None if value is None else value.producer()
        for _ in range(_LONGEST):
            if not is_op(above, *_MOVES, "Expand", "Gather", "Tile") or above.inputs[0] is None:
                break
            above = above.inputs[0].producer()
        if is_op(above, "Add"):
            return True
    return False


def check_read_by_it_alone(value: ir.Value, node: ir.Node) -> None:
    """Refuse if anything but an attention reads a value, or what it becomes on the way there.

    Args:
        value: Its values, before they were moved or repeated.
        node: The attention: see `reading`.

    Raises:
        Refusal: If something else does.
    """
    need(_after_moves(value, ("Expand", "Gather", "Tile"))[0] is node, "the values are used elsewhere", value)


def check_has_keys(node: ir.Node) -> None:
    """Refuse if there may be queries and no keys: the result is 0 then, whatever the values would be.

    Args:
        node: The attention: see `reading`.

    Raises:
        Refusal: If it is not proven.
    """
    if is_product(node):
        scores = attention(node).scores
        queries, keys = scores[2], scores[3]
    else:
        queries, keys = (_length(value) for value in inputs_of_op(node)[:2])
    some = is_never_zero(keys, node) or same_dim(queries, keys)
    need(some, "there may be no keys, which gives 0", node)


def inputs_of_op(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Queries, keys and values of an op for attention.

    Raises:
        Refusal: If they are not three.
    """
    query, key, value = (optional(node, place) for place in range(3))
    if query is None or key is None or value is None:
        raise Refusal("queries, keys and values are not three operands", node)
    return query, key, value


def _length(value: ir.Value) -> Dim:
    return dims(value)[-2]


def _after_moves(value: ir.Value, more: tuple[str, ...]) -> tuple[ir.Node, ir.Value]:
    """The first reader of a value, each the only one, that does more than move, repeat or scale it; and its operand."""
    node = only_user(value)
    for _ in range(_LONGEST):
        if not is_op(node, *_MOVES, *more):
            break
        value = node.outputs[0]
        node = only_user(value)
    return node, value


def _of_product(node: ir.Node) -> Reading:
    block = attention(node)
    need(block.past is None, "there is a past", node)
    need(not block.cap, "the scores are bent", node)
    keys, values = block.keys, block.values
    if keys.roles is None or values.roles is None:
        raise Refusal("the operands' axes are not known", node)
    positions = leaves((keys.roles.length, values.roles.length))
    return Reading(keys.views[-1], values.views[-1], block.result.views[-1], positions, not block.guarded)


def _of_standard_op(node: ir.Node) -> Reading:
    for place, what in ((4, "a past"), (5, "a past"), (6, "a length for each row")):
        need(optional(node, place) is None, f"it has {what}", node)
    need(attribute(node, "softcap", 0.0) == 0, "the scores are bent", node)
    added = optional(node, 3)
    shallow = added is None or (added.dtype != ir.DataType.BOOL and mask.depth(added) is mask.Depth.SHALLOW)
    return _of_op(node, (attribute(node, "q_num_heads", 0), attribute(node, "kv_num_heads", 0)), adds_up=shallow)


def _of_own_op(node: ir.Node) -> Reading:
    for place, what in ((4, "a mask of keys"), (6, "a past"), (7, "a past"), (8, "a past"), (9, "a cache")):
        need(optional(node, place) is None, f"it has {what}", node)
    count = attribute(node, "num_heads", 0)
    need(all(len(dims(value)) == 3 for value in inputs_of_op(node)), "its operands have other layouts", node)
    return _of_op(node, (count, count), adds_up=True)


def _of_op(node: ir.Node, counts: tuple[int, int], *, adds_up: bool) -> Reading:
    need(not any(map(is_used, node.outputs[1:])), "more than its result is used", node)
    query, key, value = inputs_of_op(node)
    ranks = {len(dims(one)) for one in (query, key, value)}
    need(ranks in ({3}, {4}), "its operands have other layouts", node)
    flat = ranks == {3}
    queries, heads = counts if flat else (dims(query)[1], dims(key)[1])
    if not (isinstance(queries, int) and isinstance(heads, int) and heads > 0 and queries % heads == 0):
        raise Refusal("the numbers of heads are not known", node)
    count, repeats, positions = Axis(heads), Axis(queries // heads), Axis(_length(key))
    sizes = [_axis_of_size(dims(one)[-1], heads if flat else 1, node) for one in (key, value)]
    keys = View(key, _layout((count,), positions, sizes[0], dims(key), flat=flat))
    values = View(value, _layout((count,), positions, sizes[1], dims(value), flat=flat))
    shape = dims(node.outputs[0], len(dims(query)))
    result = View(node.outputs[0], _layout((count, repeats), Axis(shape[-2]), sizes[1], shape, flat=flat))
    views, _ = all_below(result)
    return Reading(all_above(keys)[-1], all_above(values)[-1], views[-1], leaves((positions,)), adds_up)


def _axis_of_size(width: Dim, heads: int, node: ir.Node) -> Axis:
    if not isinstance(width, int) or width % heads:
        raise Refusal("the size of a head is not known", node)
    return Axis(width // heads)


def _layout(heads: Group, length: Axis, size: Axis, shape: Sequence[Dim], *, flat: bool) -> tuple[Group, ...]:
    batch = (Axis(shape[0]),)
    return (batch, (length,), (*heads, size)) if flat else (batch, heads, (length,), (size,))
