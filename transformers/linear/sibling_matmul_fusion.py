"""Several small products of one value, as for queries, keys and values, use a processor less well than a wide one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.framework.fusions import check_faster, is_asked_for
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOAT, FLOATS, dims, is_op, need, opset
from ortopt.linear.weights import MAX_BYTES
from ortopt.onnx_ir_internals import use_count
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.parallel_parts import MERGED
from ortopt.semantics import constant_tensor
from ortopt.transformer import Context, GraphTransformer

AXIS_FROM_THE_END = 11  # a Split may count so


class SiblingMatmulFusion(GraphTransformer):
    """``MatMul(x, a)``, ``MatMul(x, b)``, … with constant matrices → ``Split(MatMul(x, Concat(a, b, …)))``.

    Only where that is known to be faster: for one row, and three products or more that are not small. The Split copies
    the results once more, so for more rows the products stay (`matmul_split_decomposition` does the opposite there).
    """

    levels = (TransformerLevel.LEVEL4,)
    apply_once = True
    numerics = Numerics.REORDERED
    offers_rewrites = True
    weighs = (MERGED,)

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Join the products of each value that has several."""
        changed = False
        families = {siblings[0]: siblings for siblings in _siblings(context.cancellation.checked(graph))}
        for first, _ in context.answered(families, lambda first: _check(families[first])):
            changed |= context.attempt(families[first], partial(_join, families[first], context))
        return changed


def _siblings(nodes: Iterable[ir.Node]) -> list[list[ir.Node]]:
    """The products of each value with constant matrices that can be joined."""
    families: dict[tuple[object, ...], list[ir.Node]] = {}
    for node in nodes:
        if not is_op(node, "MatMul") or not use_count(node.outputs[0]) or node.outputs[0].is_graph_output():
            continue
        matrix = constant_tensor(node.inputs[1])
        if matrix is None or matrix.dtype not in FLOATS or len(matrix.shape) != 2 or 0 in matrix.shape.numpy():
            continue
        families.setdefault((node.inputs[0], matrix.dtype, matrix.shape[0]), []).append(node)
    return list(families.values())


def _check(siblings: list[ir.Node]) -> None:
    """Check that products can be joined, and are faster then.

    Raises:
        Refusal: If not.
    """
    first, x = siblings[0], siblings[0].inputs[0]
    need(len(siblings) > 1, "no other product with a constant matrix reads the value", first)
    need(opset(first) >= AXIS_FROM_THE_END, "Split cannot count axes from the end", first)
    assert x is not None
    tensors = _tensors(siblings)
    columns, outputs = (tensors[0].shape.numpy()[0], sum(tensor.shape.numpy()[1] for tensor in tensors))
    measured = tensors[0].dtype == FLOAT or is_asked_for(first, MERGED)
    need(measured, "the gain was measured for single precision only", first)
    check_faster(first, MERGED, rows=dims(x)[:-1], columns=columns, outputs=outputs, parts=len(siblings))
    need(sum(tensor.nbytes for tensor in tensors) <= MAX_BYTES, "the matrices are large", first)
    shared = next((node.inputs[1] for node in siblings if _is_needed_elsewhere(node.inputs[1])), None)
    need(shared is None, "a matrix is used elsewhere, and would be stored twice", first)


def _is_needed_elsewhere(value: ir.Value | None) -> bool:
    return value is not None and (use_count(value) > 1 or value.is_graph_output())


def _tensors(siblings: Iterable[ir.Node]) -> list[ir.TensorProtocol]:
    """The constant matrices of products."""
    return [tensor for node in siblings if (tensor := constant_tensor(node.inputs[1])) is not None]


def _join(siblings: list[ir.Node], context: Context) -> list[ir.Node]:
    first = siblings[0]
    tensors = _tensors(siblings)
    matrices = [tensor.numpy() for tensor in tensors]
    wide = ir.Tensor(np.concatenate(matrices, axis=1), dtype=tensors[0].dtype)
    sizes = [matrix.shape[1] for matrix in matrices]
    product = ir.node("MatMul", [first.inputs[0], constant(wide)])
    split = ops.split_node(product.outputs[0], -1, sizes, opset(first))
    replaced = {node.outputs[0]: part for node, part in zip(siblings, split.outputs, strict=True)}
    return context.replace(replaced, before=first, origin=siblings)
