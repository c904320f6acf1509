"""A product can scale its result before that goes to memory."""

from __future__ import annotations

import math

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.magnitudes import need_near
from ortopt.graph.match import (
    Refusal,
    choose,
    dtype,
    inputs,
    is_op,
    is_used_once,
    keeps_rank,
    need,
    operand_constant,
    opset,
    scalar,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.opset_changes import BROADCASTS_FROM
from ortopt.transformers.linear._fused_matmul import ROOTS, Factor, FusedMatMul, check_kernel, has_exact, product_of


class Found(Struct, frozen=True):
    """The nodes that go, and the product that comes."""

    nodes: tuple[ir.Node, ...]
    product: FusedMatMul


class MatmulScaleFusion(RewriteRule[Found]):
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

    def match(self, root: ir.Node) -> Found:
        """One number by which an operand or the result is multiplied or divided."""
        return _behind(root) if is_op(root, "Div", "Mul") else _before(root)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the product."""
        return found.product.node()


def _behind(root: ir.Node) -> Found:
    factor, at = _scaled(root)
    matmul = at.producer()
    if matmul is None or not (is_op(matmul, "MatMul") or is_op(matmul, "FusedMatMul", domain=MICROSOFT)):
        raise Refusal("no product is scaled", root)
    product = product_of(matmul)
    return Found((matmul, root), _times(product, factor, matmul))


def _before(root: ir.Node) -> Found:
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
    return Found((scaling, root), _times(replaced, number, root))


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
