"""Results in Python: as bytes, as protobuf, into streams, and in short."""

from __future__ import annotations

import io
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from ortopt import RewriteRule, optimize
from ortopt.graph.match import inputs
from ortopt.rule import Forwarded
from ortopt.testing import parse

pytestmark = pytest.mark.usefixtures("models_run_here")

MODEL = "main (float[N] x) => (float[N] y) { a = Identity (x) b = Relu (a) y = Abs (b) }"


class WrongRule(RewriteRule[Forwarded]):
    """``Relu(x)`` → ``Neg(x)``, which it is not."""

    roots = ("Relu",)

    def match(self, root: ir.Node) -> Forwarded:
        return Forwarded((root,), inputs(root, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Neg", [found.value])


class UnknownOp(WrongRule):
    """``Relu(x)`` → an op that nothing has a kernel of."""

    produces = (("mine", "Op"),)

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Op", [found.value], domain="mine")


class TooNew(WrongRule):
    """``Relu(x)`` → ``Gelu(x)``, which older opsets have not."""

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Gelu", [found.value])


def test_bytes_protobuf_and_streams_are_the_same_model(tmp_path: Path) -> None:
    result = optimize(parse(MODEL), verify=False)
    stream = io.BytesIO()
    result.save(stream)
    result.save(tmp_path / "m.onnx")
    assert stream.getvalue() == result.to_bytes() == (tmp_path / "m.onnx").read_bytes()
    proto = result.to_proto()
    assert isinstance(proto, onnx.ModelProto)
    assert [node.op_type for node in proto.graph.node] == ["Relu", "Abs"]


def test_a_result_is_short_at_the_prompt() -> None:
    result = optimize(parse(MODEL))
    assert repr(result) == "<OptimizeResult: 3 → 2 nodes, 0 → 0 bytes of constants, verified>"
    unverified = optimize(parse(MODEL), verify=False)
    assert "not verified" in repr(unverified)


def test_a_model_of_the_zoo_by_name() -> None:
    result = optimize("zoo:superres__ts13", level=1)
    assert result.verified
    from ortopt.errors import UsageError

    with pytest.raises(UsageError, match="did you mean superres__ts13"):
        optimize("zoo:superres")


def test_a_rule_of_ones_own_that_is_left_out_is_said() -> None:
    with pytest.warns(RuntimeWarning, match=r"wrong_rule makes the result differ .* it was left out"):
        result = optimize(parse(MODEL), transformers=[WrongRule()])
    assert [repair.rewrite.transformer for repair in result.repairs] == ["wrong_rule"]
    assert "1 repaired" in repr(result)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (UnknownOp, r"unknown_op did nothing at 1 of its matches: .*(no provider has a kernel of|no op of)"),
        (TooNew, r"too_new did nothing at 1 of its matches: opset 17 has no Gelu: --opset 20 has it"),
    ],
)
def test_a_rule_whose_op_is_not_there_is_said(kind: type[WrongRule], reason: str) -> None:
    model = parse('<ir_version: 9, opset_import: ["": 17]> ' + MODEL)
    with pytest.warns(RuntimeWarning, match=reason):
        optimize(model, transformers=[kind()], level=1)


def test_a_rule_that_finds_nothing_is_not_complained_of() -> None:
    optimize(parse("main (float[N] x) => (float[N] y) { y = Abs (x) }"), transformers=[UnknownOp(), WrongRule()])
