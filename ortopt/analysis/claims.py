"""What a file declares of shapes is a claim beside what is proven; what was invented in nested graphs stays there."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.shape_rules.registry import Call, meet
from ortopt.graph import scope
from ortopt.graph.facts import CLAIM, CONTENTS, Dims, says_more, set_better_shape
from ortopt.graph.symbolic import INVENTED, UNKNOWN, Dim, canonical, is_invented, provably_different, symbols
from ortopt.onnx_ir_internals import get_meta


def leave_claims(graph: ir.Graph) -> None:
    """Take nothing for proven in a graph and in those below it: what the file declares stays a claim."""
    for below in scope.below(graph):
        for value in (*below.inputs, *(value for node in below for value in node.outputs)):
            value.meta.pop(CONTENTS, None)
            set_better_shape(value, None)


def keep_claim(value: ir.Value, proven: Dims | None) -> None:
    """Remember what the file declares of an intermediate value beyond what is proven, unless that is proven wrong."""
    claimed, before = dims_of_declared(value), get_meta(value, CLAIM)
    if claimed is None:
        claimed = before
    elif before is not None and len(before) == len(claimed):  # the shape is what an earlier inference has proven
        claimed = tuple(map(meet, claimed, before))
    if claimed is None:
        return
    wrong = proven is not None and (len(claimed) != len(proven) or any(map(provably_different, claimed, proven)))
    if wrong or (proven is not None and not any(map(says_more, claimed, proven))):
        value.meta.pop(CLAIM, None)
    else:
        value.meta[CLAIM] = claimed


def dims_of_declared(value: ir.Value) -> Dims | None:
    """The dimensions that a value's shape states, in canonical form; invented ones count as unknown."""
    shape = value.shape
    return dims_of_constant(value) if shape is None else without_invented(shape.dims)


def dims_of_constant(value: ir.Value) -> Dims | None:
    """The dimensions of a value's constant, or None where it is no constant."""
    return None if value.const_value is None else tuple(value.const_value.shape)  # type: ignore[arg-type]


def without_invented(dims: Iterable[Dim]) -> Dims:
    """The dimensions in canonical form, those with invented symbols as unknown ones."""
    return tuple(dim if isinstance(dim, int) else UNKNOWN if is_invented(dim) else canonical(dim) for dim in dims)


class InnerScopes(Struct, frozen=True):
    """The scopes of some graphs; those entered one after the other are not listed, for calls may be nested deeply."""

    names: set[str]
    numbers: range

    def hold(self, name: str) -> bool:
        """Whether a scope is one of them."""
        return name in self.names or (name.isdecimal() and int(name) in self.numbers)


def hide(call: Call, scopes: InnerScopes) -> None:
    """Let the outputs of a node be as they look from outside the graphs with these scopes."""
    for index, shape in enumerate(call.shapes):
        call.shapes[index] = hidden(shape, scopes)
        call.contents[index] = hidden(call.contents[index], scopes)


def hidden(dims: Iterable[Dim] | None, scopes: InnerScopes) -> Dims | None:
    """The dimensions as they look from outside the graphs with these scopes."""
    if dims is None:
        return None
    return tuple(UNKNOWN if is_invented(dim) and _is_inner(dim, scopes) else dim for dim in dims)


def _is_inner(dim: Dim, scopes: InnerScopes) -> bool:
    for name in symbols(dim):
        if name.startswith(INVENTED) and scopes.hold(name.removeprefix(INVENTED).partition(":")[0]):
            return True
    return False
