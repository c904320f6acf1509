"""A BatchNormalization scales columns of a constant matrix, also where the axes are moved before it."""

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import inputs, need, producer, rank
from ortopt.linear.channels import Effect, normalization
from ortopt.linear.folding import LinearFolding
from ortopt.linear.layer import Folded, linear
from ortopt.options import TransformerLevel
from ortopt.transformers.linear._columns import LONGEST_PATH, moved, path_to


class MatMulBnFusion(LinearFolding):
    """``BatchNormalization(MatMul(a, B))`` → ``Gemm(a, B', c)``, with Reshapes and Transposes between too.

    This holds only if the axes are moved so that the columns become the channels. (ONNX Runtime does not check that.)
    Where `a` is a stack of matrices, which Gemm does not take, it is ``Add(MatMul(a, B'), c)``.
    """

    levels = (TransformerLevel.LEVEL1,)
    roots = ("BatchNormalization",)
    lookback = LONGEST_PATH + 1

    def match(self, root: ir.Node) -> Folded:
        """A matrix times a constant matrix, and a path on which the columns become the second axis."""
        path, product = path_to(inputs(root, 1)[0])
        layer = linear(producer(product, "MatMul"))
        need(rank(layer.x) >= 2, "it multiplies a vector", layer.x)
        position = rank(layer.x) - 1
        for step in path:
            position = moved(step, position)
        need(position == 1, "the columns are not the channels", root)
        return layer.fold_behind(Effect(*normalization(root, layer.outputs)), *path, root)

    def rewrite(self, found: Folded) -> ir.Node:
        """Build the Gemm, and the nodes that move its axes anew."""
        _, *path, _ = found.nodes
        node = found.node(as_gemm=rank(found.x) == 2)
        for step in path:
            node = ops.copied(step, [node.outputs[0], *step.inputs[1:]])
        return node
