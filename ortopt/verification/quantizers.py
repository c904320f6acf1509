"""Which ops round floats to integers of few bits, on the way from floats to floats or as their result.

Rounding has steps: a number between two of them goes to the one or the other by its last place, and what is computed
from it moves by a whole step. So a quantized model moves far more than its floats' last places say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import QUANTIZERS

_FROM_THIRD: Final = ("Sigmoid", "LeakyRelu", "Softmax", "AveragePool", "GlobalAveragePool")

OUTPUT_SCALES: Final = {
    ("", "QLinearConv"): 6,
    ("", "QLinearMatMul"): 6,
    (MICROSOFT, "QLinearConv"): 6,
    (MICROSOFT, "QLinearAdd"): 6,
    (MICROSOFT, "QLinearMul"): 6,
    **{(MICROSOFT, f"QLinear{name}"): 3 for name in _FROM_THIRD},
    (MICROSOFT, "QLinearConcat"): 0,
    (MICROSOFT, "QLinearWhere"): 7,
    (MICROSOFT, "QGemm"): 7,
}
"""Ops that compute with integers: which input is the scale of the output; its zero point follows."""

DYNAMIC: Final = frozenset({(MICROSOFT, "DynamicQuantizeMatMul"), (MICROSOFT, "DynamicQuantizeLSTM")})
"""Ops that round their first operand as DynamicQuantizeLinear does, within themselves."""

_INT8: Final = 4
"""The accuracy level of MatMulNBits at which it rounds its first operand to 8 bits, by blocks."""


def is_blockwise(node: ir.Node) -> bool:
    """Whether a node is a MatMulNBits that rounds its first operand."""
    return (
        (node.domain, node.op_type) == (MICROSOFT, "MatMulNBits")
        and "accuracy_level" in node.attributes
        and node.attributes.get_int("accuracy_level", 0) == _INT8
    )


def rounds(node: ir.Node) -> bool:
    """Whether a node rounds floats to integers of few bits."""
    key = node.domain, node.op_type
    if key in OUTPUT_SCALES:
        scale = OUTPUT_SCALES[key]
        return len(node.inputs) > scale and node.inputs[scale] is not None  # QGemm may give floats
    return key in QUANTIZERS or key == ("", "DynamicQuantizeLinear") or key in DYNAMIC or is_blockwise(node)


def quantizers(model: ir.Model, token: CancellationToken = NEVER) -> Iterator[ir.Node]:
    """The nodes of a model that round what depends on its inputs, in all graphs.

    Args:
        model: The model.
        token: Cancellation token.
    """
    for graph in scope.graphs(model, token):
        for node in token.checked(tuple(graph)):
            if rounds(node) and any(value is not None and value.const_value is None for value in node.inputs):
                yield node


def quantized_outputs(model: ir.Model, token: CancellationToken = NEVER) -> frozenset[str]:
    """The outputs that depend on a node that rounds, at any depth. Linear in the nodes.

    Args:
        model: The model.
        token: Cancellation token.
    """
    functions = {key for key, function in model.functions.items() if any(map(rounds, _every_node(function.graph)))}
    moved: set[ir.Value] = set()
    for node in token.checked(model.graph):
        inner = (node, *(each for graph in scope.nested(node) for each in graph))
        if any(
            rounds(each) or each.op_identifier() in functions or not moved.isdisjoint(each.inputs) for each in inner
        ):
            moved.update(node.outputs)
    return frozenset(value.name or "" for value in model.graph.outputs if value in moved)


def _every_node(graph: ir.Graph) -> Iterator[ir.Node]:
    return (node for each in scope.below(graph) for node in each)


__all__ = ["DYNAMIC", "MICROSOFT", "OUTPUT_SCALES", "is_blockwise", "quantized_outputs", "quantizers", "rounds"]
