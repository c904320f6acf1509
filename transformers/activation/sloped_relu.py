"""Relus with a slope where x is negative: one number, or one for each channel.

Spelled out, they read x twice or more. A LeakyRelu is one kernel, and part of the convolution before it; the CPU's
kernel for a PRelu is slower than what it replaces.
"""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import Code, dtype, is_op, need
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.patterns.slopes import ROOTS, SlopedRelu, sloped_relu
from ortopt.rule import NEWEST_OPSET, RewriteRule


class _SlopedReluFusion(RewriteRule[SlopedRelu]):
    opsets = (9, NEWEST_OPSET)  # before, there was no Where, and PRelu did not broadcast
    lookback = 3
    looks_downstream = True
    numerics = Numerics.REORDERED

    def numerics_of(self, found: SlopedRelu) -> Numerics:
        """Whether infinities come out of it as they did."""
        return Numerics.FINITE if found.finite else self.numerics


class LeakyReluFusion(_SlopedReluFusion):
    """``Max(x, a · x)`` → ``LeakyRelu<alpha = a>(x)``; so for ``PRelu(x, a)`` and all sums, multiples, choices of x.

    For instance ``Relu(x) - a · Relu(-x)``, and ``Relu(x) + a / 2 · (x - Abs(x))``. With a slope of 0 it is a Relu.
    """

    after = ("constant_folding", "constant_reassociation", "not_where_fusion", "relu_fusion")
    roots = (*ROOTS, "PRelu")

    def match(self, root: ir.Node) -> SlopedRelu:
        """A slope that is one number."""
        sloped = sloped_relu(root)
        need(bool((sloped.slope == sloped.slope.flat[0]).all()), "the slope is not one number", sloped.x)
        need_single(sloped.x)
        _check_pays(root, sloped)
        return sloped

    def rewrite(self, found: SlopedRelu) -> dict[ir.Value, ir.Value]:
        """One op of x."""
        slope = float(found.slope.flat[0])
        node = ir.node("LeakyRelu", [found.x], {"alpha": slope}) if slope else ir.node("Relu", [found.x])
        return {found.replaced[0]: node.outputs[0]}


def _check_pays(root: ir.Node, found: SlopedRelu) -> None:
    """Refuse a LeakyRelu for a PRelu on the web, where its kernel is the slower one, but as a part of a convolution."""
    stays = root.op_type == "PRelu" and scope.of_node(root).options.target is Target.WEB and bool(found.slope.flat[0])
    joined = is_op(found.x.producer(), "Conv")
    need(joined or not stays, "the kernel of PRelu is faster there", root, code=Code.COST)


class PreluFusion(_SlopedReluFusion):
    """``Max(x, A · x)`` → ``PRelu(x, A)`` for constants A; so for all that `leaky_relu_fusion` takes."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding",)
    roots = ROOTS
    fuses = (("", "PRelu"),)

    def match(self, root: ir.Node) -> SlopedRelu:
        """A slope for each channel: for one number see `leaky_relu_fusion`."""
        sloped = sloped_relu(root)
        need_single(sloped.x)
        need(sloped.slope.size > 1, "the slope is one number", sloped.x)
        return sloped

    def rewrite(self, found: SlopedRelu) -> dict[ir.Value, ir.Value]:
        """One op of x and the slopes."""
        slopes = constant(found.slope, dtype(found.x))
        return {found.replaced[0]: ir.node("PRelu", [found.x, slopes]).outputs[0]}
