"""A product can read its matrices transposed, without a Transpose, and scale its result before that goes to memory.

A MatMul and a FusedMatMul are read as one thing: operands in another order of axes, and a scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis import kernels
from ortopt.analysis.costs import Form
from ortopt.analysis.magnitudes import need_near
from ortopt.framework import placement
from ortopt.framework.fusions import preferred
from ortopt.graph import scope
from ortopt.graph.match import (
    DOUBLE,
    FLOATS,
    Dim,
    Refusal,
    attribute,
    choose,
    dims,
    dtype,
    inputs,
    is_op,
    is_used_once,
    need,
    need_never_zero,
    need_present,
    plain_attributes,
    producer,
    rank,
    same_dim,
    users,
)
from ortopt.linear.folding import scaling_of
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import check_no_half_of_gelu
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

ROOTS = ("MatMul", f"{MICROSOFT}::FusedMatMul")

Order = tuple[int, ...]
"""A permutation of axes, as a Transpose has it."""


class Factor(Struct, frozen=True):
    """An operand of a product.

    Attributes:
        value: The operand, as the kernel gets it.
        order: In which order of axes the kernel reads it.
    """

    value: ir.Value
    order: Order

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Its dimensions, as the kernel reads them."""
        shape = dims(self.value)
        need(len(shape) == len(self.order), "the ranks do not fit", self.value)
        return tuple(shape[axis] for axis in self.order)

    def turned(self, value: ir.Value, order: Sequence[int]) -> Factor:
        """The same matrices, read from what a Transpose takes.

        Args:
            value: The input of the Transpose.
            order: Its permutation.
        """
        return Factor(value, tuple(order[axis] for axis in self.order))


class FusedMatMul(NamedTuple):
    """A product of matrices with a scale.

    Attributes:
        left: The first operand.
        right: The second one.
        alpha: The scale.
    """

    left: Factor
    right: Factor
    alpha: float

    @property
    def sides(self) -> tuple[Factor, Factor]:
        """Both operands."""
        return self.left, self.right

    def with_side(self, side: int, factor: Factor) -> FusedMatMul:
        """The product with another operand on one side, 0 or 1."""
        return self._replace(right=factor) if side else self._replace(left=factor)

    @property
    def form(self) -> Form:
        """Its form in the table of costs."""
        (turns, *_), moves = zip(*(flags_of(factor.order) for factor in self.sides), strict=True)
        return Form(MICROSOFT, "FusedMatMul", "transBatch" if any(moves) else "transA" if turns else "")

    def node(self) -> ir.Node:
        """Build the FusedMatMul."""
        flags: dict[str, int] = {}
        for name, factor in (("A", self.left), ("B", self.right)):
            turns, moves = flags_of(factor.order)
            flags |= {f"trans{name}": 1} if turns else {}
            flags |= {f"transBatch{name}": 1} if moves else {}
        scale: Mapping[str, float] = {} if self.alpha == 1 else {"alpha": self.alpha}
        return ir.node("FusedMatMul", [self.left.value, self.right.value], {**flags, **scale}, domain=MICROSOFT)


def product_of(node: ir.Node) -> FusedMatMul:
    """What a MatMul or FusedMatMul computes.

    Raises:
        Refusal: If its operands are no floats of known rank.
    """
    left, right = inputs(node, 2)
    need(dtype(left) in FLOATS, "the kernel is for floats", left)
    if is_op(node, "MatMul"):
        return FusedMatMul(Factor(left, _order(rank(left))), Factor(right, _order(rank(right))), 1.0)
    factors = [
        Factor(value, _order(rank(value), attribute(node, f"trans{name}", 0), attribute(node, f"transBatch{name}", 0)))
        for name, value in (("A", left), ("B", right))
    ]
    return FusedMatMul(factors[0], factors[1], attribute(node, "alpha", 1.0))


def _order(of: int, turns: int = 0, moves: int = 0) -> Order:
    """The order in which the kernel reads an operand: the batch to the front first, then the last two swapped."""
    order = (*range(1, of - 1), 0, of - 1) if moves and of > 2 else tuple(range(of))
    return (*order[:-2], order[-1], order[-2]) if turns and of > 1 else order


