"""A Slice from the first element to the last, one by one, only copies."""

import onnx_ir as ir

from ortopt.graph.facts import contents
from ortopt.graph.match import Dim, Refusal, attribute, dims, need, opset, optional, same_dim, values
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule, Root

TO_THE_END = 2**31 - 1  # what exporters write for "to the end"; INT64_MAX is more
INPUTS = {"starts": 1, "ends": 2, "axes": 3, "steps": 4}


class SliceElimination(RewriteRule[Root]):
    """``Slice`` that takes everything in order → ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Slice",)

    def match(self, root: ir.Node) -> Root:
        """Steps of 1 from 0 to the end of each axis."""
        (x,) = values(root, 1)
        shape = dims(x)
        starts, ends = _list(root, "starts"), _list(root, "ends")
        if starts is None or ends is None:
            raise Refusal("it has no bounds", root)
        axes = _list(root, "axes") or tuple(range(len(starts)))
        steps = _list(root, "steps") or (1,) * len(starts)
        need(len(starts) == len(ends) == len(axes) == len(steps), "the bounds do not fit one another", root)
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            need(same_dim(step, 1), "its steps are not 1", root)
            need(isinstance(axis, int) and -len(shape) <= axis < len(shape), "an axis is not known", root)
            assert isinstance(axis, int)
            size = shape[axis]
            from_first = isinstance(start, int) and isinstance(size, int) and start <= -size
            need(same_dim(start, 0) or from_first, "it may leave out the beginning", root)
            long = isinstance(end, int) and (end >= TO_THE_END or (isinstance(size, int) and end >= size))
            need(long or same_dim(end, size), "it may leave out the end", root)
        return Root((root,), x)

    def rewrite(self, found: Root) -> ir.Value:
        """Let its users read what it copies."""
        return found.value


def _list(node: ir.Node, name: str) -> tuple[Dim, ...] | None:
    """Bounds, axes or steps: an attribute before opset 10, an input since; None where they are left out."""
    if opset(node) < 10:
        listed: tuple[int, ...] | None = attribute(node, name, None)
        return listed
    value = optional(node, INPUTS[name])
    if value is None:
        return None
    known = contents(value)
    if known is None:
        raise Refusal(f"its {name} are not known", value)
    return known
