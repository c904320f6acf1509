"""Some functions change nothing when they are applied again, and some are their own inverses."""

import onnx_ir as ir

from ortopt.graph.match import inputs, need, producer
from ortopt.rule import Elimination, Forwarded
from ortopt.semantics.op_traits import IDEMPOTENT, INVOLUTIONS


class RepeatedActivationElimination(Elimination):
    """``Relu(Relu(x))`` → ``Relu(x)``, so for Abs, Ceil, Floor, Round, Sign; ``Neg(Neg(x))`` → ``x``, so for Not.

    The result is exact for every input: integers wrap around in the same way, and NaN and -0.0 stay what they are.
    """

    roots = (*sorted(IDEMPOTENT), *sorted(INVOLUTIONS))

    def match(self, root: ir.Node) -> Forwarded:
        """The same op before; the value between the two may have other users."""
        (middle,) = inputs(root, 1)
        first = producer(middle, root.op_type)
        (x,) = inputs(first, 1)
        need(middle.dtype is not None, "the type is unknown", middle)
        return Forwarded((root,), middle if root.op_type in IDEMPOTENT else x)
