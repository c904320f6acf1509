"""Steps of an LSTM or a GRU that stand behind one another are that op.

PyTorch traces a loop in Python over a cell step by step, and Keras unrolls a layer on request (converters to TFLite ask
for it): each step then runs a dozen small kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.detached import new_nodes
from ortopt.graph.match import need
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.transformer import Context, GraphTransformer
from ortopt.transformers.control_flow._recurrences import fused, recurrence_of
from ortopt.transformers.control_flow._unrolled_steps import Steps, as_scan, root_of, steps_of, unrolled

FORMS: Final = {op: Form("", op, "in place of steps") for op in ("LSTM", "GRU")}


class UnrolledRecurrenceFusion(GraphTransformer):
    """Equal steps of an LSTM or a GRU behind one another → ``LSTM``, ``GRU``.

    The steps become a Scan, of which the op is made as `loop_recurrence_fusion` makes it; a Scan of anything else is
    slower than its steps, and is not made.
    """

    levels = (TransformerLevel.LEVEL2,)
    needs = ("HardSigmoid", "Sigmoid", "Softsign", "Tanh")
    numerics = Numerics.REORDERED
    providers = (CPU,)
    targets = (Target.ORT,)  # elsewhere nobody has measured it, and an If is no gain
    fuses = (("", "LSTM"), ("", "GRU"))
    weighs = tuple(FORMS.values())
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Fuse the steps by one matrix after those by another: the steps of a layer may read those of another one."""
        changed, order = False, dict[ir.Node, int]()
        for products in unrolled(graph, context.cancellation):
            if any(node.graph is not graph for node in products):
                continue  # they were steps of others
            order = order or {node: place for place, node in enumerate(graph)}
            for _, steps in context.answered(products[:1], partial(_steps, products, order)):
                nodes = [node for step in steps.nodes for node in step]
                if context.attempt(nodes, partial(_fuse, steps, context), "its steps are a recurrence"):
                    changed, order = True, {}
        return changed


def _steps(products: Sequence[ir.Node], order: Mapping[ir.Node, int], _: ir.Node) -> Steps:
    return steps_of(products, order)


def _fuse(steps: Steps, context: Context) -> list[ir.Node]:
    """Put a Scan of the steps in their place, and the op in its."""
    scan, replacements, joined = as_scan(steps)
    root, edit = root_of(steps), context.edit
    stacks = [stack for _, stack in joined]
    added = new_nodes([*scan.outputs, *replacements.values(), *stacks])
    edit.insert(added, root, [node for step in steps.nodes for node in step])
    if replacements:
        context.replace(replacements, root)
    for (node, _, (start, end), _), stack in joined:
        operands = [*node.inputs[:start], stack, *node.inputs[end:]]
        whole = ops.copied(node, operands).outputs[0] if len(operands) > 1 else stack
        context.replace({node.outputs[0]: whole}, node, (node,))
    edit.sweep([node for step in reversed(steps.nodes) for node in reversed(step)])
    found = recurrence_of(scan)
    need(found.cell.op in FORMS, "the steps are a simple cell", scan)
    check_faster(scan, FORMS[found.cell.op], batch=found.batch)
    return [*added, *fused(found, context)]
