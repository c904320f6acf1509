"""A product can read its matrices transposed, without a Transpose, and scale its result before that goes to memory."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.magnitudes import need_near
from ortopt.framework.fusions import preferred
from ortopt.graph.match import (
    Refusal,
    choose,
    dtype,
    inputs,
    is_op,
    is_used_once,
    keeps_rank,
    need,
    need_present,
    operand_constant,
    opset,
    plain_attributes,
    producer,
    scalar,
    users,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.opset_changes import BROADCASTS_FROM
from ortopt.transformers.linear._fused_matmul import ROOTS, Factor, FusedMatMul, check_kernel, has_exact, product_of


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
    factor, at = _scaled(root)
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
    number, value = _scaled(scaling)
    replaced = product.with_side(side, Factor(value, product.sides[side].order))
    return Match((scaling, root), _times(replaced, number, root).node)


def _scaled(node: ir.Node) -> tuple[float, ir.Value]:
    """The factor by which a Mul or Div scales a value, and the value."""
    need(opset(node) >= BROADCASTS_FROM, "an attribute says how its operands broadcast", node)
    number, value = operand_constant(node) if is_op(node, "Mul") else inputs(node, 2)[::-1]
    factor = scalar(number)
    need(math.isfinite(factor) and factor != 0, "it is no factor", number)
    need(keeps_rank(number, value), "the factor would raise the rank", number)
    need_near(1.0, (factor,), dtype(value), number)
    return (factor if is_op(node, "Mul") else 1 / factor), value


def _times(product: FusedMatMul, factor: float, matmul: ir.Node) -> FusedMatMul:
    """A product with another scale, which the kernel has exactly where it must."""
    scaled = product._replace(alpha=product.alpha * factor)
    need(has_exact(scaled.alpha, product.left.value), "alpha is in single precision", matmul)
    need_near(1.0, (scaled.alpha,), dtype(product.left.value), matmul)
    check_kernel(scaled, matmul)
    return scaled
