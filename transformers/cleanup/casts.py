"""Casts to the type that a value has, and those that lose nothing before another one, only copy."""

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import FLOATS, INTEGERS, attribute, dtype, inputs, need, plain_attributes, producer
from ortopt.rule import NEWEST_OPSET, Elimination, Forwarded, Match, RewriteRule
from ortopt.semantics.op_traits import CASTS

TYPE_IS_A_NUMBER_FROM = 6
"""Before, the type was spelled as text, and ONNX Runtime had no kernel."""

TYPE = ir.DataType
_NUMBERS = frozenset(map(int, TYPE))
EXTENTS = {
    TYPE.DOUBLE: (53, -1074, 1023),
    TYPE.FLOAT: (24, -149, 127),
    TYPE.BFLOAT16: (8, -133, 127),
    TYPE.FLOAT16: (11, -24, 15),
    TYPE.FLOAT8E4M3FN: (4, -9, 8),
    TYPE.FLOAT8E4M3FNUZ: (4, -10, 7),
    TYPE.FLOAT8E5M2: (3, -16, 15),
    TYPE.FLOAT8E5M2FNUZ: (3, -17, 15),
    TYPE.FLOAT4E2M1: (2, -1, 2),
}
"""Significant bits, exponent of the smallest number and of the largest, by type of numbers with a fraction."""

WHOLE = {
    TYPE.BOOL: (1, False),
    TYPE.UINT4: (4, False),
    TYPE.INT4: (4, True),
    **{kind: (kind.bitwidth, kind.name.startswith("INT")) for kind in INTEGERS},
}
"""Bits, and whether there is a sign, by type of whole numbers."""


class CastElimination(Elimination):
    """``Cast(x, to=type of x)`` → ``x``, and so for ``CastLike``."""

    roots = ("Cast", "CastLike")
    opsets = (TYPE_IS_A_NUMBER_FROM, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Forwarded:
        """A cast whose source and target types are known and the same."""
        if root.op_type == "Cast":
            (x,) = inputs(root, 1)
            number = attribute(root, "to", 0)
            need(number in _NUMBERS, "its target is no element type", root)
            target = TYPE(number)
        else:
            x, like = inputs(root, 2)
            target = dtype(like)
        need(dtype(x) == target, "the type changes", x)
        return Forwarded((root,), x)


class CastChainElimination(RewriteRule[Match]):
    """``Cast(Cast(x))`` → one ``Cast``, where the first loses nothing that the second would keep.

    ONNX Runtime has a similar pass (off by default), which also drops float to int to float, although this rounds.
    """

    roots = tuple(sorted(CASTS))
    opsets = (TYPE_IS_A_NUMBER_FROM, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
        """A cast of a lossless cast; the first may have other users, and stays for them."""
        (middle,) = inputs(root, 1)
        first = producer(middle, *sorted(CASTS))
        (x,) = inputs(first, 1)
        source, between = dtype(x), dtype(middle)
        to = TYPE(attribute(root, "to", 0)) if root.op_type == "Cast" else dtype(inputs(root, 2)[1])
        need(to != between, "the second cast changes nothing", root)
        need(TYPE.STRING not in (source, between, to), "text has several spellings", root)
        need(_holds(between, source) or _wraps(source, between, to), "the first cast may lose something", first)
        outside = source in WHOLE and between in EXTENTS and to in WHOLE and to != TYPE.BOOL
        need(not outside or _holds(to, source), "a number outside the range turns into another one", root)
        plain_attributes(root)
        attributes = ops.changed(root.attributes.values(), to=to.value)  # to the type of x is `cast_elimination`'s
        return Match((root,), lambda: ir.Node("", "Cast", [x], attributes))


class IndexCastElimination(RewriteRule[Match]):
    """``Gather(x, Cast(i))`` → ``Gather(x, i)`` where the indices i are of int32; so for other ops that take both."""

    roots = ("Gather", "GatherElements", "ScatterElements")
    opsets = (TYPE_IS_A_NUMBER_FROM, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
        """Indices that are cast from int32 to int64; the cast may have other users, and stays for them."""
        x, index = inputs(root, 2)
        (narrow,) = inputs(producer(index, *sorted(CASTS)), 1)
        need(dtype(narrow) == TYPE.INT32 and dtype(index) == TYPE.INT64, "no int32 becomes int64", index)
        attributes = plain_attributes(root).values()
        operands = [x, narrow, *root.inputs[2:]]
        return Match((root,), lambda: ir.Node("", root.op_type, operands, attributes))


def _holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Whether a type has each number of another."""
    if wide == narrow:
        return True
    if narrow in WHOLE:
        bits, signed = WHOLE[narrow]
        if wide in WHOLE:
            more, has_sign = WHOLE[wide]
            return wide != TYPE.BOOL and (bits - signed <= more - has_sign) and (has_sign or not signed)
        return wide in FLOATS and bits - signed <= EXTENTS[wide][0] and bits - 1 <= EXTENTS[wide][2]
    if narrow not in EXTENTS or wide not in FLOATS:
        return False
    digits, lowest, highest = EXTENTS[wide]
    return digits >= EXTENTS[narrow][0] and lowest <= EXTENTS[narrow][1] and highest >= EXTENTS[narrow][2]


def _wraps(source: ir.DataType, between: ir.DataType, to: ir.DataType) -> bool:
    """Whether whole numbers lose only high bits that the second cast, to no more bits, drops too."""
    if not {source, between, to} <= INTEGERS:
        return False
    return to.bitwidth <= between.bitwidth
