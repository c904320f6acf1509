"""Passes of onnx-ir and rules of onnxscript run as transformers, on a clone that is swapped in on success."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx_ir.passes.common import IdentityEliminationPass

from ortopt import OnnxIrPass, OnnxScriptRules, TransformerError, TransformerLevel, optimize
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from tests.rules import applied, ops

TEXT = """main (float[N] x, bool c) => (float[N] y) {
    a = Identity (x)
    b = Neg (a)
    d = If (c) < then_branch = yes () => (float[N] p) { i = Identity (b) p = Relu (i) },
                 else_branch = no () => (float[N] q) { q = Abs (b) } >
    y = Relu (d)
}"""


def test_an_onnx_ir_pass_runs_as_a_transformer() -> None:
    manager, model = applied(TEXT, OnnxIrPass(IdentityEliminationPass()))
    assert ops(model) == ["Neg", "If", "Relu"]
    assert [entry.transformer for entry in manager.history if entry.modified] == ["identity_elimination_pass"]


def test_an_onnx_ir_pass_joins_a_whole_optimization() -> None:
    result = optimize(parse(TEXT), level=1, transformers=[OnnxIrPass(IdentityEliminationPass(), name="theirs")])
    assert "Identity" not in result.summary.after.ops


def test_a_raw_pass_that_raises_leaves_the_model_as_it_was() -> None:
    class Breaks(ir.passes.InPlacePass):
        """Breaks half-way."""

        def call(self, model: ir.Model) -> ir.passes.PassResult:
            model.graph.remove(model.graph[-1])
            raise RuntimeError("half-way")

    model = parse(TEXT)
    before = to_bytes(model)
    with pytest.raises(TransformerError, match="half-way"):
        applied(model, OnnxIrPass(Breaks()))
    assert to_bytes(model) == before


def test_two_adapters_have_names_and_levels_of_their_own() -> None:
    one = OnnxIrPass(IdentityEliminationPass(), name="one")
    two = OnnxIrPass(IdentityEliminationPass(), name="two", levels=[TransformerLevel.LEVEL2])
    assert (one.name, two.name) == ("one", "two")
    assert (one.levels, two.levels) == ((TransformerLevel.LEVEL1,), (TransformerLevel.LEVEL2,))


def test_onnxscript_rules_run_as_a_transformer() -> None:
    pattern = pytest.importorskip("onnxscript.rewriter.pattern")
    rule = pattern.RewriteRule(lambda op, x: op.Relu(op.Neg(x)), lambda op, x: op.Abs(x), name="silly")
    text = "main (float[N] x) => (float[N] y) { a = Neg (x) y = Relu (a) }"
    manager, model = applied(text, OnnxScriptRules(rule, name="theirs"))
    assert ops(model) == ["Abs"]
    manager.apply_transformers(model, 1)
    assert not manager.is_graph_modified
