"""Passes of other frameworks as transformers: onnx-ir's passes, onnxscript's rewrite rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ortopt.context import Context
from ortopt.errors import UsageError
from ortopt.options import Numerics, TransformerLevel
from ortopt.transformer import GraphTransformer, snake_case

if TYPE_CHECKING:
    from onnxscript.rewriter import RewriteRule as OnnxScriptRule
    from onnxscript.rewriter import RewriteRuleSet


class _Adapter(GraphTransformer):
    """Works on a clone of the whole model: what it calls edits onnx-ir directly.

    It offers no single rewrites, so the framework can refuse none: what it rounds differently, it also rounds
    differently between integers and a discrete step.
    """

    bypasses_editor = True
    numerics = Numerics.REORDERED

    def __init__(
        self, name: str, formula: str, levels: Sequence[TransformerLevel], produces: Sequence[tuple[str, str]]
    ) -> None:
        super().__init__()
        # The manager reads declarations from the class: each adapter instance gets one of its own.
        self.__class__ = type(
            type(self).__name__,
            (type(self),),
            {
                "name": name,
                "levels": tuple(map(TransformerLevel, levels)),
                "produces": tuple(produces),
                "__doc__": formula,
                "__module__": type(self).__module__,
            },
        )


class OnnxIrPass(_Adapter):
    """An onnx-ir pass as a transformer.

    Args:
        pass_: An instance, e.g. ``onnx_ir.passes.common.IdentityEliminationPass()``.
        name: The transformer's name; from the pass's class if None.
        levels: When it runs.
        produces: The ops outside ai.onnx that it may bring in, as (domain, op type).
    """

    def __init__(
        self,
        pass_: ir.passes.PassBase,
        *,
        name: str | None = None,
        levels: Sequence[TransformerLevel] = (TransformerLevel.LEVEL1,),
        produces: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._pass = pass_
        kind = type(pass_)
        formula = (kind.__doc__ or "").strip().partition("\n")[0] or f"onnx-ir's {kind.__name__}"
        super().__init__(name or snake_case(kind.__name__), formula, levels, produces)

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Run the pass on the whole model.

        Raises:
            UsageError: If the pass does not work in place.
        """
        if not self._pass.in_place:
            raise UsageError(f"{self.name}: only onnx-ir passes that work in place can be adapted")
        return bool(self._pass(context.model).modified)


class OnnxScriptRules(_Adapter):
    """A rewrite rule, or a set of them, of onnxscript as a transformer.

    Args:
        rules: A rule, a set of rules, or a list of rules.
        name: The transformer's name.
        levels: When it runs.
        produces: The ops outside ai.onnx that they may bring in, as (domain, op type).

    Raises:
        ImportError: If onnxscript is not installed.
    """

    def __init__(
        self,
        rules: OnnxScriptRule | RewriteRuleSet | Sequence[OnnxScriptRule],
        *,
        name: str,
        levels: Sequence[TransformerLevel] = (TransformerLevel.LEVEL1,),
        produces: Sequence[tuple[str, str]] = (),
    ) -> None:
        from onnxscript.rewriter import RewriteRuleSet

        rule_set: Any = rules
        if not isinstance(rule_set, RewriteRuleSet):
            rule_set = RewriteRuleSet(list(rule_set) if isinstance(rule_set, Sequence) else [rule_set])
        self._rules = rule_set
        super().__init__(name, f"onnxscript's rewrite rules {name}", levels, produces)

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Apply the rules to the whole model."""
        return bool(self._rules.apply_to_model(context.model))
