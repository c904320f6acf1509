"""A reduction drops its axes, or keeps them with size 1, as it is told: no other op need do it behind."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph import symbolic
from ortopt.graph.facts import contents
from ortopt.graph.match import Refusal, attribute, dims, inputs, need, opset, optional, plain_attributes, producer
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.op_traits import REDUCTIONS, RESHAPING
from ortopt.semantics.opset_changes import AXES_ARE_AN_INPUT_FROM

OF_ONE_AXIS = ("ArgMax", "ArgMin")


class Found(Struct, frozen=True):
    """The reduction and what follows, and whether the new one keeps its axes."""

    nodes: tuple[ir.Node, ...]
    keeps: bool


class ReduceReshapeFusion(RewriteRule[Found]):
    """``Unsqueeze(ReduceMean<keepdims = 0>(x))`` → ``ReduceMean<keepdims = 1>(x)``; ``Squeeze`` the other way.

    The same holds for Reshape, and for all reductions, ArgMax and ArgMin.
    """

    levels = (TransformerLevel.LEVEL1,)
    roots = tuple(sorted(RESHAPING))
    needs = (*sorted(REDUCTIONS), *OF_ONE_AXIS)

    def match(self, root: ir.Node) -> Found:
        """A result whose shape is that of the reduction with the other value of keepdims."""
        middle, *_ = inputs(root, 1)
        reduction = producer(middle, *sorted(REDUCTIONS), *OF_ONE_AXIS)
        (x,) = inputs(reduction, 1)
        plain_attributes(reduction)
        shape = dims(x)
        axes = _axes(reduction, len(shape))
        keeps = attribute(reduction, "keepdims", 1) == 0
        if keeps:
            wanted = tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
        else:
            wanted = tuple(dim for axis, dim in enumerate(shape) if axis not in axes)
        need(not root.outputs[0].is_graph_output(), "what a file declares of its result is no proof", root)
        need(symbolic.same_shape(dims(root.outputs[0]), wanted), "it gives another shape", root)
        return Found((reduction, root), keeps)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the reduction."""
        old = found.nodes[0]
        kept = [each for name, each in old.attributes.items() if name != "keepdims"]
        return ir.Node("", old.op_type, old.inputs, [*kept, ir.AttrInt64("keepdims", int(found.keeps))])


def _axes(reduction: ir.Node, rank: int) -> frozenset[int]:
    if reduction.op_type in OF_ONE_AXIS:
        axes: tuple[int, ...] = (attribute(reduction, "axis", 0),)
    elif opset(reduction) < AXES_ARE_AN_INPUT_FROM[reduction.op_type]:
        none: tuple[int, ...] = ()
        axes = attribute(reduction, "axes", none)
    else:
        given = optional(reduction, 1)
        known = () if given is None else contents(given)
        if known is None or not all(isinstance(axis, int) for axis in known):
            raise Refusal("the axes are not known", reduction)
        axes = tuple(axis for axis in known if isinstance(axis, int))
        need(bool(axes) or attribute(reduction, "noop_with_empty_axes", 0) == 0, "it reduces nothing", reduction)
    need(all(-rank <= axis < rank for axis in axes), "an axis is out of range", reduction)
    return frozenset(axis % rank for axis in axes) if axes else frozenset(range(rank))
