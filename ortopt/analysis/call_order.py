"""In which order local functions call one another."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.semantics import Functions, subgraphs


def callers_first(functions: Functions) -> list[ir.OperatorIdentifier]:
    """Functions in an order in which each stands before those that it calls."""
    order: list[ir.OperatorIdentifier] = []
    seen: set[ir.OperatorIdentifier] = set()
    for root in functions:
        pending: list[tuple[ir.OperatorIdentifier, bool]] = [(root, False)]
        while pending:
            identifier, left = pending.pop()
            if left:
                order.append(identifier)
            elif identifier not in seen:
                seen.add(identifier)
                pending.append((identifier, True))
                pending.extend((callee, False) for callee in _callees(functions[identifier], functions))
    return order[::-1]


def _callees(function: ir.Function, functions: Functions) -> list[ir.OperatorIdentifier]:
    graphs: list[ir.Graph] = [function.graph]
    callees: dict[ir.OperatorIdentifier, None] = {}
    while graphs:
        for node in graphs.pop():
            if node.op_identifier() in functions:
                callees[node.op_identifier()] = None
            graphs.extend(subgraphs(node))
    return list(callees)
