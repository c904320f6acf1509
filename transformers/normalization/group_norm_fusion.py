"""A group normalization is five kernels, as exporters write it; the standard, and CUDA, have one op for it."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.kernels import CUDA
from ortopt.framework import placement
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOAT, dims, dtype, is_never_zero, need, opset
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.layer_normalization import ROOTS
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.normalization._group_normalization import GroupNormalization, group_normalization

STANDARD_FROM = 21
LARGEST_GROUP = 512
"""Channels of a group that CUDA's kernel takes, two at a time."""


class Found(Struct, frozen=True):
    """The normalization, and whether CUDA's own op is made of it."""

    found: GroupNormalization
    own: bool

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes that go away."""
        return self.found.nodes

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result, which stands below the root."""
        return self.found.replaced


class GroupNormFusion(RewriteRule[Found]):
    """``Reshape(InstanceNormalization(Reshape(x))) · scale + bias`` → ``GroupNormalization(x, scale, bias)``.

    On CUDA it is ONNX Runtime's own ``GroupNorm`` between Transposes, with the SiLU that often follows.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding", "layer_norm_fusion", "opset_conversion", "quick_gelu_fusion")
    roots = ("InstanceNormalization", "LayerNormalization", *ROOTS)
    needs = ("InstanceNormalization", "LayerNormalization", "ReduceMean")
    lookback = 7
    looks_downstream = True
    produces = ((MICROSOFT, "GroupNorm"),)
    fuses = (("", "GroupNormalization"), *produces)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """The normalization of fixed channels, if there is an op for it."""
        options = scope.of(scope.graph_of(root)).options
        own = options.target is Target.ORT and placement.provider_of(root, options.providers) == CUDA
        found = group_normalization(root, with_silu=own)
        shape = dims(found.x)
        own = own and len(shape) == 4
        if own:
            size = found.scale.size // found.groups
            need(size % 2 == 0 and size <= LARGEST_GROUP, "there is no kernel for so many channels a group", found.x)
            need(all(is_never_zero(dim, root) for dim in shape), "a dimension may be 0", found.x)
        else:
            need(opset(root, "") >= STANDARD_FROM, f"opset {opset(root, '')} has no GroupNormalization", root)
            need(not found.silu, "there is no op with an activation", root)
        return Found(found, own)

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the op in place of the result."""
        norm = found.found
        kind = dtype(norm.x)
        parameters = [constant(numbers, FLOAT if found.own else kind) for numbers in (norm.scale, norm.bias)]
        if not found.own:
            attributes: dict[str, int | float] = {"epsilon": norm.epsilon, "num_groups": norm.groups}
            return {norm.y: ir.node("GroupNormalization", [norm.x, *parameters], attributes).outputs[0]}
        last = ir.node("Transpose", [norm.x], {"perm": [0, 2, 3, 1]})
        attributes = {"activation": int(norm.silu), "channels_last": 1, "epsilon": norm.epsilon, "groups": norm.groups}
        node = ir.node("GroupNorm", [last.outputs[0], *parameters], attributes, domain=MICROSOFT)
        return {norm.y: ir.node("Transpose", [node.outputs[0]], {"perm": [0, 3, 1, 2]}).outputs[0]}
