"""What an output's floats may differ by: by its dtype, and by the coarsest dtype among all that it is computed from."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir
from msgspec import Struct

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.semantics.op_traits import SHAPE_QUERIES
from ortopt.verification.quantizers import rounds

TOLERANCES: Final = {
    ir.DataType.DOUBLE: 1e-9,
    ir.DataType.COMPLEX128: 1e-9,
    ir.DataType.FLOAT: 1e-4,
    ir.DataType.COMPLEX64: 1e-4,
    ir.DataType.FLOAT16: 2e-2,
    ir.DataType.BFLOAT16: 8e-2,
    ir.DataType.FLOAT8E4M3FN: 0.3,
    ir.DataType.FLOAT8E4M3FNUZ: 0.3,
    ir.DataType.FLOAT8E5M2: 0.3,
    ir.DataType.FLOAT8E5M2FNUZ: 0.3,
}
"""What an output may differ by where its model's noise is not known."""

_DTYPES: Final = frozenset({"to", "dtype", "output_dtype"})


class Limits(Struct, frozen=True):
    """What an error of a dtype is, as a share of the output's scale.

    Attributes:
        sure: Up to here it is rounding: some units in the last place.
        cap: Beyond, it is wrong, however noisy the model is.
    """

    sure: float
    cap: float


LIMITS: Final = {
    1e-9: Limits(1e-11, 1e-6),
    1e-4: Limits(2e-5, 1e-2),
    2e-2: Limits(2e-3, 0.1),
    8e-2: Limits(1.6e-2, 0.2),
    0.3: Limits(0.125, 0.5),
}
"""By what is usual (`TOLERANCES`)."""


def tolerances(model: ir.Model, token: CancellationToken = NEVER) -> dict[str, float]:
    """For each output, the tolerance of the coarsest dtype among all that it is computed from.

    A coarse dtype comes in by an input, a constant or a Cast, and stays in all that depends on it: no types need to be
    known in between. A step of quantization may go the other way after a rounding: that is float16's. Linear in the
    nodes.

    Args:
        model: The model.
        token: Cancellation token.
    """
    functions = _FunctionTolerances(model)
    known: dict[ir.Value, float] = {}

    def of(value: ir.Value) -> float:
        return known[value] if value in known else _of_type(value.dtype)

    for node in token.checked(model.graph):
        coarsest = functions.of_node(node)
        if node.op_type not in SHAPE_QUERIES or node.domain:
            for inner in (node, *(inner for graph in scope.nested(node) for inner in graph)):
                for value in inner.inputs:
                    coarsest = max(coarsest, of(value)) if value is not None else coarsest
        for value in node.outputs:
            known[value] = coarsest
    return {value.name or "": of(value) for value in model.graph.outputs}


class _FunctionTolerances:
    """What nodes bring in by themselves: by their attributes, their subgraphs and the functions that they call."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._known: dict[ir.OperatorIdentifier, float] = {}

    def of_node(self, node: ir.Node) -> float:
        """The greatest tolerance that a node brings in."""
        tolerance = _own(node)
        pending = list(scope.nested(node))
        called = [node.op_identifier()] if self._functions else []
        seen: set[ir.OperatorIdentifier] = set()
        while pending or called:
            if not pending:
                identifier = called.pop()
                if identifier in seen or identifier not in self._functions:
                    continue
                seen.add(identifier)
                if identifier in self._known:
                    tolerance = max(tolerance, self._known[identifier])
                    continue
                pending.extend(scope.below(self._functions[identifier].graph))
                continue
            graph = pending.pop()
            tolerance = max(tolerance, *(_of_type(value.dtype) for value in graph.initializers.values()), 0.0)
            for inner in graph:
                tolerance = max(tolerance, _own(inner))
                if self._functions:
                    called.append(inner.op_identifier())
        if node.op_identifier() in self._functions:
            self._known[node.op_identifier()] = tolerance
        return tolerance


def _of_type(dtype: ir.DataType | None) -> float:
    return 0.0 if dtype is None else TOLERANCES.get(dtype, 0.0)


def _own(node: ir.Node) -> float:
    """The tolerance of a node's results, whatever its inputs are."""
    tolerance = 0.0
    if rounds(node):
        tolerance = TOLERANCES[ir.DataType.FLOAT16]
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if name in _DTYPES and attribute.type == ir.AttributeType.INT:
            number = attribute.as_int()
            tolerance = max(tolerance, *(usual for dtype, usual in TOLERANCES.items() if dtype.value == number), 0.0)
        elif attribute.type == ir.AttributeType.TENSOR:
            tolerance = max(tolerance, _of_type(attribute.as_tensor().dtype))
    return max(tolerance, *(_of_type(value.dtype) for value in node.outputs), 0.0)
