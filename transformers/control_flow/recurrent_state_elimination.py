"""A recurrence without initial states starts from zeros: tensors of zeros for them need not be computed."""

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import Refusal, attribute, dims, inputs, need, optional, same_dim, splat, static_dims
from ortopt.graph.symbolic import is_invented
from ortopt.rule import Match, RewriteRule
from ortopt.semantics import key
from ortopt.semantics.domains import MICROSOFT

FIRST_STATE = 5
STATES = {("", "GRU"): 1, ("", "LSTM"): 2, ("", "RNN"): 1, (MICROSOFT, "DynamicQuantizeLSTM"): 2}


class RecurrentStateElimination(RewriteRule[Match]):
    """``LSTM``, ``GRU``, ``RNN``, ``DynamicQuantizeLSTM`` with initial states of zeros → without them.

    Exporters compute the zeros from the batch size, with Shape, Gather, Concat, ConstantOfShape and Slice, or with
    Expand in integers of 32 bits; these nodes are removed too.
    """

    roots = tuple(f"{domain}::{op}" if domain else op for domain, op in STATES)
    lookback = 4

    def match(self, root: ir.Node) -> Match:
        """States of +0 in the shape that the recurrence wants: another one is an error at run time."""
        zeros, refusals = [], []
        for position in range(FIRST_STATE, FIRST_STATE + STATES[key(root)]):
            state = optional(root, position)
            if state is None:
                continue
            try:
                _check(root, state)
                zeros.append(position)
            except Refusal as refusal:
                refusals.append(refusal)
        if not zeros:
            raise refusals[0] if refusals else Refusal("it has no initial state", root)

        def build() -> ir.Node:
            inputs = [None if position in zeros else value for position, value in enumerate(root.inputs)]
            while inputs[-1] is None:
                inputs.pop()
            outputs = [ir.Value(name=None if value.name else "") for value in root.outputs]  # some are left out
            return ir.Node(root.domain, root.op_type, inputs, list(root.attributes.values()), outputs=outputs)

        return Match((root,), build)


def _check(root: ir.Node, state: ir.Value) -> None:
    number = splat(state)
    need(number == 0 and not np.signbit(number.astype(np.float64)), "it does not start from zeros", state)
    x, _, recurrence = inputs(root, 3)
    directions, *sizes = static_dims(recurrence, 3)
    hidden = min(sizes)  # the other has it for each gate; quantized weights are transposed
    steps_first = attribute(root, "layout", 0) == 0
    batch = dims(x, 3)[1 if steps_first else 0]
    wanted = (directions, batch, hidden) if steps_first else (batch, directions, hidden)
    alike = all(same_dim(own, dim) or is_invented(own) for own, dim in zip(dims(state, 3), wanted, strict=True))
    need(alike, "it may have another shape than the recurrence takes", state)  # one that nobody knows fits: it runs
