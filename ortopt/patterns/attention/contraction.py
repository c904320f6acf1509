"""Products of two tensors, written as MatMul, FusedMatMul or Einsum: which dimension of which operand is which."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import scope
from ortopt.graph.match import Absent, Code, Dim, attribute, dims, inputs, is_op, need, same_dim
from ortopt.options import Fusions
from ortopt.semantics.domains import MICROSOFT

PRODUCTS = ("MatMul", "Einsum")
FUSED = "FusedMatMul"
"""ONNX Runtime's product with transposes and a factor, which a file may have, or another pass has made."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Contraction(Struct, frozen=True):
    """A product, its dimensions named by letters; a dimension of 1 that is broadcast has none, but a space.

    Attributes:
        node: The node.
        left: The first operand.
        right: The second operand.
        left_letters: The letters of its dimensions.
        right_letters: Those of the second operand.
        letters: Those of the result.
        sizes: The size of each.
        factor: What the product is multiplied by.
    """

    node: ir.Node
    left: ir.Value
    right: ir.Value
    left_letters: str
    right_letters: str
    letters: str
    sizes: dict[str, Dim]
    factor: float = 1.0

    def swapped(self) -> Contraction:
        """The same with its operands in the other order."""
        return Contraction(
            self.node, self.right, self.left, self.right_letters, self.left_letters, self.letters, self.sizes,
            self.factor,
        )  # fmt: skip


def is_product(node: ir.Node | None) -> TypeGuard[ir.Node]:
    """Whether a node is a product that `contraction` reads."""
    return is_op(node, *PRODUCTS) or is_op(node, FUSED, domain=MICROSOFT)


def contraction(node: ir.Node | None, dims: Callable[[ir.Value], tuple[Dim, ...]] = dims) -> Contraction:
    """The product that a MatMul, FusedMatMul or Einsum computes.

    Args:
        node: The node.
        dims: Tells the dimensions of values.

    Raises:
        Refusal: If it is none of two operands, or sizes are not proven to be the same.
    """
    if node is None or not is_product(node):
        raise Absent(f"no {' or '.join(PRODUCTS)} comes before", node)
    need(len(node.inputs) == 2, "the product is not of two operands", node)
    left, right = inputs(node, 2)
    shapes = dims(left), dims(right)
    names = _equation(node) if is_op(node, "Einsum") else _matmul(len(shapes[0]), len(shapes[1]), node)
    if node.domain:  # by default costs have decided between attention and this product, and are not asked again
        every = scope.of_node(node).options.fusions is Fusions.ALL
        need(every, f"{FUSED} stands for the product; --fusions all looks into it", node, code=Code.DECIDED)
    factor = float(attribute(node, "alpha", 1.0)) if node.domain else 1.0
    sizes: dict[str, Dim] = {}
    operands = []
    for letters, shape in zip(names, shapes, strict=False):
        need(len(letters) == len(shape), "the equation is of another rank", node)
        operands.append(
            "".join(_named(node, letter, dim, sizes, shapes, names) for letter, dim in zip(letters, shape, strict=True))
        )
    return Contraction(node, left, right, operands[0], operands[1], names[2], sizes, factor)


def _named(
    node: ir.Node,
    letter: str,
    dim: Dim,
    sizes: dict[str, Dim],
    shapes: tuple[tuple[Dim, ...], ...],
    names: tuple[str, ...],
) -> str:
    """A dimension's letter, its size noted; a space where it is broadcast."""
    others = [
        other
        for letters, shape in zip(names, shapes, strict=False)
        for name, other in zip(letters, shape, strict=True)
        if name == letter
    ]
    largest = next((other for other in others if other != 1), 1)
    if dim == 1 and largest != 1 and letter in names[2]:
        return " "
    known = sizes.setdefault(letter, dim)
    alike = known is dim or same_dim(known, dim)
    contracted = letter not in names[2]  # must be the same wherever the model runs
    need(alike or contracted, "the batches are not proven to be of one size", node)
    return letter


def _matmul(left: int, right: int, node: ir.Node) -> tuple[str, str, str]:
    need(min(left, right) >= 2, "an operand is a vector", node)
    batch = _LETTERS[: max(left, right) - 2]
    product = ops.MatMul(node)
    need(not product.moves_batches, "the batch is transposed", node)
    first, second = "yx" if product.transposes_a else "xy", "zy" if product.transposes_b else "yz"
    return f"{batch[len(batch) - left + 2 :]}{first}", f"{batch[len(batch) - right + 2 :]}{second}", f"{batch}xz"


def _equation(node: ir.Node) -> tuple[str, str, str]:
    text = attribute(node, "equation", "").replace(" ", "")
    operands, arrow, result = text.partition("->")
    first, comma, second = operands.partition(",")
    plain = all(len(set(part)) == len(part) and part.isalpha() for part in (first, second, result))
    need(bool(arrow) and bool(comma) and plain, "the equation is no product of two tensors", node)
    summed = (set(first) ^ set(second)) - set(result)
    need(not summed and set(result) <= set(first) | set(second), "the equation sums over one operand", node)
    return first, second, result
