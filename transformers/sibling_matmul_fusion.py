"""Several small products of one value, as for queries, keys and values, use a processor less well than a wide one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.match import FLOATS, is_op, opset
from ortopt.onnx_ir_internals import use_count
from ortopt.options import Numerics, TransformerLevel
from ortopt.semantics import constant_tensor
from ortopt.semantics.opset_changes import SIZES_ARE_AN_INPUT_FROM
from ortopt.transformer import Context, GraphTransformer

AXIS_FROM_THE_END = 11  # a Split may count so


class SiblingMatmulFusion(GraphTransformer):
    """``MatMul(x, a)``, ``MatMul(x, b)``, … with constant matrices → ``Split(MatMul(x, Concat(a, b, …)))``.

    It is off by default, because it depends on the sizes and on the processor whether it is faster. The Split copies
    the results once more, and the matrices are stored in another order.
    """

    levels = (TransformerLevel.LEVEL4,)
    apply_once = True
    enabled = False
    numerics = Numerics.REORDERED
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Join the products of each value that has several."""
        changed = False
        for siblings in _siblings(context.cancellation.checked(graph)):
            if len(siblings) < 2:
                context.refuse(siblings[0], "no other product with a constant matrix reads the value")
            elif opset(siblings[0]) < AXIS_FROM_THE_END:
                context.refuse(siblings[0], "Split cannot count axes from the end")
            else:
                changed |= context.attempt(siblings, partial(_join, siblings, context))
        return changed


def _siblings(nodes: Iterable[ir.Node]) -> Iterator[list[ir.Node]]:
    """The products of each value with constant matrices that can be joined."""
    families: dict[tuple[object, ...], list[ir.Node]] = {}
    for node in nodes:
        if not is_op(node, "MatMul") or not use_count(node.outputs[0]) or node.outputs[0].is_graph_output():
            continue
        matrix = constant_tensor(node.inputs[1])
        if matrix is None or matrix.dtype not in FLOATS or len(matrix.shape) != 2 or 0 in matrix.shape.numpy():
            continue
        families.setdefault((node.inputs[0], matrix.dtype, matrix.shape[0]), []).append(node)
    yield from families.values()


def _join(siblings: list[ir.Node], context: Context) -> list[ir.Node]:
    first = siblings[0]
    tensors = [tensor for node in siblings if (tensor := constant_tensor(node.inputs[1])) is not None]
    matrices = [tensor.numpy() for tensor in tensors]
    wide = ir.Tensor(np.concatenate(matrices, axis=1), dtype=tensors[0].dtype)
    sizes = [matrix.shape[1] for matrix in matrices]
    product = ir.node("MatMul", [first.inputs[0], constant(wide)])
    if opset(first) >= SIZES_ARE_AN_INPUT_FROM["Split"]:
        split = ir.node("Split", [product.outputs[0], constant(sizes)], {"axis": -1}, num_outputs=len(sizes))
    else:
        split = ir.node("Split", [product.outputs[0]], {"axis": -1, "split": sizes}, num_outputs=len(sizes))
    replaced = {node.outputs[0]: part for node, part in zip(siblings, split.outputs, strict=True)}
    return context.replace(replaced, before=first, origin=siblings)
