"""Symbols that inference invented in nested graphs and functions: unknown dimensions to whoever stands outside."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ortopt.analysis.shape_rules.registry import Call
from ortopt.graph.facts import Dims
from ortopt.graph.symbolic import INVENTED, UNKNOWN, Dim, is_invented, symbols


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
