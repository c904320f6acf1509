"""A general power takes much longer than a product, a square root or a reciprocal."""

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.signs import is_never_below_zero
from ortopt.graph import symbolic
from ortopt.graph.match import (
    FLOATS,
    INTEGERS,
    dims,
    dtype,
    inputs,
    is_op,
    keeps_rank,
    need,
    scalar,
    users,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The Pow, and the op that does the same."""

    nodes: tuple[ir.Node, ...]
    op: str
    x: ir.Value


def _is_in_rows(x: ir.Value) -> bool:
    """Whether a value has several elements along its last axis, so that ONNX Runtime's kernel multiplies whole rows."""
    return bool(dims(x)) and symbolic.at_least(dims(x)[-1], 2)


class PowCanonicalization(RewriteRule[Found]):
    """``Pow(x, 2)`` → ``x * x``, ``Pow(x, -1)`` → ``Reciprocal(x)``, ``Pow(x, ½)`` → ``Sqrt(x)`` where x >= 0.

    The square has the same bits in ONNX Runtime, the others differ in the last place. A square whose mean is taken
    stays a Pow: ONNX Runtime finds normalizations by it. ``Pow(-0.0, ½)`` is +0.0 and ``Pow(-inf, ½)`` inf, so a root
    needs an operand that is neither. ``1 / x`` stays: it has the bits and the speed of a Reciprocal. ONNX Runtime
    squares integers as doubles, which saturate, where a row has only one; longer rows are multiplied, and wrap around.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("constant_folding", "noop_elimination")
    roots = ("Pow",)
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    numerics = Numerics.REORDERED
    lookback = 4
    looks_downstream = True

    def match(self, root: ir.Node) -> Found:
        """One of the three exponents, as a constant that does not change the shape."""
        x, exponent = inputs(root, 2)
        number = scalar(exponent)
        need(keeps_rank(exponent, x), "the exponent would raise the rank", exponent)
        need(number in (2, -1, 0.5), "the exponent is not 2, -1 or ½", exponent)
        if number == 2:
            need(dtype(x) in FLOATS or (dtype(x) in INTEGERS and dtype(exponent) in INTEGERS), "the types differ", x)
            need(dtype(x) in FLOATS or _is_in_rows(x), "integers one by one are squared as doubles, and saturate", x)
            need(not _is_averaged(root.outputs[0]), "a normalization is found by it", root)
            return Found((root,), "Mul", x)
        need(dtype(x) in FLOATS, "only floats have it", x)
        if number == -1:
            return Found((root,), "Reciprocal", x)
        need(is_never_below_zero(x), "the operand may be negative, or -0.0", x)
        return Found((root,), "Sqrt", x)

    def rewrite(self, found: Found) -> ir.Node:
        """Build it."""
        return ir.node(found.op, [found.x, found.x] if found.op == "Mul" else [found.x])


def _is_averaged(value: ir.Value) -> bool:
    """Whether a ReduceMean reads a value, also after a Cast."""
    for user in users(value):
        if is_op(user, "ReduceMean") or (is_op(user, "Cast") and any(map(_reduces, users(user.outputs[0])))):
            return True
    return False


def _reduces(node: ir.Node) -> bool:
    return is_op(node, "ReduceMean")
