"""Rules that are imported when a node of one of their ops turns up: until then, their declarations are enough.

Of more than 200 passes, a model has the ops of half, and to import them all takes longer than to optimize a small one.
What a rule declares is known without its module as far as the manifest is current (`ortopt.discovery.pass_manifest`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import onnx_ir as ir

from ortopt.discovery import pass_files
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import MatchResult, Replacement, RewriteRule
from ortopt.transformer import PASSES_PACKAGE, GraphTransformer

_AS_THEY_ARE: Final = (
    *("after", "apply_once", "bypasses_editor", "enabled", "error_bound", "fuses", "keeps_elementwise"),
    *("level_independent", "lookback", "looks_downstream", "needs", "offers_rewrites", "opsets", "produces"),
    *("providers", "roots", "weighs"),
)
_ENUMERATED: Final[Mapping[str, Callable[[Any], Any]]] = {
    "levels": lambda values: tuple(map(TransformerLevel, values)),
    "numerics": Numerics,
    "targets": lambda values: tuple(map(Target, values)),
}
_OF_THE_RULE_ITSELF: Final = frozenset({"match", "name", "numerics_of", "rewrite", "Options"})
_FORMULA: Final = "formula"


def declared(kind: type[GraphTransformer]) -> dict[str, Any] | None:
    """What a rule declares, in plain values, by name; what is the default is left out.

    Args:
        kind: The class of a transformer.

    Returns:
        None if it is no pass of ortopt, or does anything else than rules have to.
    """
    if not _is_deferrable(kind):
        return None
    rule: Any = kind()
    values = {name: getattr(rule, name) for name in _AS_THEY_ARE}
    values["levels"] = tuple(level.value for level in rule.levels)
    values["numerics"] = rule.numerics.value
    values["targets"] = tuple(target.value for target in rule.targets)
    changed = {name: value for name, value in values.items() if value != getattr(RewriteRule, name)}
    return {**changed, _FORMULA: rule.formula}


def _is_deferrable(kind: type[GraphTransformer]) -> bool:
    if not issubclass(kind, RewriteRule) or not kind.__module__.startswith(f"{PASSES_PACKAGE}."):
        return False
    allowed = _OF_THE_RULE_ITSELF | {*_AS_THEY_ARE, *_ENUMERATED}
    own = [name for base in kind.__mro__[: kind.__mro__.index(RewriteRule)] for name in vars(base)]
    return not any(hasattr(RewriteRule, name) and name not in allowed and name not in _OF_EACH_CLASS for name in own)


_OF_EACH_CLASS: Final = frozenset(
    {"__abstractmethods__", "__annotations__", "__dict__", "__doc__", "__module__", "__orig_bases__", "__parameters__"}
    | {"__weakref__", "_abc_impl", "__firstlineno__", "__static_attributes__", "__qualname__"}
)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _same(value: Any) -> Any:
    return value


class _Later:
    """A declaration that is asked of the rule itself; of the class, that of all rules."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._default = getattr(RewriteRule, name)

    def __get__(self, rule: DeferredRule | None, kind: type) -> Any:
        return self._default if rule is None else getattr(rule.rule, self._name)


class DeferredRule(RewriteRule[MatchResult]):
    """A rule that is imported when it is first tried.

    Args:
        module: Its module below the package of passes.
        name: Its name.
        values: What `declared` has said of it.
    """

    Options = _Later("Options")

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
    def rule(self) -> RewriteRule[Any]:
        """The rule itself, imported now if it has not been.

        Raises:
            RegistrationError: If its file does not load.
        """
        own = self.__dict__
        if "_rule" not in own:
            kinds = {kind.name: kind for kind in pass_files.load(own["_module"])}
            rule: Any = pass_files.instance(kinds[self.name])
            own |= {"_rule": rule, "match": rule.match, "rewrite": rule.rewrite, "numerics_of": rule.numerics_of}
        kept: RewriteRule[Any] = own["_rule"]
        return kept

    def match(self, root: ir.Node) -> MatchResult:
        """Import the rule, and let it match."""
        found: MatchResult = self.rule.match(root)
        return found

    def rewrite(self, found: MatchResult) -> Replacement:
        """Let the rule rewrite."""
        return self.rule.rewrite(found)

    def numerics_of(self, found: MatchResult) -> Numerics:
        """What the rule says of a match."""
        return self.rule.numerics_of(found)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.rule, name)

    def __repr__(self) -> str:
        return repr(self.rule)
