"""A product can read its matrices transposed, without a Transpose."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.framework.fusions import preferred
from ortopt.graph.match import (
    choose,
    inputs,
    is_op,
    is_used_once,
    need,
    need_present,
    plain_attributes,
    producer,
    users,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.linear._fused_matmul import ROOTS, Factor, FusedMatMul, check_kernel, product_of


class Found(Struct, frozen=True):
    """The nodes that go, the product that comes, and the Casts that its operands go through."""

    nodes: tuple[ir.Node, ...]
    product: FusedMatMul
    casts: Mapping[int, ir.Node]


class Turned(Struct, frozen=True):
    """An operand as it was before its Transpose, a Cast between, and the nodes that nobody else needs."""

    factor: Factor
    cast: ir.Node | None
    gone: tuple[ir.Node, ...]


class MatmulTransposeFusion(RewriteRule[Found]):
    """``MatMul(Transpose(a), b)`` → ``com.microsoft.FusedMatMul<transA>(a, b)``, and so for b and for batches.

    A Cast between them is moved before the Transpose. The pass runs once, after attention and rotary embeddings have
    been recognised, because they contain products and Transposes too.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("attention_fusion", "group_query_attention_fusion", "einsum_decomposition", "rotary_embedding_fusion")
    apply_once = True
    roots = ROOTS
    lookback = 2
    looks_downstream = True
    produces = ((MICROSOFT, "FusedMatMul"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
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
        return Found((*gone, root), product, casts)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the product, and Casts of what was transposed."""
        node = found.product.node()
        for position, cast in found.casts.items():
            again = ops.copied(cast, [node.inputs[position]])
            node.replace_input_with(position, again.outputs[0])
        return node


def _transpose_above(value: ir.Value) -> ir.Node | None:
    """The Transpose behind a value, or behind the Cast that it comes from."""
    node = value.producer()
    if node is not None and is_op(node, "Cast") and node.inputs[0] is not None:
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
