"""Who needs what is computed from dimensions alone: for each such node the one that takes it, and why it had to stay.

Exports compute shapes, positions and masks from the sizes of their inputs. What of that is left in an optimized model
is there because something needs it whose dimensions are no numbers; this says what, and which dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph import facts, scope, symbolic
from ortopt.graph.match import Dim, shape_of
from ortopt.semantics import CONTROL_FLOW, constant_tensor, is_random
from ortopt.semantics.op_traits import SHAPE_QUERIES

MAX_DIMENSIONS = 4
"""So many dimensions are named in a reason."""


class Demand(Struct, frozen=True):
    """Why a node that depends on dimensions alone is there.

    Attributes:
        node: The node.
        user: The nearest node that takes what comes of it together with data; None where the graph returns it.
        why: What for, and which dimensions are not numbers, as a clause for people.
    """

    node: ir.Node
    user: ir.Node | None
    why: str


def demands(model: ir.Model) -> list[Demand]:
    """The nodes of a model that depend on dimensions alone, in order, each with who needs it and why.

    Args:
        model: An optimized model, as inference has left it. Linear in its nodes.
    """
    return [found for graph in (model.graph, *(f.graph for f in model.functions.values())) for found in _in(graph)]


def _in(graph: ir.Graph) -> Iterable[Demand]:
    derived: dict[ir.Node, None] = {}
    values: set[ir.Value] = set()
    for at in scope.below(graph):
        for node in at:
            if _depends_on_dimensions(node, values):
                derived[node] = None
                values.update(node.outputs)
    found: dict[ir.Node, Demand] = {}
    for node in reversed(derived):
        found[node] = _demand(node, derived, found)
    return (found[node] for node in derived)


def _depends_on_dimensions(node: ir.Node, values: set[ir.Value]) -> bool:
    if node.domain or node.op_type in CONTROL_FLOW or is_random(node):
        return False
    if node.op_type in SHAPE_QUERIES:
        return True
    operands = [value for value in node.inputs if value is not None and constant_tensor(value) is None]
    return bool(operands) and all(value in values for value in operands)


def _demand(node: ir.Node, derived: dict[ir.Node, None], found: dict[ir.Node, Demand]) -> Demand:
    """Who needs a node: a direct user, or else the one who needs the first of those that are derived from it."""
    following: Demand | None = None
    for value in node.outputs:
        for use in value.uses():
            if use.node not in derived:
                return Demand(node, use.node, _why(use.node, use.idx, value))
            following = following or found.get(use.node)
    if following is not None:
        return Demand(node, following.user, following.why)
    returned = next((value for value in node.outputs if value.is_graph_output()), None)
    return Demand(node, None, "nobody needs it" if returned is None else f"the graph returns {returned.name}")


def _why(user: ir.Node, position: int, value: ir.Value) -> str:
    reason = _REASONS.get((user.op_type, position)) if not user.domain else None
    told = reason(user, value) if reason is not None else None
    if told is None:
        names = _named(_symbols(value))
        told = "computes with it" + (f": it depends on {names}" if names else "")
    return f"{user.op_type} {told}"


def _symbols(value: ir.Value) -> list[str]:
    """The expressions that decide a value, or its size, other than numbers."""
    elements: Sequence[Dim] = facts.all_contents(value) or shape_of(value) or ()
    return [str(dim) for dim in elements if not isinstance(dim, int) and symbolic.is_known(dim)]


def _named(texts: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(_shown(text) for text in texts))
    more = f" and {len(distinct) - MAX_DIMENSIONS} more" if len(distinct) > MAX_DIMENSIONS else ""
    return ", ".join(distinct[:MAX_DIMENSIONS]) + more


def _shown(text: str) -> str:
    """A dimension for people; what inference has invented has no name that they know."""
    return "a dimension that depends on data" if symbolic.INVENTED in text else text


def _reshape(user: ir.Node, target: ir.Value) -> str | None:
    """Which dimensions a constant target could not say."""
    source = user.inputs[0]
    result = shape_of(user.outputs[0])
    if source is None or result is None:
        return None
    asked = facts.contents(target)
    if asked is not None and len(asked) == len(result):  # what is asked for, where it is not proven to be the result's
        pairs = zip(asked, result, strict=True)
        result = tuple(dim if isinstance(to, int) or not symbolic.is_known(to) else to for to, dim in pairs)
    own = shape_of(source) or ()
    open_ = [
        str(dim) if symbolic.is_known(dim) else "unknown"
        for axis, dim in enumerate(result)
        if not isinstance(dim, int) and not (axis < len(own) and symbolic.equal(dim, own[axis]))
    ]
    if len(open_) > 1:
        return f"needs it: {len(open_)} dimensions are neither numbers nor the input's own: {_named(open_)}"
    names = _named(str(dim) for dim in result if not isinstance(dim, int) and str(dim) not in open_)
    return (
        f"needs it: {_named(open_) or 'a dimension'} cannot be inferred beside {names}, which may be 0"
        if names
        else None
    )


def _expand(user: ir.Node, target: ir.Value) -> str | None:
    source = user.inputs[0]
    known = facts.contents(target)
    if source is None or known is None:
        return None
    own = shape_of(source) or ()
    own = (1,) * (len(known) - len(own)) + tuple(own)
    aligned = own[len(own) - len(known) :]
    open_ = [
        str(to)
        for to, dim in zip(known, aligned, strict=True)
        if not isinstance(to, int) and not symbolic.equal(to, dim)
    ]
    return f"needs it: it enlarges its input to {_named(open_)}" if open_ else None


def _for(purpose: str) -> Callable[[ir.Node, ir.Value], str | None]:
    def reason(_user: ir.Node, value: ir.Value) -> str | None:
        names = _named(_symbols(value))
        return f"needs it: {purpose} {names}" if names else None

    return reason


_REASONS: dict[tuple[str, int], Callable[[ir.Node, ir.Value], str | None]] = {
    ("Reshape", 1): _reshape,
    ("Expand", 1): _expand,
    ("Slice", 1): _for("it begins at"),
    ("Slice", 2): _for("it ends at"),
    ("Tile", 1): _for("how often it repeats is"),
    ("Pad", 1): _for("how much it pads is"),
    ("Resize", 3): _for("the new size is"),
    ("Split", 1): _for("the sizes of the parts are"),
    ("Gather", 1): _for("its indices depend on"),
    ("GatherND", 1): _for("its indices depend on"),
    ("GatherElements", 1): _for("its indices depend on"),
    ("TopK", 1): _for("how many it takes is"),
    ("Trilu", 1): _for("its diagonal is"),
    ("Loop", 0): _for("the number of iterations is"),
    ("OneHot", 1): _for("the number of classes is"),
}
