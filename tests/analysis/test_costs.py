"""What forms cost: a table of verdicts, and questions to it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ortopt import optimize
from ortopt.analysis import costs, kernels
from ortopt.analysis.costs import Circumstances, Cost, CostTable, Form, Verdict
from ortopt.analysis.kernels import CPU, CUDA
from ortopt.testing import parse

M = "com.microsoft"
FAST, SLOW, OTHER = Form("", "Fast"), Form("", "Slow"), Form("", "Other")
FILE = Path(costs.__file__).with_name("data") / "costs.json"


def row(form: Form, speed: tuple[float, float] | None, verdict: Verdict | None = None, **at: tuple[int, float]) -> Cost:
    known = verdict or (Verdict.UNKNOWN if speed is None else costs.verdict_of(speed))
    return Cost(form, CPU, known, speed, "nodes", "", at, "made up")


def table(*rows: Cost) -> CostTable:
    return CostTable("test", "0", rows)


@pytest.mark.parametrize("cost", costs.shipped().costs, ids=lambda cost: f"{cost.form}-{cost.provider}-{cost.sizes}")
def test_rows_that_ship(cost: Cost) -> None:
    form = cost.form
    own = cost.speeds.get("AVX-512")
    neutral_at_home = own is not None and cost.verdict is costs.verdict_of(own) is Verdict.NEUTRAL
    assert cost.speed is None or cost.verdict is costs.verdict_of(cost.speed) or neutral_at_home
    assert cost.provider in (CPU, CUDA)
    assert cost.instead_of
    assert all(low >= 0 for low, _ in cost.at.values())
    assert cost.source
    assert kernels.schema(form.domain, form.op_type, 1000) is not None, "there is no such op"
    if cost.provider == CUDA:
        assert "not measured" in cost.source
        assert cost.speed is None


def measured_on(kernels: str, *rows: Cost) -> CostTable:
    return CostTable(kernels, kernels, rows, Circumstances("1.31.1", "a processor", 1, kernels))


@pytest.mark.parametrize(
    ("own", "other", "verdict", "speed"),
    [
        ((1.2, 3.0), (0.8, 1.1), Verdict.LOSES, (0.8, 3.0)),  # what loses on one of them loses
        ((0.8, 1.1), (1.2, 3.0), Verdict.LOSES, (0.8, 3.0)),
        ((1.2, 3.0), (0.98, 1.01), Verdict.PAYS, (0.98, 3.0)),  # it wins or is neutral on each
        ((0.98, 1.0), (1.1, 1.2), Verdict.NEUTRAL, (0.98, 1.2)),  # what pays elsewhere only is no reason
        ((0.98, 1.0), (1.0, 1.02), Verdict.NEUTRAL, (0.98, 1.02)),
    ],
)
def test_a_form_must_not_lose_on_any_processor(
    own: tuple[float, float], other: tuple[float, float], verdict: Verdict, speed: tuple[float, float]
) -> None:
    both = costs.on_all_processors(measured_on("wide", row(FAST, own)), [measured_on("narrow", row(FAST, other))])
    found = both.find(FAST, CPU)
    assert found is not None
    assert (found.verdict, found.speed) == (verdict, speed)
    assert found.speeds == {"wide": own, "narrow": other}


def test_of_rows_that_another_processor_does_not_know_the_own_one_counts() -> None:
    few, many = row(FAST, (1.2, 1.3), rows=(0, 1)), row(FAST, (1.2, 1.3), rows=(2, math.inf))
    slow = row(FAST, (0.5, 0.6), rows=(0, 1))
    own = measured_on("wide", few, many, row(SLOW, None))
    both = costs.on_all_processors(own, [measured_on("narrow", slow, row(SLOW, (2.0, 2.0)), row(OTHER, (2.0, 2.0)))])
    assert [cost.verdict for cost in both.costs] == [Verdict.LOSES, Verdict.PAYS, Verdict.UNKNOWN]
    assert both.costs[1] is many
    assert both.digest != own.digest
    assert costs.on_all_processors(own, []).digest == own.digest


def test_columns_that_ship_are_about_rows_of_the_table() -> None:
    table = costs.shipped()
    known = {cost.key for cost in table.costs}
    assert [column.measured.kernels for column in table.columns] == ["AVX2", "several threads"]
    for column in table.columns:
        assert column.measured.onnxruntime == table.measured.onnxruntime
        assert {cost.key for cost in column.costs} <= known
        told = [(cost.verdict, costs.verdict_of(cost.speed)) for cost in column.costs if cost.speed is not None]
        assert len(told) == len(column.costs)
        # with several threads a form has to be slower by more
        several = column.measured.threads > 1
        assert all(one is other or (several and one is not Verdict.LOSES) for one, other in told)


def test_no_two_rows_are_about_the_same() -> None:
    keys = [cost.key for cost in costs.shipped().costs]
    assert len(keys) == len(set(keys))


def test_each_row_is_a_line_of_the_file() -> None:
    rows = [json.loads(line.strip().rstrip(",")) for line in FILE.read_text().splitlines() if '"op"' in line]
    assert len(rows) == len(costs.shipped().costs)


def test_a_variant_without_a_row_costs_what_the_usual_form_does() -> None:
    known = table(row(FAST, (1.5, 2.0)), row(FAST._replace(variant="odd"), (0.5, 0.6)))
    assert known.find(FAST._replace(variant="odd"), CPU) is known.costs[1]
    assert known.find(FAST._replace(variant="even"), CPU) is known.costs[0]
    assert known.find(FAST, CUDA) is None
    assert known.find(OTHER, CPU) is None


def test_a_form_must_not_lose_at_any_size() -> None:
    few, many = row(FAST, (1.2, 1.3), rows=(0, 1)), row(FAST, (0.8, 0.9), rows=(14, 100))
    known = table(few, many)
    assert known.find(FAST, CPU, [{"rows": 1}]) is few
    assert known.find(FAST, CPU, [{"rows": 14}]) is many
    assert known.find(FAST, CPU) is many
    assert known.find(FAST, CPU, [{"columns": 3}]) is many
    unmeasured = known.find(FAST, CPU, [{"rows": 5}])
    assert unmeasured is not None
    assert (unmeasured.verdict, unmeasured.speed) == (Verdict.LOSES, None)  # other sizes say nothing about its speed
    assert known.find(FAST, CPU, [{"rows": 1}, {"rows": 100}]) is many
    assert known.find(FAST, CPU, [{"rows": (0, 1)}]) is few
    assert known.find(FAST, CPU, [{"rows": (1, 512)}]) is many  # what is expected in a range may be anywhere in it


def test_what_loses_at_other_sizes_is_no_choice() -> None:
    losing = row(SLOW, (0.5, 0.6), rows=(1, 4))
    known = table(row(FAST, (2.0, 2.0)), losing)
    assert known.fastest([SLOW, FAST], CPU, [{"rows": 9}]) == FAST
    assert table(losing).fastest([SLOW], CPU, [{"rows": 9}]) is None


def test_where_only_other_sizes_were_measured_nothing_is_known() -> None:
    known = table(row(FAST, (1.2, 1.3), channels=(16, math.inf)))
    pays, unknown = (known.find(FAST, CPU, [{"channels": count}]) for count in (64, 4))
    assert pays is known.costs[0]
    assert unknown is not None
    assert (unknown.verdict, unknown.speed) == (Verdict.UNKNOWN, None)


@pytest.mark.parametrize(
    ("speed", "verdict"),
    [
        ((1.2, 3.0), Verdict.PAYS),
        ((1.0, 1.3), Verdict.PAYS),
        ((0.97, 1.03), Verdict.NEUTRAL),
        ((0.7, 1.1), Verdict.LOSES),
        ((0.4, 0.5), Verdict.LOSES),
    ],
)
def test_verdicts(speed: tuple[float, float], verdict: Verdict) -> None:
    assert costs.verdict_of(speed) is verdict


@pytest.mark.parametrize(
    ("fast", "slow", "expected"),
    [
        ((2.0, 3.0), (1.0, 1.5), FAST),
        ((1.5, 1.5), (1.5, 2.0), SLOW),
        ((1.02, 1.02), (1.0, 1.0), SLOW),  # not clearly
        ((2.0, 1.1), (1.0, 1.5), None),  # it depends
        (None, (1.0, 1.5), None),
    ],
)
def test_the_fastest(fast: tuple[float, float] | None, slow: tuple[float, float] | None, expected: Form | None) -> None:
    assert table(row(FAST, fast), row(SLOW, slow)).fastest([SLOW, FAST], CPU) == expected


def test_the_fastest_at_several_sizes() -> None:
    simple = row(SLOW, (1.0, 1.0))
    few, many = row(FAST, (1.2, 1.2), rows=(0, 1)), row(FAST, (0.9, 0.9), rows=(2, math.inf))
    for places, expected in (([{"rows": 1}], FAST), ([{"rows": 7}], SLOW), ([{"rows": 1}, {"rows": 7}], None)):
        assert table(simple, few, many).fastest([SLOW, FAST], CPU, places) == expected


def test_ops_that_can_only_lose() -> None:
    loses = [row(FAST, (0.5, 0.6)), row(FAST._replace(variant="odd"), (0.7, 0.8))]
    assert table(*loses).loser([("", "Fast")], CPU) is loses[0]
    assert table(*loses).loser([("", "Fast")], CUDA) is None
    assert table(*loses).loser([("", "Fast"), ("", "Other")], CPU) is None
    assert table(*loses, row(FAST, (1.5, 1.6), rows=(0, 1))).loser([("", "Fast")], CPU) is None
    assert table(*loses).loser([], CPU) is None


def test_the_fastest_of_forms_without_a_row_is_not_known() -> None:
    assert table(row(FAST, (2.0, 2.0))).fastest([FAST, OTHER], CPU) is None
    assert table().fastest([], CPU) is None


@pytest.mark.parametrize(
    ("statement", "form"),
    [
        ("y = com.microsoft.BiasGelu (x, b)", Form(M, "BiasGelu")),
        ("y = com.microsoft.FastGelu (x)", Form(M, "FastGelu")),
        ("y = com.microsoft.FastGelu (x, b)", Form(M, "FastGelu", "with bias")),
        ("y = com.microsoft.FusedMatMul <alpha = 2.0, transB = 1> (x, x)", Form(M, "FusedMatMul")),
        ("y = com.microsoft.FusedMatMul <transBatchA = 1> (x, x)", Form(M, "FusedMatMul", "transBatch")),
        ("y = com.microsoft.FusedMatMul <transBatchA = 0> (x, x)", Form(M, "FusedMatMul")),
        ("y = com.microsoft.MultiHeadAttention <num_heads = 1> (x, x, x)", Form(M, "MultiHeadAttention")),
        (
            "y = com.microsoft.MultiHeadAttention <num_heads = 1> (x, x, x, b)",
            Form(M, "MultiHeadAttention", "with bias"),
        ),
        ("y = Attention <q_num_heads = 1, kv_num_heads = 1> (x, x, x)", Form("", "Attention")),
        ("y = Attention (x, x, x)", Form("", "Attention", "with heads first")),
    ],
)
def test_forms_of_nodes(statement: str, form: Form) -> None:
    model = parse(f"main (float[2,8,8] x, float[24] b) => (float[a,b,c] y) {{ {statement} }}", 23)
    assert costs.form_of(model.graph[0]) == form


@pytest.mark.parametrize(
    ("keys", "variant"),
    [
        ("e = Expand (k, w) r = Reshape (e, s)", "with repeated heads"),
        ("e = Tile (k, t) r = Reshape (e, s)", "with repeated heads"),
        ("r = Reshape (k, s)", ""),
    ],
)
def test_attention_of_heads_that_are_repeated_is_a_form_of_its_own(keys: str, variant: str) -> None:
    text = f"""main (float[2,3,16] q, float[2,2,1,3,4] k, float[2,4,3,4] v) => (float[2,3,16] y)
        <int64[5] w = {{2, 2, 2, 3, 4}}, int64[5] t = {{1, 1, 2, 1, 1}}, int64[4] s = {{2, -1, 3, 4}}> {{
        {keys} y = com.microsoft.MultiHeadAttention <num_heads = 4> (q, r, v) }}"""
    node = next(node for node in parse(text).graph if node.op_type == "MultiHeadAttention")
    assert costs.form_of(node).variant == variant


@pytest.mark.parametrize(("length", "fused"), [(4, True), (64, False)])
def test_capped_scores_are_fused_where_the_kernel_is_faster(length: int, fused: bool) -> None:
    text = f"""main (float[1,{length},2,4] x) => (float[1,{length},2,4] y) <float half = {{0.5}}, float cap = {{50}}> {{
        q = Transpose <perm = [0, 2, 1, 3]> (x) k = Transpose <perm = [0, 2, 3, 1]> (x)
        s = MatMul (q, k) d = Mul (s, half) e = Div (d, cap) t = Tanh (e) c = Mul (t, cap)
        p = Softmax <axis = -1> (c) h = MatMul (p, q) y = Transpose <perm = [0, 2, 1, 3]> (h) }}"""
    ops = optimize(parse(text, 23), verify=False).summary.after.ops
    assert ("Attention" in ops, "Softmax" in ops) == (fused, not fused)
