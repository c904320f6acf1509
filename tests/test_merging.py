"""A decoder with and without past as one model: both branches by their numbers, weights once, names, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

import ortopt
from ortopt.cli.group import commands
from ortopt.errors import UsageError, VerificationError
from ortopt.serialization.load import load
from ortopt.serialization.save import save
from ortopt.testing import parse
from ortopt.verification.verify import outputs_of

pytestmark = pytest.mark.usefixtures("models_run_here")

SHARED = ",".join(str((i * 5 % 13 - 6) / 8) for i in range(16))
OTHER = ",".join(str((i * 7 % 11 - 5) / 8) for i in range(16))

FIRST = f"""main (int64[batch,seq] input_ids, float[batch,enc,4] encoder_hidden_states) =>
    (float[batch,seq,4] logits, float[batch,seq,4] present_key, float[batch,enc,4] present_encoder_key)
    <float[4,4] table = {{{SHARED}}}, float[4,4] head = {{{OTHER}}}> {{
    t = Gather (table, input_ids)
    present_key = MatMul (t, head)
    present_encoder_key = MatMul (encoder_hidden_states, table)
    s = ReduceMean <axes = [1]> (present_encoder_key)
    logits = Add (present_key, s)
}}"""

LATER = f"""main (int64[batch,1] input_ids, float[batch,past,4] past_key_values_key,
    float[batch,enc,4] past_key_values_encoder_key) => (float[batch,1,4] logits, float[batch,total,4] present_key)
    <float[4,4] embedding = {{{SHARED}}}, float[4,4] head = {{{OTHER}}}, float[1] table = {{2}}> {{
    t = Gather (embedding, input_ids)
    k = MatMul (t, head)
    present_key = Concat <axis = 1> (past_key_values_key, k)
    s = ReduceMean <axes = [1]> (past_key_values_encoder_key)
    p = ReduceMax <axes = [1]> (present_key)
    a = Add (k, s)
    b = Add (a, p)
    logits = Mul (b, table)
}}"""

RNG = np.random.default_rng(5)
PAST = {
    "past_key_values_key": RNG.normal(size=(2, 3, 4)).astype(np.float32),
    "past_key_values_encoder_key": RNG.normal(size=(2, 6, 4)).astype(np.float32),
}
STATES = {"encoder_hidden_states": RNG.normal(size=(2, 6, 4)).astype(np.float32)}


def check(model: Any) -> None:
    """Both branches give what the originals give."""
    ids = {"input_ids": np.array([[1, 2, 3], [0, 1, 2]], np.int64)}
    got = outputs_of(model, {**ids, **STATES, **PAST, "use_cache_branch": np.array([False])})
    for name, expected in outputs_of(parse(FIRST), ids | STATES).items():
        np.testing.assert_allclose(got[name], expected, rtol=1e-5)
    ids = {"input_ids": np.array([[1], [3]], np.int64)}
    got = outputs_of(model, {**ids, **STATES, **PAST, "use_cache_branch": np.array([True])})
    for name, expected in outputs_of(parse(LATER), ids | PAST).items():
        np.testing.assert_allclose(got[name], expected, rtol=1e-5)
    np.testing.assert_array_equal(got["present_encoder_key"], PAST["past_key_values_encoder_key"])


def test_both_branches_give_what_the_originals_give() -> None:
    merged = ortopt.merge_decoders(parse(FIRST), parse(LATER))
    assert (merged.verified, merged.reason) == (True, "")
    graph = merged.model.graph
    inputs = ["input_ids", "encoder_hidden_states", "past_key_values_key", "past_key_values_encoder_key"]
    assert [value.name for value in graph.inputs] == [*inputs, "use_cache_branch"]
    assert [value.name for value in graph.outputs] == ["logits", "present_key", "present_encoder_key"]
    check(merged.model)


def test_weights_are_there_once() -> None:
    merged = ortopt.merge_decoders(parse(FIRST), parse(LATER), verify=False)
    assert not merged.verified
    arrays = [value.const_value.numpy() for value in merged.model.graph.initializers.values() if value.const_value]
    assert (merged.weights, sorted(array.size for array in arrays)) == (5, [1, 16, 16])
    (node,) = merged.model.graph
    assert all(not node.attributes[name].as_graph().initializers for name in ("then_branch", "else_branch"))


def test_sizes_that_differ_have_no_name() -> None:
    graph = ortopt.merge_decoders(parse(FIRST), parse(LATER), verify=False).model.graph
    ids, logits = graph.inputs[0], graph.outputs[0]
    assert [dim if isinstance(dim, int) else dim.value for dim in ids.shape or ()] == ["batch", None]
    assert [dim if isinstance(dim, int) else dim.value for dim in logits.shape or ()] == ["batch", None, 4]


def test_the_result_can_be_optimized() -> None:
    merged = ortopt.merge_decoders(parse(FIRST), parse(LATER))
    result = ortopt.optimize(merged.model)
    assert result.verified
    check(result.model)


def test_the_command_line(tmp_path: Path) -> None:
    save(parse(FIRST), tmp_path / "decoder_model.onnx")
    save(parse(LATER), tmp_path / "decoder_with_past_model.onnx")
    names = [str(tmp_path / name) for name in ("decoder_model.onnx", "decoder_with_past_model.onnx")]
    out = str(tmp_path / "decoder_model_merged.onnx")
    done = CliRunner().invoke(commands, ["merge-decoders", *names, "-o", out])
    assert done.exit_code == 0, done.output
    assert "5 → 3 weights" in done.output
    assert "verified in both branches" in done.output
    check(load(out))
    done = CliRunner().invoke(commands, ["merge-decoders", *names, "-o", out, "--no-verify", "--json"])
    data = json.loads(done.output)
    assert (data["verified"], data["initializers"]) == (False, {"models": 5, "merged": 3})
    done = CliRunner().invoke(commands, ["merge-decoders", *reversed(names), "-o", out])
    assert done.exit_code == 1


def test_a_branch_that_differs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortopt import merging

    whole = merging._Merge.__init__

    def wrong(self: Any, first: ir.Model, later: ir.Model) -> None:
        next(node for node in later.graph if node.op_type == "Mul").op_type = "Sub"
        whole(self, first, later)

    monkeypatch.setattr(merging._Merge, "__init__", wrong)
    with pytest.raises(VerificationError, match="with past, the merged decoder differs: 'logits'"):
        ortopt.merge_decoders(parse(FIRST), parse(LATER))


REFUSALS = {
    "in the other order": (LATER, FIRST, "only the decoder with past gives 'present_encoder_key'"),
    "no past": (FIRST, FIRST, "the second decoder takes no past"),
    "another type": (
        FIRST,
        LATER.replace("int64[batch,1]", "int32[batch,1]"),
        "is INT64 in one decoder and",
    ),
    "merged already": (
        FIRST.replace("int64[batch,seq] input_ids", "int64[batch,seq] input_ids, bool[1] use_cache_branch"),
        LATER,
        "it is merged already",
    ),
    "no past of an output": (
        FIRST,
        LATER.replace("past_key_values_encoder_key", "encoder_key"),
        "the other takes no 'past_key_values_encoder_key'",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused(case: str) -> None:
    first, later, message = REFUSALS[case]
    with pytest.raises(UsageError) as refused:
        ortopt.merge_decoders(parse(first), parse(later))
    assert message in str(refused.value)


def test_opsets_must_be_the_same() -> None:
    with pytest.raises(UsageError, match="the decoders have opsets 17 and 16: convert one with --opset"):
        ortopt.merge_decoders(parse(FIRST), parse(LATER, opset=16))
