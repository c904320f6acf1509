"""The default report is a screenful, whatever there is to say, and says what became of the model and why."""

from __future__ import annotations

import io
from typing import Any

import onnx_ir as ir
import pytest
from rich.console import Console

from ortopt.api import make_options, optimize
from ortopt.options import Options
from ortopt.reporting import report, short_report
from ortopt.reporting.short_report import MAX_LINES, screen, warnings_above
from ortopt.reporting.tables import Style, broken
from ortopt.testing import parse

MODEL = "main (float[N,4] x) => (float[N,4] y) { i = Identity (x) y = Abs (i) }"
ONES = """main (float[N,64] x) => (float[N,64] y) {
    s = Shape (x) c = ConstantOfShape <value = float[1] {2.0}> (s) y = Mul (x, c) }"""
EINSUM = (
    """main (float[2,3,4] x, float[2,4,5] z) => (float[2,5,3] y) { y = Einsum <equation = "bij,bjk->bki"> (x, z) }"""
)


def data_of(model: ir.Model, **options: Any) -> dict[str, Any]:
    made: Options = make_options(**options)
    return report.as_dict(optimize(model, verify=False, **options), source="m.onnx", options=made)


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return data_of(parse(MODEL))


def rows(data: dict[str, Any], width: int = 80) -> dict[str, str]:
    """The texts by label."""
    found: dict[str, str] = {}
    for label, text, _ in screen(data, width).rows:
        name = label or next(reversed(found))
        found[name] = f"{found[name]} {text}" if name in found else text
    return found


def crowded(data: dict[str, Any]) -> dict[str, Any]:
    """A report in which everything that can be said has to be, at length."""
    name = "/model/layers.31/self_attn/a_rather_long_name_that_must_stay_whole/MatMul_3_output_0"
    runtimes = [{"runtime": f"ONNX Runtime 1.{n}.0", "agrees": n % 2 == 0, "reason": "why " * 9} for n in range(9)]
    by_op = {f"com.microsoft::Op{n}": {"before": 1, "after": n} for n in range(99)}
    growth = "975.3 MB more: another_folding adds 900.0 MB (computed ahead)"
    kinds = ("elimination", "fusion", "folding", "sharing", "merging", "fusion", "unrolling", "fusion")
    passes = [{"pass": f"some_{n}_{kind}", "rewrites": 123, "nodes": n - 5} for n, kind in enumerate(kinds)]
    blocks = {
        family: {"before": {"fused": 0, "spelled_out": 99}, "after": {"fused": 55, "spelled_out": 44}}
        for family in ("attention", "rotary", "normalization")
    }
    outcome = {
        "status": "verified", "worst": 0.0123, "worst_output": name, "outputs": [1], "spread": 12, "random": False,
        "reason": "", "as_deployed": None, "not_as_deployed": "that " * 30, "unrounded": 0.001, "input_sets": 50,
        "elsewhere": runtimes, "quantizers": 9, "not_unrounded": "",
    }  # fmt: skip
    return data | {
        "nodes": {"before": 1000, "after": 12345, "by_op": by_op},
        "file_bytes": {"before": 12_345_678, "after": 987_654_321},
        "larger": ["11345 nodes more: some_pass_unrolling adds 10000 (written out)", growth],
        "blocks": blocks, "passes": passes, "verification": outcome, "verified": True, "stopped": False,
        "verified_on": ["CUDAExecutionProvider", "CPUExecutionProvider"], "verified_with": ["ONNX Runtime 1.31.1"],
        "numerics": [{"pass": f"p{n}_fusion", "numerics": "bounded", "error_bound": "relative " * 9} for n in range(9)],
        "half_precision": {
            "dtype": "float16", "nodes": 9, "float32": [{"op": "Add", "why": "w " * 99, "count": 3}], "casts": 9,
            "not_measured": None, "error": 0.1, "tolerance": 0.2, "kept": [], "error_before": 0.3,
        },
        "tuning": {
            "reason": "", "unmeasured": ["a", "b"], "seconds": 1.0,
            "steps": [{"choice": f"without p{n}", "kept": True, "speeds": [{"median": 1.5}]} for n in range(9)],
            "against_original": [{"median": 2.0}],
            "measured_with": [{"sizes": {"batch": 1, "seq": 128}, "inputs": [], "fallback": "f " * 99}],
            "recipe": {
                "reason": "", "together": [{"low": 1.4, "median": 1.5, "high": 1.6}], "levers": [], "not_tried": [],
                "kept": ["denormals as zero", "huge pages for malloc"], "environment": {}, "python": ["import x"] * 9,
            },
        },
        "requires": {"onnxruntime": "1.23", "original": "1.12", "any_runtime": False, "because": ["opset 23"],
                     "with_nothing": "1.29", "ops": [f"com.microsoft::Op{n}" for n in range(9)]},
        "opset": {"before": 17, "after": 23},
        "runs_on": {"runtime": "ONNX Runtime's web build", "target": "web", "known": "from its sources"},
        "bound_reached": [1, 2, 3], "failures": [{"pass": f"pass_{n}", "reason": "r"} for n in range(9)],
        "repairs": [{}] * 3, "too_large": [{"pass": "a_folding", "count": 3, "bytes": 10**9}] * 9,
        "replaceable_weights": 77, "shape_arithmetic": [{"why": f"it depends on {name} * {n}"} for n in range(9)],
        "costs": data["costs"] | {"declined": [{"op": "com.microsoft::BiasGelu", "verdict": "loses", "count": 12}]},
        "output": {"path": "out.onnx", "data": "out.0123456789abcdef.data", "bytes": 1, "reused": 12_000_000},
    }  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("above", [0, 6])
