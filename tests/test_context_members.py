"""Every public member of a context, used in every kind of transformer: it works, or says why it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import onnx_ir as ir
import pytest

from ortopt import Numerics, OnnxIrPass, OnnxScriptRules
from ortopt.context import Context
from ortopt.framework.workspace import ON_A_CLONE
from ortopt.graph.match import Refusal
from ortopt.rule import Forwarded
from ortopt.runner.batch_runner import Step
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from ortopt.transformer import GraphTransformer
from tests.rules import Swap, applied

MODEL = "main (float[N] x) => (float[N] y) { a = Relu (x) b = Abs (a) y = Neg (b) }"
Use = Callable[[Context, ir.Node], Any]


def attribute_of(node: ir.Node) -> str:
    raise Refusal("it has none", node)


def tanh(node: ir.Node) -> dict[ir.Value, ir.Value]:
    return {node.outputs[0]: ir.node("Tanh", node.inputs).outputs[0]}


USES: dict[str, Use] = {
    "answered": lambda context, node: list(context.answered([node], attribute_of)),
    "attempt": lambda context, node: context.attempt((node,), lambda: None),
    "attempt_all": lambda context, node: context.attempt_all([], list),
    "cancellation": lambda context, node: context.cancellation.check(),
    "edit": lambda context, node: context.edit.version,
    "level": lambda context, node: context.level.value,
    "listens_to_refusals": lambda context, node: context.listens_to_refusals,
    "model": lambda context, node: context.model.graph,
    "offer": lambda context, node: context.offer((node,)),
    "options": lambda context, node: context.options.level,
    "patience": lambda context, node: context.patience > 0,
    "provider_of": lambda context, node: context.provider_of(node),
    "refuse": lambda context, node: context.refuse(node, "it stays"),
    "replace": lambda context, node: context.replace(tanh(node), before=node, origin=(node,)),
    "spend": lambda context, node: context.spend(0.5),
    "step": lambda context, node: context.step + 1,
    "substitute": lambda context, node: context.substitute(tanh(node), before=node, origin=(node,)),
    "transformer": lambda context, node: context.transformer.name,
}
BY_THE_EDITOR = {"attempt", "attempt_all", "edit", "offer", "replace", "substitute"}


class Uses(GraphTransformer):
    """Use a member of the context."""

    apply_once: ClassVar[bool] = True
    offers_rewrites: ClassVar[bool] = True

    def __init__(self, use: Callable[[], None]) -> None:
        super().__init__()
        self.use = use

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        self.use()
        return False


class UsesAndRounds(Uses):
    """Use a member of the context, where rounding may change."""

    numerics = Numerics.REORDERED


class UsesAtOnce(Uses):
    """Use a member of the context; a run is one rewrite."""

    offers_rewrites = False


class UsesOnAClone(Uses):
    """Use a member of the context, on a clone."""

    bypasses_editor = True
    numerics = Numerics.REORDERED


class RuleThatUses(Swap):
    """Use a member of the context, while a node is matched."""

    apply_once = True

    def __init__(self, use: Callable[[], None]) -> None:
        super().__init__()
        self.use = use

    def match(self, root: ir.Node) -> Forwarded:
        self.use()
        raise Refusal("it only looks", root)


class ForeignPass(ir.passes.InPlacePass):
    """Use a member of the context."""

    def __init__(self, use: Callable[[], None]) -> None:
        self.use = use

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        self.use()
        return ir.passes.PassResult(model, False)


def foreign_rule(use: Callable[[], None]) -> GraphTransformer:
    pattern = pytest.importorskip("onnxscript.rewriter.pattern")

    def never(*_: Any, **__: Any) -> bool:
        use()
        return False

    rule = pattern.RewriteRule(lambda op, x: op.Relu(x), lambda op, x: op.Abs(x), never, name="uses")
    return OnnxScriptRules(rule, name="foreign_rule")


KINDS: dict[str, tuple[Callable[[Callable[[], None]], GraphTransformer], bool]] = {
    "rule": (RuleThatUses, False),
    "transformer": (Uses, False),
    "transformer that rounds": (UsesAndRounds, False),
    "transformer that offers nothing": (UsesAtOnce, False),
    "transformer on a clone": (UsesOnAClone, True),
    "pass of onnx-ir": (lambda use: OnnxIrPass(ForeignPass(use), name="foreign_pass"), True),
    "rule of onnxscript": (foreign_rule, True),
}


def test_no_public_member_is_forgotten() -> None:
    seen: set[str] = set()

    class Looks(Uses):
        """Look at the context's names."""

        def apply(self, graph: ir.Graph, context: Context) -> bool:
            seen.update(name for name in (*dir(context), *vars(context)) if not name.startswith("_"))
            return False

    applied(MODEL, Looks(lambda: None))
    assert seen == USES.keys()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("member", USES)
def test_every_member_in_every_kind(member: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts: list[Context] = []
    make, on_clone = KINDS[kind]
    original = Step.context

    def recorded(step: Step, *arguments: Any) -> Context:
        contexts.append(original(step, *arguments))
        return contexts[-1]

    used: list[str] = []

    def use() -> None:
        node = next(node for node in contexts[-1].model.graph if node.op_type in ("Relu", "Tanh"))
        used.append(member)
        USES[member](contexts[-1], node)

    monkeypatch.setattr(Step, "context", recorded)
    transformer = make(use)
    model = parse(MODEL)
    before = to_bytes(model)
    manager, _ = applied(model, transformer, on_error="skip")
    assert used
    if on_clone and member in BY_THE_EDITOR:
        (failure,) = manager.failures
        assert (failure.transformer, failure.corrupted) == (transformer.name, False)
        assert ON_A_CLONE in str(failure)
        assert to_bytes(model) == before
    else:
        assert manager.failures == []
        edits = member in ("replace", "substitute")
        assert (to_bytes(model) != before) is (edits and not on_clone)