def flags_of(order: Order) -> tuple[bool, bool]:
    """Whether the kernel swaps the last two axes, and whether it moves the batch to the front before.

    Raises:
        Refusal: If it cannot read in this order.
    """
    for turns, moves in ((0, 0), (1, 0), (0, 1), (1, 1)):
        if order == _order(len(order), turns, moves):
            return bool(turns), bool(moves)
    raise Refusal("the kernel reads no operand in this order of axes")


def check_kernel(product: FusedMatMul, root: ir.Node) -> None:
    """Refuse where ONNX Runtime's kernel fails or gives something else than a MatMul of transposed operands.

    Where the inner dimension is 0 it clears the first matrix of a batch only; where no column is left it takes a stack
    of transposed matrices for a single one; where the batch is moved it divides by the dimension that was in front of
    it; with a transposed first operand it does not broadcast an empty batch.

    Args:
        product: The product.
        root: The node that it stands for.

    Raises:
        Refusal: If a dimension may be 0 where it must not, the operands are vectors, or it would be cast.
    """
    _check_dtype(root)
    left, right = product.left.dims, product.right.dims
    flags = (flags_of(product.left.order), flags_of(product.right.order))
    if not any(turns or moves for turns, moves in flags):
        return  # it is the kernel of MatMul
    need(len(left) > 1 and len(right) > 1, "the kernel transposes nothing beside a vector", root)
    moved = any(moves for _, moves in flags)
    need(not moved or len(left) == len(right), "the operands differ in rank", root)
    if max(len(left), len(right)) < 3 or (len(right) == 2 and not flags[0][0]):
        return  # one matrix, or rows of many that are multiplied by one
    delicate = [left[-1]]
    if flags[1][0]:
        delicate.append(right[-1])
    if moved:
        delicate += [*left, *right]
    elif flags[0][0]:
        delicate += _broadcast(left[:-2], right[:-2])
    need_never_zero(delicate, "a dimension may be 0, which the kernel does not expect", root)


def _check_dtype(root: ir.Node) -> None:
    """Refuse where the provider would cast the operands, and has a MatMul that reads them as they are."""
    kind = dtype(root.outputs[0]).name.lower()
    provider = placement.provider_of(root, scope.of_node(root).options.providers)
    known = provider is None or kernels.has_kernel(provider, MICROSOFT, "FusedMatMul", 1, {"T": f"tensor({kind})"})
    need(known, f"{provider} has no kernel of FusedMatMul for {kind}", root)


def _broadcast(left: Sequence[Dim], right: Sequence[Dim]) -> list[Dim]:
    """The dimensions of two batches that are not the same in both."""
    length = max(len(left), len(right))
    ones: tuple[Dim, ...] = (1,) * length
    pairs = zip((ones + tuple(left))[-length:], (ones + tuple(right))[-length:], strict=True) if length else ()
    return [dim for pair in pairs if not same_dim(*pair) for dim in pair]


def has_exact(alpha: float, value: ir.Value) -> bool:
    """Whether the kernel, which has its scale in single precision, scales a value exactly so."""
    return dtype(value) != DOUBLE or float(np.float32(alpha)) == alpha


class Turned(Struct, frozen=True):
    """An operand as it was before its Transpose, a Cast between, and the nodes that nobody else needs."""

    factor: Factor
    cast: ir.Node | None
    gone: tuple[ir.Node, ...]