def test_everything_at_once_is_a_screenful(plain: dict[str, Any], width: int, above: int) -> None:
    shown = screen(crowded(plain), width, above)
    assert len(shown) + above <= MAX_LINES
    lines = [*(label.ljust(10) + text for label, text, _ in shown.rows), *shown.hint]
    assert all(len(line) <= width or len(line.split()[-1]) > width - 12 for line in lines), lines
    assert "more of these" in shown.hint[0]
    labels = [label for label, _, _ in shown.rows if label]
    assert {"nodes", "file", "larger", "verified", "needs", "float16", "written"} <= set(labels)
    if (width, above) == (120, 0):
        assert {"numbers", "tuned", "fused", "fewer", "left"} <= set(labels)


def test_a_console_shows_what_was_composed(plain: dict[str, Any]) -> None:
    out = report.console(io.StringIO())
    screen(plain).show(out)
    assert isinstance(out.file, io.StringIO)
    lines = out.file.getvalue().splitlines()
    assert len(lines) == len(screen(plain)) <= MAX_LINES
    assert lines[0] == "nodes     2 → 1 (50 % fewer)"
    assert lines[-1].startswith("-v: all passes and ops; --html FILE: a page")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("width", range(20, 60))
def test_no_figure_is_broken(width: int) -> None:
    text = "the file has 21.7 MB now: 22.2 MB → 21.7 MB (2 % less), after 3.5 s and 12 ms of 486 → 59 nodes"
    shown = broken(text, width)
    for figure in (["has", "21.7 MB"][1], "22.2 MB → 21.7 MB", "2 %", "3.5 s", "12 ms", "486 → 59"):
        assert any(figure in line for line in shown), (figure, shown)
    assert " ".join(shown) == text


def test_it_says_what_it_does_not_know(plain: dict[str, Any]) -> None:
    shown = rows(plain)
    assert shown["verified"] == "no, that was not asked for"
    assert shown["written"] == "nothing"
    assert shown["left"] == "1 Abs"
    assert "larger" not in shown


def test_what_was_verified_is_told_with_the_place(plain: dict[str, Any]) -> None:
    data = crowded(plain)
    data["verification"] |= {
        "as_deployed": True,
        "not_as_deployed": "",
        "unrounded": None,
        "spread": 0,
        "elsewhere": [],
    }
    shown = rows(data | {"repairs": []}, 120)["verified"]
    assert shown.startswith(
        "on 50 sets of inputs by ONNX Runtime 1.31.1 (CUDA, CPU), with and without its own optimizations;"
    )
    assert "worst error 0.012 of the scale of output '/model/layers.31/" in shown
    data["verified_with"] = ["ONNX Runtime 1.31.1", "OpenVINO 2025.3"]
    assert "its own optimizations, and by OpenVINO 2025.3; worst error" in rows(data, 120)["verified"]
    data["verification"]["elsewhere"] = [{"runtime": "MNN 3.6", "agrees": None, "reason": "it refuses the original"}]
    data["verification"]["worst_output"] = "y"
    data["verified_with"] = ["ONNX Runtime 1.31.1"]
    shown = rows(data | {"repairs": []}, 120)["verified"]
    assert shown.endswith("of output 'y'; not compared on MNN 3.6; it refuses the original")
    data["verification"] |= {"status": "not shown", "reason": "every output is NaN"}
    assert rows(data | {"verified": False})["verified"] == "no: not shown, every output is NaN"


