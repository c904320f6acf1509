"""What adds a number for each column behind a product of matrices, which its kernel can do as well."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.match import is_constant, is_op, is_used_once, is_vector_of, users
from ortopt.graph.symbolic import Dim

ADDITIONS = ("Add", "Sum")


def bias_behind(value: ir.Value, columns: Dim) -> tuple[ir.Node, ir.Value] | tuple[None, None]:
    """The node that adds a number for each column to a value, and these numbers; None where none does.

    Args:
        value: A product of matrices, read by nobody else.
        columns: How many columns it has.
    """
    if not is_used_once(value):
        return None, None
    (user,) = users(value)
    if not is_op(user, *ADDITIONS) or len(user.inputs) != 2 or user.graph is not value.graph:
        return None, None
    others = [operand for operand in user.inputs if operand is not value]
    bias = others[0] if len(others) == 1 else None
    if bias is None or not (is_constant(bias) or bias.is_graph_input()) or not is_vector_of(bias, columns):
        return None, None  # what is computed may be computed behind the product
    return user, bias
