"""An assignment to all of a tensor, as exporters write ``mask[:, :, :, :n] = …``, leaves nothing of what was there."""

import onnx_ir as ir

from ortopt.graph.match import dims, inputs, need, same_dim
from ortopt.options import TransformerLevel
from ortopt.rule import Forwarded, RewriteRule
from ortopt.transformers.movement._assignment import MAX_STEPS, check_replaces, first_places


class ScatterElimination(RewriteRule[Forwarded]):
    """``ScatterND(x, places, updates)`` with all places, each in its place → ``updates``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("expand_fusion", "shape_sharing")
    roots = ("ScatterND",)
    lookback = MAX_STEPS

    def match(self, root: ir.Node) -> Forwarded:
        """Updates as large as the tensor, and indices that count along each of its axes."""
        x, _, updates = inputs(root, 3)
        check_replaces(root)
        shape = dims(x)
        need(all(map(same_dim, dims(updates, len(shape)), shape)), "the updates may be others than all", updates)
        need(not any(first_places(root, shape)), "the indices do not count from 0", root)
        return Forwarded((root,), updates)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read the updates."""
        return found.value
