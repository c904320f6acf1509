"""A guard of probabilities against NaNs is for rows in which a mask leaves nothing: the mask knows these rows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    FLOATS,
    Refusal,
    array_of,
    attribute,
    before,
    dims,
    dtype,
    inputs,
    is_constant,
    is_never_zero,
    is_op,
    is_scalar,
    is_used_once,
    keeps_rank,
    need,
    only_user,
    opset,
    optional,
    producer,
    rank,
)
from ortopt.graph.walk import Question, walk
from ortopt.linear.folding import factor_of
from ortopt.onnx_ir_internals import use_count
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.attention import mask as masks
from ortopt.patterns.quantization import is_dequantizer
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import PERMUTING, REPEATING

MOVES = PERMUTING | REPEATING
_BITS = 16
_LARGEST = 1e20
"""Integers of so many bits by no larger scales stay finite, and so do sums with all floats but infinities."""

_DEEPEST = 7


class _Guard(Match, frozen=True):
    """A guard that goes.

    Attributes:
        finite: Whether it may have hidden a NaN of the scores.
    """

    finite: bool = False


class NanGuardElimination(RewriteRule[_Guard]):
    """``Where(IsNaN(p), 0, p)`` → ``p``, where p is a Softmax of scores that no mask makes infinite.

    A mask of finite numbers and -inf may leave a row nothing. Then p is taken without the mask in these rows, and they
    are set to 0: ``p · keep``, where keep is 0 or 1 for each row; or ``Where(empty, 0, p · v)`` behind the product with
    values v that alone reads p, which has fewer numbers.

    PyTorch's dynamo writes the guard behind each Softmax of an attention. It reads and writes all scores twice, and
    OpenVINO makes one kernel of an attention only without it.

    Dequantized scores are numbers by their type. Products of matrices are taken to be finite: where one is not, the
    guard would give a 0, and the result has a NaN.
    """

    levels = (TransformerLevel.LEVEL3,)  # fused attention knows the guard
    after = ("attention_fusion", "constant_folding")
    needs = ("IsNaN",)
    roots = ("Where",)
    opsets = (13, NEWEST_OPSET)  # before, all axes from the given one on were normalized together
    lookback = 4
    looks_downstream = True

    def numerics_of(self, found: _Guard) -> Numerics:
        """Whether the scores are numbers by their type."""
        return Numerics.FINITE if found.finite else self.numerics

    def match(self, root: ir.Node) -> _Guard:
        """A guard of what cannot be NaN, or only where a mask leaves nothing."""
        condition, fill, guarded = inputs(root, 3)
        test = producer(condition, "IsNaN")
        need(test.inputs[0] is guarded, "the guard tests another value", condition)
        need(is_constant(fill) and is_scalar(fill, 0.0) and not np.signbit(array_of(fill)).any(), "no 0", fill)
        need(keeps_rank(fill, guarded), "the guard raises the rank", fill)
        nodes = (test, root) if is_used_once(condition) else (root,)
        if _is_dequantized(guarded):
            return _Guard(nodes, lambda: guarded)
        softmax = producer(guarded, "Softmax")
        (x,) = inputs(softmax, 1)
        if (exact := _is_dequantized(x)) or _is_of_products(x):
            return _Guard(nodes, lambda: guarded, finite=not exact)
        need(ops.Softmax(softmax).is_last, "the Softmax is over other axes", softmax)
        need(use_count(guarded) == 2 and not guarded.is_graph_output(), "the probabilities are used elsewhere", guarded)
        need(is_op(x.producer(), "Add"), "the scores may be infinite or NaN", x)
        addition = producer(x, "Add", alone="the scores are used elsewhere")
        scores, mask = _masked(addition)
        need(rank(mask) > 0, "the mask has no rows", mask)
        nodes = (addition, softmax, *nodes)
        if _is_dequantized(scores):
            return _Guard(nodes, lambda: _rows_kept(addition, mask, softmax))
        need(_is_of_products(scores, mask), "the scores may be infinite or NaN", scores)
        product = _product_of(root)
        # Of nothing, ONNX Runtime's ReduceMax gives as many rows as there were numbers.
        if product is None or not all(is_never_zero(size, root) for size in dims(mask)):
            return _Guard(nodes, lambda: _rows_kept(addition, mask, softmax), finite=True)
        result = product.outputs[0]
        return _Guard(
            (*nodes, product), lambda: {result: _rows_kept(addition, mask, softmax, product)}, (result,), finite=True
        )


def _product_of(guard: ir.Node) -> ir.Node | None:
    """The product of matrices that alone reads probabilities."""
    try:
        reader = only_user(guard.outputs[0], "MatMul")
        probabilities, values = inputs(reader, 2)
        return reader if probabilities is guard.outputs[0] and rank(values) > 1 else None
    except Refusal:
        return None


def _rows_kept(addition: ir.Node, mask: ir.Value, softmax: ir.Node, product: ir.Node | None = None) -> ir.Value:
    """Build the mask without the rows that leave nothing, and zeros for them."""
    lowest, zero = (constant(np.array(number, np.float32)) for number in (-np.inf, 0))
    most = ops.node_along("ReduceMax", mask, [-1], opset(softmax)).outputs[0]
    empty = ir.node("Equal", [most, lowest]).outputs[0]
    filled = ir.node("Where", [empty, zero, mask]).outputs[0]
    x = ir.node("Add", [filled if value is mask else value for value in addition.inputs])
    probabilities = ir.node("Softmax", x.outputs, {"axis": -1}).outputs[0]
    if product is not None:
        rows = ir.node("MatMul", [probabilities, product.inputs[1]]).outputs[0]
        return ir.node("Where", [empty, zero, rows]).outputs[0]
    keep = ir.node("Where", [empty, zero, constant(np.array(1, np.float32))]).outputs[0]
    return ir.node("Mul", [probabilities, keep]).outputs[0]


def _is_of_products(x: ir.Value, mask: ir.Value | None = None) -> bool:
    """Whether a sum has no other infinities than those of products of matrices: masks and biases have known bounds.

    Args:
        x: The sum.
        mask: What is added to it, of whose infinities the rows are known.
    """
    bound = walk(_bound_beside_products, x, unknown=None)
    finite = 0.0 if mask is None else masks.known_bound(mask, infinite=0.0)
    if x.dtype != FLOAT or bound is None or finite is None:
        return False
    return masks.depth_of(bound + finite) is not masks.Depth.UNKNOWN


def _bound_beside_products(value: ir.Value) -> Question[ir.Value, float | None]:
    """The largest magnitude of what is added to products of matrices: scores are far from the largest number."""
    node = value.producer()
    if is_op(node, "Gemm", "MatMul") or is_op(node, "FusedMatMul", domain=MICROSOFT):
        if any(map(_is_masked, inputs(node, len(node.inputs))[:2])):
            return None
        summand = optional(node, 2)
        added = 0.0 if summand is None else (yield summand)
        return None if added is None else added * abs(attribute(node, "beta", 1.0))
    if is_op(node, "Add", "Sub"):
        first, second = inputs(node, 2)
        one, other = (yield first), (yield second)
        return None if one is None or other is None else one + other
    source = _scaled(node) if is_op(node, "Mul", "Div") else None
    if is_op(node, *MOVES):
        source = inputs(node, len(node.inputs))[0]
    if source is not None and (yield source) == 0:
        return 0.0
    return masks.known_bound(value)


def _is_masked(operand: ir.Value) -> bool:
    """Whether an operand of a product has infinities of a mask of its own."""
    node = _source(operand)
    for value in (operand, *(() if node is None else node.inputs)):
        if value is not None and is_constant(value) and value.dtype in FLOATS and np.isinf(array_of(value)).any():
            return True
    return False


def _scaled(node: ir.Node) -> ir.Value | None:
    """What a node multiplies by a constant, or divides by one, that lets it overflow no sooner."""
    try:
        factor, x = factor_of(node)
        numbers = np.abs(array_of(factor))
    except Refusal:
        return None
    near = numbers >= 1 / _LARGEST if is_op(node, "Div") else numbers <= _LARGEST
    return x if bool(near.all()) else None


def _masked(addition: ir.Node) -> tuple[ir.Value, ir.Value]:
    """The scores and the mask that an Add adds up.

    Raises:
        Refusal: If no operand is a mask of finite numbers and -inf.
    """
    a, b = inputs(addition, 2)
    for scores, mask in ((a, b), (b, a)):
        if _is_mask(mask):
            return scores, mask
    raise Refusal("no mask of finite numbers and -inf is added", addition)


def _is_mask(value: ir.Value) -> bool:
    """Whether all elements come from two constants, of finite numbers and -inf."""
    node = _source(value)
    if not is_op(node, "Where") or not all(map(is_constant, node.inputs[1:])):
        return False
    return all(bool((np.isfinite(content) | np.isneginf(content)).all()) for content in map(array_of, node.inputs[1:]))


def _is_dequantized(value: ir.Value) -> bool:
    """Whether all elements are dequantized from integers, by scales that let none overflow, nor a sum with another."""
    node = _source(value)
    if node is None or not is_dequantizer(node) or value.dtype != FLOAT:
        return False
    integers, scale = inputs(node, 2)
    if not dtype(integers).is_integer() or dtype(integers).bitwidth > _BITS or not is_constant(scale):
        return False
    return bool((np.abs(array_of(scale)) <= _LARGEST).all())


def _source(value: ir.Value) -> ir.Node | None:
    """The node whose elements a value has, perhaps in another order or shape, or several times."""
    return before(value, *MOVES, most=_DEEPEST).producer()
