"""Ops that say the same in a simpler way, or so that every runtime understands them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.kernel_history import ROOT_OF_INFINITY
from ortopt.analysis.signs import is_never_below_zero
from ortopt.graph import symbolic
from ortopt.graph.match import (
    FLOATS,
    INTEGERS,
    Refusal,
    dims,
    dtype,
    inputs,
    is_op,
    is_used_once,
    keeps_rank,
    need,
    operand_from,
    producer,
    scalar,
    users,
)
from ortopt.graph.provenance import NEEDS_KEY
from ortopt.options import Numerics
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.opset_changes import BROADCASTS_FROM


class DivMulFusion(RewriteRule[Match]):
    """``(1 / a) * b``, ``Reciprocal(a) * b`` → ``b / a``.

    This is for floats only: for integers, 1 / a is 0 for nearly every a. (ONNX Runtime fuses integers as well.)
    """

    roots = ("Mul",)
    opsets = (BROADCASTS_FROM, NEWEST_OPSET)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A division of a constant 1 that does not enlarge the rank, or a Reciprocal."""
        division, above = operand_from(root, "Div", "Reciprocal")
        need(above is not division.outputs[0], "the quotient is multiplied by itself", root)
        if division.op_type == "Reciprocal":
            (below,) = inputs(division, 1)
        else:
            numerator, below = inputs(division, 2)
            need(scalar(numerator) == 1.0, "it does not divide 1", numerator)
            need(keeps_rank(numerator, below), "the 1 would enlarge the rank", numerator)
        need(dtype(below) in FLOATS, "only floats divide without a remainder", below)
        return Match((division, root), lambda: ir.node("Div", [above, below]))


class NotWhereFusion(RewriteRule[Match]):
    """``Where(Not(c), a, b)`` → ``Where(c, b, a)``."""

    roots = ("Where",)

    def match(self, root: ir.Node) -> Match:
        """Any Where after a Not; the Not stays for its other users, this Where's values among them."""
        inverted, a, b = inputs(root, 3)
        (condition,) = inputs(producer(inverted, "Not"), 1)
        return Match((root,), lambda: ir.node("Where", [condition, b, a]))


class WhereFusion(RewriteRule[Match]):
    """``Cast(c) * a + Cast(Not(c)) * b`` → ``Where(c, a, b)`` of integers.

    tf2onnx writes selections so: one is before each embedding of Keras 3. Of floats what is not selected may be
    infinite or NaN, and 0 times that is no 0.
    """

    roots = ("Add",)
    opsets = (9, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
        """A sum of two products, one by a condition and one by its opposite, each as a number."""
        products = [producer(value, "Mul") for value in inputs(root, 2)]
        need(dtype(root.outputs[0]) in INTEGERS, "what is not selected may be no finite number", root)
        readings = [list(_conditional(product)) for product in products]
        for condition, negated, yes in readings[0]:
            for other, opposite, no in readings[1]:
                if other is condition and opposite != negated:
                    own = tuple(product for product in products if is_used_once(product.outputs[0]))
                    need(bool(own), "both products are used elsewhere", root)
                    a, b = (no, yes) if negated else (yes, no)
                    return Match((*own, root), partial(ir.node, "Where", [condition, a, b]))
        raise Refusal("no condition says which product counts", root)


def _conditional(product: ir.Node) -> Iterator[tuple[ir.Value, bool, ir.Value]]:
    """How a product may be read as one by a condition: the condition, whether it is negated, and the other factor."""
    first, second = inputs(product, 2)
    for factor, other in ((first, second), (second, first)):
        cast = factor.producer()
        chosen = inputs(cast, 1)[0] if is_op(cast, "Cast") else None
        if chosen is None or chosen.dtype != ir.DataType.BOOL:
            continue
        inversion = chosen.producer()
        if is_op(inversion, "Not"):
            yield inputs(inversion, 1)[0], True, other
        yield chosen, False, other


class PowCanonicalization(RewriteRule[Match]):
    """``Pow(x, 2)`` → ``x * x``, ``Pow(x, -1)`` → ``Reciprocal(x)``, ``Pow(x, ½)`` → ``Sqrt(x)`` where x >= 0.

    The square has the same bits in ONNX Runtime, the others differ in the last place. A square whose mean is taken
    stays a Pow: ONNX Runtime finds normalizations by it. ``Pow(-0.0, ½)`` is +0.0 and ``Pow(-inf, ½)`` inf, so a root
    needs an operand that is neither. ``1 / x`` stays: it has the bits and the speed of a Reciprocal. ONNX Runtime
    squares integers as doubles, which saturate, where a row has only one; longer rows are multiplied, and wrap around.
    """

    after = ("constant_folding", "noop_elimination")
    roots = ("Pow",)
    opsets = (BROADCASTS_FROM, NEWEST_OPSET)
    numerics = Numerics.REORDERED
    lookback = 4
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """One of the three exponents, as a constant that does not change the shape."""
        x, exponent = inputs(root, 2)
        number = scalar(exponent)
        need(keeps_rank(exponent, x), "the exponent would raise the rank", exponent)
        need(number in (2, -1, 0.5), "the exponent is not 2, -1 or ½", exponent)
        if number == 2:
            need(dtype(x) in FLOATS or (dtype(x) in INTEGERS and dtype(exponent) in INTEGERS), "the types differ", x)
            need(dtype(x) in FLOATS or _is_in_rows(x), "integers one by one are squared as doubles, and saturate", x)
            need(not _is_averaged(root.outputs[0]), "a normalization is found by it", root)
            return Match((root,), lambda: ir.node("Mul", [x, x]))
        need(dtype(x) in FLOATS, "only floats have it", x)
        if number == -1:
            return Match((root,), lambda: ir.node("Reciprocal", [x]))
        need(is_never_below_zero(x), "the operand may be negative, or -0.0", x)
        return Match((root,), lambda: ir.node("Sqrt", [x], metadata_props={NEEDS_KEY: ROOT_OF_INFINITY}))


def _is_in_rows(x: ir.Value) -> bool:
    """Whether a value has several elements along its last axis, so that ONNX Runtime's kernel multiplies whole rows."""
    return bool(dims(x)) and symbolic.at_least(dims(x)[-1], 2)


def _is_averaged(value: ir.Value) -> bool:
    """Whether a ReduceMean reads a value, also after a Cast."""
    casts = [user.outputs[0] for user in users(value) if is_op(user, "Cast")]
    return any(is_op(user, "ReduceMean") for read in (value, *casts) for user in users(read))


class StftCanonicalization(RewriteRule[Match]):
    """``STFT(x)`` → ``STFT(x, onesided=1)``, its default.

    The shape inference of onnx, which ONNX Runtime runs when it loads a model, assumes 0 instead. This has no effect
    while the length of the signal is unknown. Once it is known, the model would not load any more.
    """

    roots = ("STFT",)
    opsets = (17, NEWEST_OPSET)
    lookback = 0

    def match(self, root: ir.Node) -> Match:
        """No attribute."""
        need("onesided" not in root.attributes, "onesided is there", root)
        return Match((root,), lambda: ops.copied(root, root.inputs, onesided=1))
