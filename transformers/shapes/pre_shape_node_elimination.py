"""The shape of a result can be read from an operand of the same shape."""

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import inputs, is_op, need, producer, users
from ortopt.options import TransformerLevel
from ortopt.rule import Forwarded, RewriteRule
from ortopt.semantics.op_traits import SHAPE_OF_FIRST_INPUT, SHAPE_QUERIES

KEEPERS = tuple(sorted(SHAPE_OF_FIRST_INPUT))


class PreShapeNodeElimination(RewriteRule[Forwarded]):
    """``Shape(f(x))``, ``Size(f(x))`` → ``Shape(x)``, ``Size(x)`` for a Cast or another f that keeps the shape."""

    levels = (TransformerLevel.LEVEL1,)
    roots = tuple(sorted(SHAPE_QUERIES))
    lookback = 1
    looks_downstream = True

    def match(self, root: ir.Node) -> Forwarded:
        """A result that only Shape and Size read."""
        (result,) = inputs(root, 1)
        node = producer(result, *KEEPERS)
        need(result is node.outputs[0], "it is another output", result)
        (x,) = inputs(node, 1)
        need(x.type is None or isinstance(x.type, ir.TensorType), "it is no tensor", x)
        private = not result.is_graph_output() and all(is_op(user, *SHAPE_QUERIES) for user in users(result))
        need(private, f"{node.op_type}'s result is used elsewhere", result)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Node:
        """Ask the input."""
        (root,) = found.nodes
        return ops.copied(root, [found.value])
