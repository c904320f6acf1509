"""From the probabilities of an attention back to the product of queries and keys: what happens to the scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from msgspec import Struct, field, structs

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.backtracking import choose
from ortopt.graph.match import (
    FLOAT,
    FLOAT16,
    Absent,
    Dim,
    Refusal,
    array_of,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_scalar,
    is_used_once,
    need,
    producer,
    same_dim,
    splat,
)
from ortopt.onnx_ir_internals import use_count
from ortopt.patterns.attention.contraction import FUSED, PRODUCTS, is_product
from ortopt.patterns.attention.mask import LOWEST, NEGLIGIBLE, bound, is_zero
from ortopt.patterns.attention.sizes import NonemptyBatch
from ortopt.views.axes import Axis, Group, View, above, leaves, regrouped

_ELEMENTWISE = ("Add", "Cast", "Div", "Max", "Mul", "Sub", "Tanh", "Where")
_SHAPES = ("Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_MAX_NODES = 24
_FACTORS = ("Div", "Mul")
_MIN_PART = 2.0**-10
"""Queries are multiplied by no less, so that in half precision they do not vanish."""


class Kind(Enum):
    """What a step does to the scores."""

    ADDED = "something is added"
    FILLED = "where a condition says so, a number takes their place"
    RAISED = "they are at least a number"


class Step(Struct, frozen=True):
    """One thing that happens to the scores, after they were scaled.

    Attributes:
        kind: What.
        value: What is added, or the condition; None where there is none.
        number: What the added is multiplied by, or what takes the place of scores.
        groups: The axes of the scores' dimensions there, which the dimensions of `value` are aligned to.
        keeps: Whether the condition says where scores stay.
        capped: Whether the scores are capped after it.
    """

    kind: Kind
    value: ir.Value | None
    number: float
    groups: tuple[Group, ...]
    keeps: bool = True
    capped: bool = False


class Scores(Struct):
    """What is found on the way from the probabilities to the product.

    Attributes:
        view: Where the axes are in the value at hand.
        queries: The axis along the queries.
        keys: The axis along the keys.
        batch: Tells the dimensions of values.
        nodes: The nodes passed.
        scale: The product of all factors; of those by head, of the largest.
        by_head: The axes of heads, and what each head's scores are multiplied by beside `scale`; None for nothing.
        steps: What else happens, the last first.
        cap: Above what number the scores are bent; 0 is nowhere.
        guarded: Whether NaNs among the probabilities are set to 0.
        zeroed: How probabilities are set to 0 by a condition, until scores are found that it masks.
        masked: Whether probabilities of masked scores are set to 0.
        pairs: Axes that are the same if the scores are not broadcast.
        shapes: The dimensions of the scores that the softmax is of, by axis.
        kinds: The element types on the way.
    """

    view: View
    queries: Axis
    keys: Axis
    batch: NonemptyBatch
    nodes: list[ir.Node] = field(default_factory=list)
    scale: float = 1.0
    by_head: tuple[Group, tuple[float, ...]] | None = None
    steps: list[Step] = field(default_factory=list)
    cap: float = 0.0
    guarded: bool = False
    zeroed: Step | None = None
    masked: bool = False
    pairs: list[tuple[Axis, Axis]] = field(default_factory=list)
    softmax: View | None = None
    kinds: set[ir.DataType] = field(default_factory=set)


def leads_to(value: ir.Value, ops: Sequence[str], through: Sequence[str]) -> int | None:
    """How many nodes above a value one of some ops is, through others; None where it is not."""
    level = [value]
    for distance in range(_MAX_NODES):
        behind = [node for one in level if (node := one.producer()) is not None]
        if any(node.op_type in ops for node in behind):
            return distance
        level = [one for node in behind if is_op(node, *through) for one in node.inputs if one is not None][:16]
        if not level:
            break
    return None


def leads_to_softmax(value: ir.Value) -> bool:
    """Whether a value may be the probabilities of an attention."""
    return leads_to(value, ("Softmax",), (*_SHAPES, "Where", "Cast")) is not None


def scores(view: View, queries: Axis, keys: Axis, batch: NonemptyBatch) -> Scores:
    """What happens to the scores between the product of queries and keys and the probabilities.

    Args:
        view: The probabilities, as the product with the values reads them.
        queries: The axis along the queries.
        keys: The axis along the keys.
        batch: Tells the dimensions of values.

    Raises:
        Refusal: If the probabilities are computed otherwise.
    """
    found = Scores(view, queries, keys, batch)
    _to_softmax(found)
    while not is_product(found.view.value.producer()):
        need(len(found.nodes) < _MAX_NODES, "too much happens to the scores", found.view.value)
        need(is_used_once(found.view.value), "the scores are used elsewhere", found.view.value)
        _back(found)
    need(is_used_once(found.view.value), "the scores are used elsewhere", found.view.value)
    need(found.zeroed is None, "other probabilities are set to 0 than those of masked scores", found.view.value)
    deep = [step for step in found.steps[1:] if step.kind is not Kind.ADDED or not _is_shallow(step.value)]
    need(not (found.masked and deep), "the scores are masked twice", found.view.value)
    return found


def _is_shallow(value: ir.Value | None) -> bool:
    """Whether what is added masks nothing: small numbers, or products, as of relative positions."""
    largest = bound(value)
    is_small = largest is not None and largest <= NEGLIGIBLE
    return is_small or (value is not None and leads_to(value, PRODUCTS, (*_SHAPES, "Slice")) is not None)


def _to_softmax(found: Scores) -> None:
    while not is_op(found.view.value.producer(), "Softmax"):
        value = found.view.value
        node = value.producer()
        if is_op(node, "Where"):
            found.view = View(_unguarded(value, found), found.view.parts)
        elif is_op(node, "Cast"):
            _pass_cast(found)
        elif is_op(node, *_SHAPES):
            need(is_used_once(value), "the probabilities are used elsewhere", value)
            _pass_shape(found)
        else:
            raise Absent("no Softmax comes before", value)
    softmax = found.view.value.producer()
    assert softmax is not None
    if not found.guarded:
        need(is_used_once(found.view.value), "the probabilities are used elsewhere", found.view.value)
    found.nodes.append(softmax)
    (logits,) = inputs(softmax, 1)
    over = ops.Softmax(softmax)
    single = over.is_last or not over.flattens
    need(single and found.view.groups[over.axis] == leaves((found.keys,)), "the softmax is not over the keys", logits)
    found.view = found.softmax = View(logits, found.view.parts)
    _note_type(found)


def _note_type(found: Scores) -> None:
    kind = dtype(found.view.value)
    need(kind in {FLOAT, FLOAT16}, "the scores are not single- or half-precision numbers", found.view.value)
    found.kinds.add(kind)


def _unguarded(value: ir.Value, found: Scores) -> ir.Value:
    """The probabilities before their NaNs, or those of masked scores, were set to 0."""
    guard = value.producer()
    assert guard is not None
    need(is_used_once(value), "the probabilities are used elsewhere", value)
    condition, yes, no = inputs(guard, 3)
    keeps = is_constant(no)
    fill, kept = (no, yes) if keeps else (yes, no)
    need(is_constant(fill) and is_scalar(fill, 0.0), "the guard's fill is not 0", fill)
    found.nodes.append(guard)
    if is_op(condition.producer(), "IsNaN"):
        test = producer(condition, "IsNaN")
        need(not keeps and test.inputs[0] is kept, "the guard tests another value", condition)
        need(use_count(kept) == 2 and not kept.is_graph_output(), "the probabilities are used elsewhere", kept)
        found.nodes.append(test)
        found.guarded = True
    else:
        need(found.zeroed is None, "the probabilities are set to 0 twice", value)
        found.zeroed = Step(Kind.FILLED, condition, 0.0, found.view.groups, keeps)
    return kept


def _pass_shape(found: Scores) -> None:
    node = found.view.value.producer()
    following = above(found.view, found.batch.shape_of) or _above_if_any(found)
    if node is None or following is None:
        raise Refusal("the scores are reshaped in a way that is not followed", found.view.value)
    found.nodes.append(node)
    found.view = following


def _above_if_any(found: Scores) -> View | None:
    """The view before a Reshape that keeps queries and keys in dimensions of their own, if these are as many as before.

    That they are, is proven where these come from: where there are elements at all, only one size fits.
    """
    node = found.view.value.producer()
    if not is_op(node, "Reshape") or node.inputs[0] is None:
        return None
    shape, axes = found.batch.shape_of(node.inputs[0]), found.view.axes
    own = leaves((found.queries, found.keys))
    if shape is None or len(own) != 2 or axes[-2:] != own or len(shape) < 2:
        return None
    rest = regrouped(axes[:-2], shape[:-2])
    if rest is None or not all(map(symbolic.is_known, shape[-2:])):
        return None
    inner = tuple(one if one.is_size(dim) else Axis(dim) for one, dim in zip(own, shape[-2:], strict=True))
    if any(dim == 1 for dim in shape[-2:]):
        return None
    found.pairs += [(a, b) for a, b in zip(own, inner, strict=True) if a is not b]
    found.queries, found.keys = inner
    return View(node.inputs[0], (*rest, (inner[0],), (inner[1],)))


def _pass_cast(found: Scores) -> None:
    node = found.view.value.producer()
    assert node is not None
    (source,) = inputs(node, 1)
    for value in (source, found.view.value):
        need(dtype(value) in {FLOAT, FLOAT16}, "the scores are not single- or half-precision numbers", value)
    found.nodes.append(node)
    found.view = View(source, found.view.parts)
    found.kinds.add(dtype(source))


def _back(found: Scores) -> None:
    """Go one node up."""
    node = found.view.value.producer()
    if not is_op(node, *_ELEMENTWISE, *_SHAPES):
        raise Absent(f"no {' or '.join(PRODUCTS)} comes before", found.view.value)
    if node.op_type in _SHAPES:
        _pass_shape(found)
    elif node.op_type == "Cast":
        _pass_cast(found)
    else:
        need(node.op_type in _FACTORS or found.by_head is None, "what is scaled by head is no product", node)
        _HANDLERS[node.op_type](found, node)
        found.nodes.append(node)


def _continue(found: Scores, source: ir.Value) -> None:
    """Go on with an operand, whose dimensions must be those of the result."""
    own, result = found.batch.dims(source), found.batch.dims(found.view.value)
    need(len(own) == len(result), "the scores are broadcast", source)
    parts: list[Group] = []
    for dim, outer, group in zip(own, result, found.view.groups, strict=True):
        parts.append(_axes_of(found, source, dim, outer, group))
    found.view = View(source, tuple(parts))


def _axes_of(found: Scores, source: ir.Value, dim: Dim, outer: Dim, group: Group) -> Group:
    if same_dim(dim, outer) or (not group and dim == 1):
        return group
    for place in ("queries", "keys"):
        current: Axis = getattr(found, place)
        if group == leaves((current,)):
            need(dim != 1, "the scores are broadcast", source)
            inner = Axis(dim)
            found.pairs.append((current, inner))
            setattr(found, place, inner)
            return (inner,)
    raise Refusal("the scores are broadcast", source)


def _product_operand(node: ir.Node, values: Sequence[ir.Value]) -> ir.Value:
    """The operand that leads to the product of queries and keys; if several may, the nearest first."""
    distances = [(leads_to(value, (*PRODUCTS, FUSED), (*_ELEMENTWISE, *_SHAPES)), value) for value in values]
    near = sorted(((d, i) for i, (d, _) in enumerate(distances) if d is not None))
    if not near:
        raise Absent(f"no {' or '.join(PRODUCTS)} comes before", node)
    return values[choose([index for _, index in near])]


def _add(found: Scores, node: ir.Node) -> None:
    a, b = inputs(node, 2)
    at = _product_operand(node, (a, b))
    other = b if at is a else a
    if not (is_constant(other) and is_zero(other)):
        found.steps.append(Step(Kind.ADDED, other, found.scale, found.view.groups, capped=bool(found.cap)))
    _continue(found, at)


def _subtract(found: Scores, node: ir.Node) -> None:
    a, b = inputs(node, 2)
    if not (is_constant(b) and is_zero(b)):
        found.steps.append(Step(Kind.ADDED, b, -found.scale, found.view.groups, capped=bool(found.cap)))
    _continue(found, a)


def _scale(found: Scores, node: ir.Node) -> None:
    source, numbers = _factors(node)
    number = float(numbers.flat[0])
    if numbers.size > 1 and (numbers != number).any():
        number = _scale_heads(found, numbers, source)
    found.scale *= number
    need(found.scale > 0, "the scale is not positive", source)
    _continue(found, source)


def _factors(node: ir.Node) -> tuple[ir.Value, npt.NDArray[np.float64]]:
    """The operand of a Mul or Div whose other operand is constant, and what its elements are multiplied by."""
    a, b = inputs(node, 2)
    if not is_constant(b) and node.op_type == "Mul":
        a, b = b, a
    need(is_constant(b), "the factor is not a constant", node)
    numbers = array_of(b).astype(np.float64)
    need(numbers.size > 0, "there are no factors", b)
    need(node.op_type == "Mul" or bool(numbers.all()), "the scores are divided by 0", b)
    return a, numbers if node.op_type == "Mul" else 1 / numbers


def _scale_heads(found: Scores, numbers: npt.NDArray[np.float64], source: ir.Value) -> float:
    """Note a factor for each head; returns the largest, which all others are noted as parts of."""
    need(found.by_head is None, "the scores are scaled by head twice", source)
    places = [place - numbers.ndim for place, count in enumerate(numbers.shape) if count > 1]
    single = len(places) == 1 and -places[0] <= len(found.view.groups)
    group = found.view.groups[places[0]] if single else ()
    own = leaves((found.queries, found.keys))
    need(bool(group) and not set(group).intersection(own), "the factors are not for heads", source)
    largest = float(numbers.max())
    parts = numbers / largest
    positive = bool(np.isfinite(numbers).all()) and float(numbers.min()) > 0
    need(positive, "the scale is not positive", source)
    need(float(parts.min()) >= _MIN_PART, "the scales of heads differ too much", source)
    found.by_head = group, tuple(map(float, parts.reshape(-1)))
    return largest


def _fill(found: Scores, node: ir.Node) -> None:
    condition, yes, no = inputs(node, 3)
    keeps = is_constant(no)
    fill, source = (no, yes) if keeps else (yes, no)
    number = _number(fill) * found.scale
    need(number <= LOWEST, "what takes the place of masked scores is not the lowest number", fill)
    step = Step(Kind.FILLED, condition, _number(fill), found.view.groups, keeps, capped=bool(found.cap))
    need(found.scale == 1, "scores are scaled after they are masked", fill)
    if found.zeroed is not None and structs.replace(found.zeroed, number=step.number) == step:
        # A row without any key is 0 then, as of -inf where NaNs are set to 0: no other number may be as low.
        need(not found.steps and not found.guarded, "the scores are masked twice", fill)
        step = structs.replace(step, number=-math.inf)
        found.zeroed, found.guarded, found.masked = None, True, True
    found.steps.append(step)
    _continue(found, source)


def _number(value: ir.Value) -> float:
    return float(splat(value).item())


def _raise(found: Scores, node: ir.Node) -> None:
    a, b = inputs(node, 2)
    source, least = (b, a) if is_constant(a) else (a, b)
    need(is_constant(least) and _number(least) <= LOWEST, "the scores are clipped", node)
    need(found.scale == 1 and not found.cap, "the scores are clipped", node)
    found.steps.append(Step(Kind.RAISED, None, _number(least), found.view.groups))
    _continue(found, source)


def _cap(found: Scores, node: ir.Node) -> None:
    need(not found.cap, "the scores are capped twice", node)
    need(all(step.kind is not Kind.RAISED for step in found.steps), "the scores are clipped", node)
    found.cap = found.scale
    _continue(found, inputs(node, 1)[0])


def factor(node: ir.Node) -> tuple[ir.Value, float]:
    """The operand of a Mul or Div whose other operand is a number, and what it is multiplied by.

    Raises:
        Refusal: If there is none.
    """
    source, numbers = _factors(node)
    need(numbers.size == 1, "the factor is no single number", node)
    return source, float(numbers.item())


_HANDLERS = {
    "Add": _add,
    "Div": _scale,
    "Max": _raise,
    "Mul": _scale,
    "Sub": _subtract,
    "Tanh": _cap,
    "Where": _fill,
}
