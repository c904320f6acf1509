"""What the spellings of several activations have in common: comparisons with a number, halves, products with x."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_apart, check_faster
from ortopt.graph import scope
from ortopt.graph.match import inputs, is_constant, is_scalar, keeps_rank, need
from ortopt.patterns.convolutions import elements_of_an_image
from ortopt.patterns.slopes import threshold


def chosen_above_zero(root: ir.Node, otherwise: str) -> tuple[ir.Node, ir.Value, ir.Value]:
    """``Where(x > 0, x, rest)``: the comparison, x and the rest.

    Args:
        root: The Where.
        otherwise: The reason if it is not that.
    """
    comparison, tested, bound, x, rest = threshold(root)
    need(tested is x and is_scalar(bound, 0.0) and keeps_rank(bound, x), otherwise, comparison)
    return comparison, x, rest


def beside_zero(node: ir.Node, otherwise: str) -> ir.Value:
    """What a node of two operands combines with a zero, which keeps its rank.

    Args:
        node: A Min or a Max.
        otherwise: The reason if it is not that.
    """
    need(len(node.inputs) == 2, otherwise, node)
    a, b = inputs(node, 2)
    zero, other = (a, b) if is_constant(a) else (b, a)
    need(is_scalar(zero, 0.0) and keeps_rank(zero, other), otherwise, node)
    return other


def other_operand(node: ir.Node, value: ir.Value) -> ir.Value:
    """What a node of two operands combines with a value: itself, where that is both."""
    a, b = inputs(node, 2)
    return b if a is value else a


def check_taken_apart(root: ir.Node, form: Form, x: ir.Value) -> None:
    """Refuse to take an activation apart where its own op is wanted, or as fast on the CPU.

    Args:
        root: The root of the activation.
        form: The arithmetic in the table of costs.
        x: What it is computed from.
    """
    # Where a provider has no kernel of Mish, ONNX Runtime takes it apart when it loads the model: into a Softplus.
    need(scope.of_node(root).options.providers[0] == CPU, "other providers have other kernels", root)
    check_apart(root)
    check_faster(root, form, image=elements_of_an_image(x, root))
