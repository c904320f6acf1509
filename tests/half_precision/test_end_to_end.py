"""``optimize(float16=True)``: models of the zoo, a layer that overflows, what verification still finds, the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

from ortopt import UsageError, optimize, zoo
from ortopt.api import OptimizeResult
from ortopt.cli.group import commands
from ortopt.graph import scope
from ortopt.graph.match import need
from ortopt.optimization import half_precision_run
from ortopt.reporting.report import as_dict
from ortopt.rule import Forwarded
from ortopt.serialization.load import load
from ortopt.serialization.save import save
from ortopt.testing import parse
from ortopt.verification import runner
from tests.half_precision.converting import constant
from tests.verification.wrong_passes import WrongTanh

pytestmark = pytest.mark.usefixtures("models_run_here")


def weights(model: ir.Model) -> set[str]:
    """The dtypes of the weights."""
    return {
        value.dtype.name.lower()
        for graph in scope.graphs(model)
        for value in graph.initializers.values()
        if value.dtype is not None and value.dtype.is_floating_point()
    }


def ops(model: ir.Model, dtype: ir.DataType) -> list[str]:
    """The ops that give a dtype."""
    return [node.op_type for graph in scope.graphs(model) for node in graph if node.outputs[0].dtype == dtype]


ZOO = {
    "control_flow__script17": 2,
    "greedy_loop__script17": 2,
    "lstm_tagger__ts13": 3,  # around the LSTM
    "superres__ts13": 2,
    "t5_encoder__ts17": 2,
    "t5_decoder_past__ts13": 11,
    "gpt2_past__ts17": 18,
    "whisper_decoder_past__dyn19raw": 11,
}
"""Models, and how many Casts the conversion may leave: one for each float that comes in or goes out, hardly more."""


@pytest.mark.parametrize("name", ZOO)
def test_models_of_the_zoo_stay_within_the_tolerance_with_few_casts(name: str) -> None:
    result = optimize(zoo.cached(name), float16=True, inputs=zoo.inputs(name))
    assert result.verified
    half = result.half_precision
    assert half is not None
    assert half.error is not None
    assert half.error <= half.tolerance == 1e-2
    assert half.kept == ()
    assert half.casts <= ZOO[name]
    assert "float16" in weights(result.model)


def ops_dtype(node: ir.Node) -> ir.DataType | None:
    """What a node gives."""
    return node.outputs[0].dtype


ROWS = np.eye(8, dtype=np.float32) * 0.5 + 0.125
W = constant("w", ROWS)
WEIGHTS = ", ".join((W, constant("big", ROWS * 3e4), constant("tiny", ROWS * 1e-3)))
OVERFLOWING = f"""main (float[4,8] x) => (float[4,8] y) <{WEIGHTS}> {{
    a = MatMul (x, w) b = Relu (a) c = MatMul (b, w) d = MatMul (c, big) e = MatMul (d, tiny)
    n = Relu (e) y = MatMul (n, w) }}"""


def overflowing() -> ir.Model:
    """A model in which one product is beyond the range, and nothing says so in advance."""
    return parse(OVERFLOWING)


def feeds(scale: float = 1.0) -> dict[str, Any]:
    return {"x": np.linspace(0.5, 1.5, 32, dtype=np.float32).reshape(4, 8) * np.float32(scale)}


def test_a_layer_that_overflows_is_found_and_kept_alone() -> None:
    """What computes it stays in float32, and what reads it; nothing else."""
    result = optimize(overflowing(), float16=True, inputs=feeds(2.0), level=0)
    half = result.half_precision
    assert half is not None
    assert half.error_before == float("inf")
    assert half.error is not None
    assert half.error <= 1e-2
    assert [op for _, op in half.kept] == ["MatMul", "MatMul"]
    single = [node for node in result.model.graph if node.op_type == "MatMul" and ops_dtype(node) == ir.DataType.FLOAT]
    assert [node.inputs[1].name for node in single if node.inputs[1] is not None] == ["big", "tiny"]


def test_masks_are_no_overflow() -> None:
    """Where a layer overflows, attention with a mask of -3.4e38 stays in 16 bits."""
    text = OVERFLOWING.replace("float[4,8] x)", "float[4,8] x, bool[4,8] m)").replace(
        "y = MatMul (n, w) }", "s = Where (m, a, low) p = Softmax (s) q = MatMul (p, w) y = Add (q, n) }"
    )
    model = parse(text.replace(" a = MatMul", " low = Constant <value_float = -3.4028235e38> () a = MatMul"))
    given = {**feeds(2.0), "m": np.arange(32).reshape(4, 8) % 3 > 0}
    half = optimize(model, float16=True, inputs=given, level=0).half_precision
    assert half is not None
    assert half.error is not None
    assert half.error <= 1e-2
    assert [op for _, op in half.kept] == ["MatMul", "MatMul"]


def test_a_large_model_is_measured_with_weights_that_are_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large is moved to nothing: weights lie beside the models, and what is behind runs as rounded copies."""
    plain = optimize(overflowing(), float16=True, inputs=feeds(2.0), level=0)
    monkeypatch.setattr(runner, "_ONE_FILE", -1)
    monkeypatch.setattr(half_precision_run, "_LARGE", -1)
    result = optimize(overflowing(), float16=True, inputs=feeds(2.0), level=0)
    assert result.verified
    assert result.half_precision == plain.half_precision