@pytest.mark.parametrize(
    ("requires", "opset", "told"),
    [
        (
            ("1.23", "1.12", True, ["opset 23"], []),
            (17, 23),
            "ONNX Runtime 1.23 or newer, for opset 23, raised from 17",
        ),
        (("1.12", "1.12", True, ["opset 17"], []), (17, 17), "ONNX Runtime 1.12 or newer, for opset 17;"),
        (
            ("1.21", "1.12", False, ["com.microsoft::Attention"], ["com.microsoft::Attention"]),
            (17, 20),
            "ONNX Runtime 1.21 or newer, for com.microsoft::Attention; the original: 1.12; opset 20, raised from 17",
        ),
        ((None, None, False, ["opset 17"], ["mine::Op"]), (17, 17), "a runtime that has mine::Op"),
    ],
)
def test_what_it_needs_is_told_with_the_reason(
    plain: dict[str, Any], requires: tuple[Any, ...], opset: tuple[int, int], told: str
) -> None:
    names = ("onnxruntime", "original", "any_runtime", "because", "ops")
    data = plain | {
        "requires": dict(zip(names, requires, strict=True), with_nothing=None),
        "opset": {"before": opset[0], "after": opset[1]},
    }
    assert rows(data)["needs"].startswith(told)


def test_a_size_that_is_fixed_may_make_a_model_larger_and_the_report_says_so() -> None:
    data = data_of(parse(ONES), dims={"N": 64})
    assert data["larger"] == ["16.4 kB more: constant_folding adds 16.4 kB (computed ahead for sizes that are fixed)"]
    assert rows(data)["larger"] == data["larger"][0]
    assert "constant_folding" not in "".join(data_of(parse(ONES))["larger"])


def test_a_pass_that_adds_nodes_is_named() -> None:
    data = data_of(parse(EINSUM), only=["einsum_decomposition"])
    before, after = (data["nodes"][when] for when in ("before", "after"))
    assert after > before
    (clause,) = (clause for clause in data["larger"] if "nodes" in clause)
    assert (
        clause
        == f"{after - before} nodes more: einsum_decomposition adds {after - before} (written out in simpler ops)"
    )


def test_what_no_pass_has_added_is_told_as_what_it_is(plain: dict[str, Any]) -> None:
    grown = plain | {"nodes": {"before": 1, "after": 4, "by_op": {}}, "passes": [], "half_precision": None}
    assert report.larger(grown) == ["3 nodes more: the conversion of the opset"]
    assert report.larger(grown | {"half_precision": {}}) == ["3 nodes more: the conversion of the opset"]
    assert report.larger(grown | {"half_precision": {"casts": 3}}) == ["3 nodes more: the conversion to 16 bits"]
    file = plain | {"file_bytes": {"before": 2000, "after": 2300}, "passes": []}
    assert report.larger(file) == ["300 B more: names, types and metadata"]
    assert report.larger(plain | {"file_bytes": {"before": 2_000_000, "after": 2_000_010}}) == []


def test_what_passes_added_is_what_has_been_added() -> None:
    text = """main (float[N,4] x) => (float[N,4] y, float[N,4] z) {
        a = Constant <value = float[4] {1, 2, 3, 4}> () b = Constant <value = float[4] {1, 2, 3, 4}> ()
        c = Add (a, b) d = Mul (x, c) i = Identity (d) y = Add (i, a) e = Mul (x, c) z = Abs (e) }"""
    result = optimize(parse(text), verify=False)
    before, after = result.summary.before, result.summary.after
    assert sum(total.growth.nodes for total in result.summary.passes) == after.nodes - before.nodes < 0
    data = report.as_dict(result)
    assert sum(total["nodes"] for total in data["passes"]) == after.nodes - before.nodes
    assert sum(total["bytes"] for total in data["passes"]) == after.nbytes - before.nbytes


def test_warnings_that_have_no_room_are_counted() -> None:
    messages = [f"warning {n}: {'word ' * 20}" for n in range(9)]
    for room in range(2, 18):
        shown = warnings_above(messages, 80, room)
        assert sum(len(broken(line, 80)) for line in shown) <= room
        told = len(shown) - 1
        assert shown[-1] == f"and {9 - told} more {'warnings' if told < 8 else 'warning'}: -v"
        assert shown[1:told] == messages[1:told]
    assert warnings_above(messages[:2], 80, 6) == messages[:2]
    (only,) = warnings_above(["word " * 99], 80, 3)
    assert only.endswith(" … (-v)")
    assert len(broken(only, 80)) == 2


def test_verdicts_have_colours(plain: dict[str, Any]) -> None:
    styles = {label: style for label, _, style in screen(crowded(plain)).rows if label}
    assert (styles["verified"], styles["larger"], styles["needs"]) == (Style.GOOD, Style.WORSE, Style.PLAIN)
    assert {label: style for label, _, style in screen(plain).rows}["verified"] == Style.WORSE
    out = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard", markup=False)
    short_report.screen(crowded(plain)).show(out)
    assert isinstance(out.file, io.StringIO)
    assert "\x1b[35m" in out.file.getvalue()
