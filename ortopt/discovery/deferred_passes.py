"""Passes that are imported when a node of one of their ops turns up: until then, their declarations are enough.

Of more than 200 passes, a model has the ops of half, and to import them all takes longer than to optimize a small one.
What a pass declares is known without its module as far as the manifest is current (`ortopt.discovery.pass_manifest`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import onnx_ir as ir

from ortopt.context import Context
from ortopt.discovery import pass_files
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import MatchResult, Replacement, RewriteRule
from ortopt.transformer import PASSES_PACKAGE, GraphTransformer

_OF_ALL: Final = (
    *("after", "apply_once", "bypasses_editor", "enabled", "error_bound", "fuses", "keeps_elementwise"),
    *("level_independent", "needs", "offers_rewrites", "produces", "providers", "weighs"),
)
_OF_RULES: Final = ("lookback", "looks_downstream", "opsets", "roots")
_ENUMERATED: Final[Mapping[str, Callable[[Any], Any]]] = {
    "levels": lambda values: tuple(map(TransformerLevel, values)),
    "numerics": Numerics,
    "targets": lambda values: tuple(map(Target, values)),
}
_OF_THE_RULE_ITSELF: Final = frozenset({"match", "name", "numerics_of", "rewrite", "Options"})
_OF_THE_PASS_ITSELF: Final = frozenset({"apply", "name", "Options"})
_FORMULA: Final = "formula"


def declared(kind: type[GraphTransformer]) -> dict[str, Any] | None:
    """What a pass declares, in plain values, by name; what is the default is left out, but for the roots of a rule.

    Args:
        kind: The class of a transformer.

    Returns:
        None if it is no pass of ortopt, or does anything else than passes have to.
    """
    base, names, of_itself = _contract(kind)
    if not _is_deferrable(kind, base, of_itself | {*names, *_ENUMERATED}):
        return None
    transformer: Any = kind()
    values = {name: getattr(transformer, name) for name in names}
    values["levels"] = tuple(level.value for level in transformer.levels)
    values["numerics"] = transformer.numerics.value
    values["targets"] = tuple(target.value for target in transformer.targets)
    changed = {name: value for name, value in values.items() if value != getattr(base, name)}
    return {**changed, _FORMULA: transformer.formula}


def _contract(kind: type[GraphTransformer]) -> tuple[type[GraphTransformer], tuple[str, ...], frozenset[str]]:
    """The class whose contract a pass keeps, what it declares, and what is asked of the pass itself."""
    if issubclass(kind, RewriteRule):
        return RewriteRule, (*_OF_ALL, *_OF_RULES), _OF_THE_RULE_ITSELF
    return GraphTransformer, _OF_ALL, _OF_THE_PASS_ITSELF


def _is_deferrable(kind: type[GraphTransformer], base: type[GraphTransformer], allowed: frozenset[str]) -> bool:
    if not kind.__module__.startswith(f"{PASSES_PACKAGE}."):
        return False
    own = [name for one in kind.__mro__[: kind.__mro__.index(base)] for name in vars(one)]
    return not any(hasattr(base, name) and name not in allowed and name not in _OF_EACH_CLASS for name in own)


_OF_EACH_CLASS: Final = frozenset(
    {"__abstractmethods__", "__annotations__", "__dict__", "__doc__", "__module__", "__orig_bases__", "__parameters__"}
    | {"__weakref__", "_abc_impl", "__firstlineno__", "__static_attributes__", "__qualname__"}
)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _same(value: Any) -> Any:
    return value


class _Options:
    """The options' class, which is asked of the pass itself; of what stands for it, that of a pass without options."""

    def __get__(self, transformer: _Deferred | None, _kind: type) -> type:
        kind: type = GraphTransformer.Options if transformer is None else transformer.own.Options
        return kind


class _Deferred:
    """What stands for a pass until it is imported.

    Args:
        module: Its module below the package of passes.
        name: Its name.
        values: What `declared` has said of it.
    """

    Options = _Options()

    def __init__(self, module: str, name: str, values: Mapping[str, Any]) -> None:
        read = {attribute: _tuples(value) for attribute, value in values.items() if attribute != _FORMULA}
        self.__dict__ |= {attribute: _ENUMERATED.get(attribute, _same)(value) for attribute, value in read.items()}
        self.__dict__ |= {"name": name, "_module": module, "_formula": values[_FORMULA]}

    @property
    def formula(self) -> str:
        """What becomes what."""
        text: str = self.__dict__["_formula"]
        return text

    @property
    def own(self) -> Any:
        """The pass itself, imported now if it has not been.

        Raises:
            RegistrationError: If its file does not load.
        """
        known = self.__dict__
        if "_own" not in known:
            kinds = {kind.name: kind for kind in pass_files.load(known["_module"])}
            made: Any = pass_files.instance(kinds[known["name"]])
            asked = ("match", "rewrite", "numerics_of") if isinstance(made, RewriteRule) else ("apply",)
            known |= {"_own": made, **{name: getattr(made, name) for name in asked}}
        return known["_own"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.own, name)

    def __repr__(self) -> str:
        return repr(self.own)


class DeferredRule(_Deferred, RewriteRule[MatchResult]):
    """A rule that is imported when it is first tried."""

    def match(self, root: ir.Node) -> MatchResult:
        """Import the rule, and let it match."""
        found: MatchResult = self.own.match(root)
        return found

    def rewrite(self, found: MatchResult) -> Replacement:
        """Let the rule rewrite."""
        replacement: Replacement = self.own.rewrite(found)
        return replacement

    def numerics_of(self, found: MatchResult) -> Numerics:
        """What the rule says of a match."""
        numerics: Numerics = self.own.numerics_of(found)
        return numerics


class DeferredTransformer(_Deferred, GraphTransformer):
    """A pass of whole graphs that is imported when it is first applied."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Import the pass, and let it change the graph."""
        changed: bool = self.own.apply(graph, context)
        return changed


def deferred(module: str, name: str, values: Mapping[str, Any]) -> GraphTransformer:
    """What stands for a pass; the arguments are those of a `DeferredRule`."""
    return (DeferredRule if "roots" in values else DeferredTransformer)(module, name, values)


__all__ = ["DeferredRule", "DeferredTransformer", "declared", "deferred"]