def test_without_a_verification_nothing_is_measured() -> None:
    half = optimize(overflowing(), float16=True, verify=False).half_precision
    assert half is not None
    assert (half.error, half.kept, half.probes) == (None, (), 0)
    assert half.not_measured


def test_a_tolerance_of_the_caller_is_kept_to() -> None:
    model = overflowing()
    loose = optimize(model, float16=True, float16_tolerance=0.5, inputs=feeds(0.1)).half_precision
    strict = optimize(model, float16=True, float16_tolerance=1e-6, inputs=feeds(0.1)).half_precision
    assert loose is not None
    assert strict is not None
    assert loose.kept == ()
    assert strict.kept
    assert strict.error is not None
    assert strict.error <= 1e-6


@pytest.mark.parametrize("pattern", ["Relu", "::Relu", "first*"])
def test_what_the_caller_names_stays(pattern: str) -> None:
    model = overflowing()
    node = next(node for node in model.graph if node.op_type == "Relu")
    node.name = "first_of_all"
    result = optimize(model, float16=True, inputs=feeds(0.1), keep_float32=[pattern], level=0)
    assert "Relu" in ops(result.model, ir.DataType.FLOAT)
    half = result.half_precision
    assert half is not None
    assert any(why == "it was asked to" for _, why, _ in half.single)


NUMBERS = "float root = {1.41421356}, float one = {1}, float half = {0.5}"
FUSED = f"""main (float[4,8] x) => (float[4,8] y) <{W}, {NUMBERS}> {{
    m = MatMul (x, w)
    d = Div (m, root)
    e = Erf (d)
    a = Add (e, one)
    p = Mul (m, a)
    g = Mul (p, half)
    y = MatMul (g, w)
}}"""
"""An exact Gelu, as exporters write it, between two products."""


def fused() -> ir.Model:
    model = parse(FUSED)
    for node in model.graph:
        node.name = f"/m/layer.{int(node.outputs[0].name == 'y')}/{node.op_type}"
    return model


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("/m/layer.0/Erf", ["Gelu"]),  # the name of a node from which another has been made
        ("Erf", ["Gelu"]),  # its op
        ("com.microsoft::Gelu", ["Gelu"]),  # the result's op
        ("/m/layer.0/Gel*", ["Gelu"]),  # the result's name
        ("/m/layer.0/*", ["Gelu", "MatMul"]),
        ("/m/layer.1/*", ["MatMul"]),
    ],
)
def test_what_is_made_from_what_the_caller_names_stays(pattern: str, kept: list[str]) -> None:
    result = optimize(fused(), float16=True, inputs=feeds(0.1), keep_float32=[pattern], level=2)
    half = result.half_precision
    assert half is not None
    assert sorted(op for op, why, _ in half.single if why == "it was asked to") == kept
    assert half.nodes == 3 - len(kept)


@pytest.mark.parametrize(
    ("pattern", "level", "because"),
    [
        ("Gelu", 0, "no op, no name of a node is so"),
        ("/m/layer.7/*", 2, "no op, no name of a node is so"),
        ("/m/layer.0/Identity", 2, "optimization leaves nothing of what it names"),
    ],
)
def test_what_names_nothing_is_refused(pattern: str, level: int, because: str) -> None:
    model = fused()
    first = model.graph[0]
    copy = ir.node("Identity", [model.graph.inputs[0]], name="/m/layer.0/Identity")
    copy.outputs[0].name = "copied"
    model.graph.insert_before(first, copy)
    first.replace_input_with(0, copy.outputs[0])
    with pytest.raises(UsageError, match=because):
        optimize(model, float16=True, keep_float32=["MatMul", pattern], level=level, verify=False)


