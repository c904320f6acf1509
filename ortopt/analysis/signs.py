"""Which float values have no sign: those that are never negative, and those that are never -0.0.

And which values are read only by what does not tell 0.0 from -0.0.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from ortopt.graph.facts import INTEGERS
from ortopt.graph.match import FLOATS, Refusal, array_of, is_constant, is_op, optional, scalar, users
from ortopt.graph.walk import Answers, Question, walk
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import MOVING

_MAX_ELEMENTS = 1 << 16

POSITIVE = ("Abs", "Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Sigmoid", "Softmax", "Softplus")
"""Ops whose results are never below +0; not Relu, Max and Clip, which may let -0.0 through."""

KEEPERS = MOVING | {"Add", "Cast", "Div", "GlobalAveragePool", "Mul", "ReduceMean", "ReduceSum", "Sqrt"}
"""Ops whose results are never below +0 if no operand is."""


ONE_ZERO = frozenset(
    {
        *("Add", "AveragePool", "Conv", "ConvTranspose", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm"),
        *("GlobalAveragePool", "MatMul", "ReduceMean", "ReduceSum", "Sub"),
        *("Cos", "Equal", "Exp", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "LogSoftmax"),
        *("Sigmoid", "Softmax", "Softplus"),
    }
)
"""Ops of which the sign of a zero among the operands changes nothing but the sign of a zero in the result."""

_PASSING = MOVING | {"Clip", "Concat", "GlobalMaxPool", "MaxPool", "Pad", "Relu"}
"""Ops whose results have such zeros as their operands have."""


def is_never_below_zero(value: ir.Value | None) -> bool:
    """Whether no element of a float value is negative or -0.0; NaN may be there.

    Args:
        value: The value; of what is no float nothing is known.
    """
    return walk(_is_never_below_zero, value, unknown=False)


def _is_never_below_zero(value: ir.Value | None) -> Question[ir.Value | None, bool]:
    if value is None or value.dtype not in FLOATS:
        return False
    if is_constant(value):
        content = _content(value)
        return content is not None and not np.signbit(content[~np.isnan(content)]).any()
    node = value.producer()
    if node is None or node.domain != "":
        return False
    if node.op_type in POSITIVE:
        return True
    if is_op(node, "Mul") and node.inputs[0] is node.inputs[1]:
        return True
    if is_op(node, "Pow"):
        try:
            return scalar(optional(node, 1)) % 2 == 0
        except Refusal:
            return False
    if node.op_type not in KEEPERS:
        return False
    for operand in node.inputs[:2] if is_op(node, "Add", "Div", "Mul") else node.inputs[:1]:
        if not (yield operand):
            return False
    return True


def is_never_negative_zero(value: ir.Value | None) -> bool:
    """Whether no element of a value is -0.0: a sum is only where all of its terms are, and no integer is.

    Args:
        value: The value, of any type.
    """
    return walk(partial(_is_never_negative_zero, Answers()), value, unknown=False)


def _is_never_negative_zero(
    below_zero: Answers[ir.Value | None, bool], value: ir.Value | None
) -> Question[ir.Value | None, bool]:
    if value is None:
        return False
    if value.dtype not in FLOATS:
        return value.dtype in INTEGERS
    if is_constant(value):
        content = _content(value)
        return content is not None and not (np.signbit(content) & (content == 0)).any()
    node = value.producer()
    if node is None or node.domain != "":
        return False
    if is_op(node, "Add"):
        for operand in node.inputs:
            if (yield operand):
                return True
        return False
    if is_op(node, "Sub", *MOVING):
        return (yield node.inputs[0])
    if is_op(node, "Cast"):
        source = node.inputs[0]
        if source is not None and source.dtype in INTEGERS:
            return True
    return walk(_is_never_below_zero, value, unknown=False, answers=below_zero)


def has_one_zero(value: ir.Value) -> bool:
    """Whether all that reads a value, as it is or its elements moved, gives the same for 0.0 and -0.0.

    But for the sign of a zero of its own: it is no 1/x, which gives two infinities.

    Args:
        value: The value, of floats.
    """
    return walk(_has_one_zero, value, unknown=False)


def _has_one_zero(value: ir.Value) -> Question[ir.Value, bool]:
    if value.is_graph_output():
        return False
    for node in users(value):
        if node.op_type in ONE_ZERO and node.domain in ("", MICROSOFT):
            continue
        if node.op_type not in _PASSING or node.domain != "":
            return False
        for result in node.outputs:
            if not (yield result):
                return False
    return True


def _content(value: ir.Value) -> np.ndarray | None:
    """The elements of a constant, unless they are many."""
    content = array_of(value)
    return content.astype(np.float64) if content.size <= _MAX_ELEMENTS else None