class MatmulTransposeFusion(RewriteRule[Match]):
    """``MatMul(Transpose(a), b)`` → ``com.microsoft.FusedMatMul<transA>(a, b)``, and so for b and for batches.

    A Cast between them is moved before the Transpose. The pass runs once, after attention and rotary embeddings have
    been recognised, because they contain products and Transposes too.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("attention_fusion", "group_query_attention_fusion", "einsum_decomposition", "rotary_embedding_fusion")
    apply_once = True
    roots = ROOTS
    looks_downstream = True
    produces = ((MICROSOFT, "FusedMatMul"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """An operand that comes from a Transpose which only products read, in an order that the kernel knows."""
        product = product_of(root)
        transposed = [side for side in (0, 1) if _transpose_above(product.sides[side].value) is not None]
        need_present(bool(transposed), "no operand comes from a Transpose", root)
        alone = [[side] for side in transposed] if len(transposed) > 1 else []
        sides = choose([transposed, *alone])  # the kernel may be right, or fast, for one of them alone
        parts = {side: _turned(product.sides[side]) for side in sides}
        for side, part in parts.items():
            product = product.with_side(side, part.factor)
        check_kernel(product, root)
        preferred(root, [product.form])
        gone = dict.fromkeys(node for part in parts.values() for node in part.gone)
        casts = {side: part.cast for side, part in parts.items() if part.cast is not None}
        return Match((*gone, root), lambda: _with_casts(product.node(), casts))


class MatmulScaleFusion(RewriteRule[Match]):
    """``MatMul(a, b) * c``, ``MatMul(a * c, b)`` → ``com.microsoft.FusedMatMul<alpha = c>(a, b)``, and with ``/ c``.

    The kernel's scale has single precision, so for a product in double precision the scale must be such a number. The
    pass runs once, after attention has been recognised. For constant weights see `scale_folding`.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = (
        "attention_fusion",
        "group_query_attention_fusion",
        "einsum_decomposition",
        "matmul_transpose_fusion",
        "rotary_embedding_fusion",
    )
    apply_once = True
    roots = (*ROOTS, "Div", "Mul")
    looks_downstream = True
    produces = ((MICROSOFT, "FusedMatMul"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """One number by which an operand or the result is multiplied or divided."""
        return _behind(root) if is_op(root, "Div", "Mul") else _before(root)


def _with_casts(node: ir.Node, casts: Mapping[int, ir.Node]) -> ir.Node:
    """A product whose operands go through Casts, by their places."""
    for position, cast in casts.items():
        again = ops.copied(cast, [node.inputs[position]])
        node.replace_input_with(position, again.outputs[0])
    return node


def _transpose_above(value: ir.Value) -> ir.Node | None:
    """The Transpose behind a value, or behind the Cast that it comes from."""
    node = value.producer()
    if is_op(node, "Cast") and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if is_op(node, "Transpose") else None


def _turned(factor: Factor) -> Turned:
    value, cast = factor.value, None
    need(_is_for_products(value), "what is transposed is used elsewhere", value)
    if is_op(value.producer(), "Cast"):
        cast = producer(value, "Cast")
        plain_attributes(cast)
        need(is_used_once(value), "what is transposed is used elsewhere", value)
        (value,) = inputs(cast, 1)
        need(is_used_once(value), "what is transposed is used elsewhere", value)
    transpose = producer(value, "Transpose")
    (source,) = inputs(transpose, 1)
    order = ops.Transpose(transpose).order_of(len(factor.order))
    gone = (transpose,) if is_used_once(value) else ()
    return Turned(factor.turned(source, order), cast, gone if cast is None else (*gone, cast))


def _is_for_products(value: ir.Value) -> bool:
    """Whether only products read a value: else it would be transposed all the same."""
    return not value.is_graph_output() and all(
        is_op(user, "MatMul") or is_op(user, "FusedMatMul", domain=MICROSOFT) for user in users(value)
    )


def _behind(root: ir.Node) -> Match:
    factor, at = scaling_of(root)
    matmul = at.producer()
    if matmul is None or not (is_op(matmul, "MatMul") or is_op(matmul, "FusedMatMul", domain=MICROSOFT)):
        raise Refusal("no product is scaled", root)
    product = product_of(matmul)
    return Match((matmul, root), _times(product, factor, matmul).node)


def _before(root: ir.Node) -> Match:
    product = product_of(root)
    scalings = [
        (side, node)
        for side, factor in enumerate(product.sides)
        if (node := factor.value.producer()) is not None and is_op(node, "Div", "Mul") and is_used_once(factor.value)
    ]
    need(bool(scalings), "no operand is scaled for it alone", root)
    side, scaling = choose(scalings)
    number, value = scaling_of(scaling)
    check_no_half_of_gelu(value)
    replaced = product.with_side(side, Factor(value, product.sides[side].order))
    return Match((scaling, root), _times(replaced, number, root).node)


def _times(product: FusedMatMul, factor: float, matmul: ir.Node) -> FusedMatMul:
    """A product with another scale, which the kernel has exactly where it must."""
    scaled = product._replace(alpha=product.alpha * factor)
    need(has_exact(scaled.alpha, product.left.value), "alpha is in single precision", matmul)
    need_near(1.0, (scaled.alpha,), dtype(product.left.value), matmul)
    check_kernel(scaled, matmul)
    return scaled