def test_inputs_and_outputs_of_16_bits() -> None:
    result = optimize(overflowing(), float16=True, float16_io=True, inputs=feeds(0.1))
    ends = (*result.model.graph.inputs, *result.model.graph.outputs)
    assert {value.dtype for value in ends} == {ir.DataType.FLOAT16}
    assert result.verified


def test_bfloat16_is_verified_where_nothing_computes_it() -> None:
    result = optimize(overflowing(), bfloat16=True, inputs=feeds(2.0))
    assert result.verified
    half = result.half_precision
    assert half is not None
    assert (half.dtype, half.tolerance, half.kept) == ("bfloat16", 5e-2, ())
    assert "bfloat16" in weights(result.model)


class WrongHalfTanh(WrongTanh):
    """Tanh becomes Sin, once it computes in 16 bits."""

    def match(self, root: ir.Node) -> Forwarded:
        need(root.outputs[0].dtype == ir.DataType.FLOAT16, "it computes in float32", root)
        return super().match(root)


@pytest.mark.parametrize("wrong", [WrongTanh(), WrongHalfTanh()], ids=["before", "behind"])
def test_a_wrong_pass_is_left_out_whatever_the_tolerance_is(wrong: WrongTanh) -> None:
    """It is wrong by less than the conversion may be, and more than a rewrite may."""
    model = parse(f"main (float[4,8] x) => (float[4,8] y) <{W}> {{ a = MatMul (x, w) b = Tanh (a) y = MatMul (b, w) }}")
    result = optimize(model, float16=True, float16_tolerance=0.9, inputs=feeds(), transformers=[wrong])
    assert result.verified
    assert [repair.rewrite.transformer for repair in result.repairs] == [wrong.name]
    assert "Tanh" in ops(result.model, ir.DataType.FLOAT16)


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4])
def test_every_level_converts_and_none_groups_by_itself(level: int) -> None:
    result = optimize(overflowing(), float16=True, level=level, inputs=feeds(0.1))
    assert result.verified
    assert result.half_precision is not None
    assert result.half_precision.nodes
    assert bool(result.model.functions) <= (level == 4)


def test_the_result_of_no_conversion_has_no_record() -> None:
    assert optimize(overflowing(), verify=False).half_precision is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"float16": True, "bfloat16": True},
        {"float16_tolerance": 0.1},
        {"float16_io": True},
        {"keep_float32": ["Relu"]},
        {"float16": True, "float16_tolerance": 0},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        optimize(overflowing(), **wrong)


def test_the_argument_is_not_changed() -> None:
    model = overflowing()
    optimize(model, float16=True, verify=False)
    assert ops(model, ir.DataType.FLOAT16) == []
    assert weights(model) == {"float"}


def test_a_random_model_is_converted() -> None:
    model = parse(f"""main (float[4,8] x) => (float[4,8] y) <{W}> {{
        r = RandomUniformLike (x) a = Add (x, r) y = MatMul (a, w) }}""")
    result: OptimizeResult = optimize(model, float16=True)
    assert result.half_precision is not None
    assert result.half_precision.error is not None
    assert 0 <= result.half_precision.error <= 1e-2


def test_the_report_says_what_became_of_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save(overflowing(), path)
    arguments = [
        "optimize",
        "-v",
        "-O0",
        str(path),
        "-o",
        str(tmp_path / "out.onnx"),
        "--float16",
        "--json",
        str(tmp_path / "r.json"),
    ]
    np.savez(tmp_path / "in.npz", **feeds(2.0))
    answer = CliRunner().invoke(commands, [*arguments, "--inputs", str(tmp_path / "in.npz")], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    data = json.loads((tmp_path / "r.json").read_text())["half_precision"]
    assert data["dtype"] == "float16"
    assert data["error_before"] == "inf", data
    assert data["error"] <= data["tolerance"]
    assert {row["op"] for row in data["kept"]} <= {"MatMul", "Mul"}
    assert "float16: " in answer.output
    assert "kept in float32, error inf before" in answer.output
    assert "the speed is a GPU's" in answer.output
    written = load(tmp_path / "out.onnx")
    assert "float16" in weights(written)


def test_the_record_of_a_model_that_cannot_run_says_why() -> None:
    model = parse("main (float[4] x) => (float[4] y) <int64[1] s = {3}> { r = Reshape (x, s) y = Relu (x) }")
    result = optimize(model, float16=True, only=["cast_elimination"])
    data = as_dict(result)["half_precision"]
    assert data["error"] is None
    assert "does not run" in data["not_measured"]
