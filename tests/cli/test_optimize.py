"""Every option of `ortopt optimize` has its effect."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortopt import optimize
from ortopt.errors import UsageError
from ortopt.optimization.run import Optimization
from ortopt.serialization.save import save
from ortopt.testing import parse

Report = Callable[..., dict[str, Any]]


def after(data: dict[str, Any]) -> dict[str, int]:
    return {op: count["after"] for op, count in data["nodes"]["by_op"].items() if count["after"]}


def ran(data: dict[str, Any]) -> list[str]:
    return sorted(one["pass"] for one in data["passes"] if one["rewrites"])


def ops(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_by_default_the_result_is_verified_and_stands_beside_the_input(ortopt: Any, model: Path) -> None:
    done = ortopt("optimize", model)
    assert sorted(ops(model.with_name("m.opt.onnx"))) == ["Gemm", "Relu"]
    assert re.search(r"^verified  on \d sets? of inputs by ONNX Runtime ", done.stdout, re.MULTILINE)
    assert "no difference" in done.stdout
    assert "m.opt.onnx" in done.stdout
    assert done.stderr == ""
    assert sorted(path.name for path in model.parent.iterdir()) == ["m.onnx", "m.opt.onnx"]


def test_the_result_may_take_the_place_of_the_input(ortopt: Any, model: Path) -> None:
    ortopt("optimize", model, "-o", model, "--no-verify")
    assert sorted(ops(model)) == ["Gemm", "Relu"]


def test_the_folder_of_the_result_is_made(ortopt: Any, model: Path) -> None:
    ortopt("optimize", model, "-o", "new/folder/out.onnx")
    assert sorted(ops(Path("new/folder/out.onnx"))) == ["Gemm", "Relu"]


def test_the_report_as_data(report: Report, model: Path) -> None:
    data = report(verify=True)
    assert data["schema"] == 1
    assert data["input"] == str(model)
    assert data["output"] == {
        "path": str(model.with_name("m.opt.onnx")),
        "bytes": data["file_bytes"]["after"],
        "reused": 0,
        "data": None,
    }
    assert data["nodes"]["before"] == 5
    assert data["nodes"]["after"] == 2
    assert data["nodes"]["by_op"]["Identity"] == {"before": 2, "after": 0}
    assert data["initializers"] == {"before": 2, "after": 2}
    assert data["constant_bytes"] == {"before": 144, "after": 144}
    assert data["file_bytes"]["before"] == model.stat().st_size
    assert data["options"]["level"] == 3
    assert data["options"]["providers"] == ["CPUExecutionProvider"]
    assert data["options"]["target"] == "ort"
    rewrites = {one["pass"]: one["rewrites"] for one in data["passes"]}
    assert rewrites["identity_elimination"] >= 1
    assert rewrites["matmul_add_fusion"] == 1
    assert all(one["seconds"] >= 0 for one in data["passes"])
    assert data["fixed_point"] is True
    assert data["stopped"] is False
    assert data["verified"] is True
    assert data["verification"]["status"] == "verified"
    assert data["verification"]["worst"] < 1e-5
    assert set(data["seconds"]) == {"load", "optimize", "verify", "save"}
    assert data["failures"] == data["too_large"] == data["bound_reached"] == []
    assert data["error"] is None


@pytest.mark.parametrize("spelling", [["-O0"], ["-O", "0"]])
def test_level_0_changes_nothing(report: Report, spelling: list[str]) -> None:
    data = report(*spelling)
    assert data["nodes"]["after"] == 5
    assert data["passes"] == []


def test_level_0_reports_shape_arithmetic_too(ortopt: Any, tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        main (float[N] x, bool c) => (int64[1] y) {
        y = If (c) <then_branch = t () => (int64[1] u) { u = Shape (x) },
                    else_branch = e () => (int64[1] v) { w = Shape (x) v = Neg (w) }> }""")
    onnx.save(model, tmp_path / "sizes.onnx")
    ortopt("optimize", tmp_path / "sizes.onnx", "-O0", "--json", tmp_path / "sizes.json")
    data = json.loads((tmp_path / "sizes.json").read_text(encoding="utf-8"))
    rows = [(row["op"], row["graph"]) for row in data["shape_arithmetic"]]
    assert rows == [
        ("Shape", "main/If:then_branch"),
        ("Shape", "main/If:else_branch"),
        ("Neg", "main/If:else_branch"),
    ]


def test_levels_above_the_chosen_one_do_not_run(report: Report, ortopt: Any, model: Path) -> None:
    assert "com.microsoft::QuickGelu" in after(report("-O2", "--enable", "contrib"))


def test_target_onnx_keeps_to_the_official_ops(report: Report) -> None:
    assert "Relu" in after(report("--enable", "contrib", "--target", "onnx"))


@pytest.mark.parametrize("spelling", [["--provider", "cuda", "--provider", "cpu"], ["--provider", "CUDA,cpu"]])
def test_providers_in_order(report: Report, spelling: list[str]) -> None:
    assert report(*spelling)["options"]["providers"] == ["CUDAExecutionProvider", "CPUExecutionProvider"]


def test_native(report: Report) -> None:
    assert report("--march", "native")["options"]["march"] == "native"


def test_opset(report: Report, model: Path) -> None:
    report("--opset", "19")
    made = onnx.load(model.with_name("m.opt.onnx"))
    assert {imported.domain: imported.version for imported in made.opset_import}[""] == 19


def test_dim_fixes_a_dimension(report: Report, model: Path) -> None:
    report("--dim", "N=3", verify=True)
    shape = onnx.load(model.with_name("m.opt.onnx")).graph.input[0].type.tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] == [3, 8]


@pytest.mark.parametrize(
    "names",
    ["identity_elimination", "IdentityElimination", "identity_elimination@1", "cast_elimination,identity_elimination"],
)
def test_disable(report: Report, names: str) -> None:
    data = report("--disable", names)
    assert after(data)["Identity"] >= 1
    assert "identity_elimination" not in ran(data)
    assert "matmul_add_fusion" in ran(data)


def test_disable_at_one_level_leaves_the_others(report: Report) -> None:
    assert ran(report("--only", "contrib", "--disable", "contrib@2")) == ["contrib"]
    assert ran(report("--only", "contrib", "--disable", "contrib@2,contrib@3")) == []


def test_approximate_passes_run_only_if_enabled(report: Report) -> None:
    assert "HardSwish" not in after(report())
    assert "HardSwish" in after(report("--enable", "approximation"))


def test_only(report: Report) -> None:
    assert ran(report("--only", "matmul_add_fusion")) == ["matmul_add_fusion"]


def test_a_pipeline_spelled_out(report: Report) -> None:
    assert ran(report("--passes", "identity_elimination{}, PingPong", "--limit", "3")) == [
        "identity_elimination",
        "ping_pong",
    ]


def test_limit(report: Report) -> None:
    assert report("--limit", "0")["nodes"]["after"] == 5
    assert after(report("--limit", "1"))["Identity"] == 1


@pytest.mark.parametrize(("growth", "grows"), [("0", False), ("1MB", False), ("3MB", True), ("unlimited", True)])
def test_max_growth(report: Report, ortopt: Any, model: Path, growth: str, grows: bool) -> None:
    data = report("--only", "inflation", "--max-growth", growth, "--limit", "1")
    assert ("Slice" in after(data)) is grows
    refused = [] if grows else [{"pass": "inflation", "count": 1, "bytes": 2_000_016}]
    assert data["too_large"] == refused


def test_what_was_refused_for_size_is_reported(ortopt: Any, model: Path) -> None:
    done = ortopt("optimize", model, "--only", "inflation", "--no-verify")
    assert "1 of inflation: 2.0 MB more (--max-growth)" in done.stdout
    done = ortopt("optimize", model, "--only", "inflation", "--no-verify", "-v")
    assert "1 candidates of inflation would have added 2.0 MB" in done.stdout


def test_steps_bound_the_loop_and_the_report_says_so(report: Report, ortopt: Any, model: Path) -> None:
    data = report("--only", "alternate", "--steps", "3")
    assert "Neg" in after(data)
    assert data["bound_reached"] == [1]
    assert data["fixed_point"] is False
    done = ortopt("optimize", model, "--only", "alternate", "--steps", "2", "--no-verify")
    assert "left      level 1 ended at the bound of steps (see --steps)" in done.stdout
    done = ortopt("optimize", model, "--only", "alternate", "--steps", "2", "--no-verify", "-v")
    assert "not reached, level 1 ended at the bound" in done.stdout


def test_a_timeout_writes_the_best_so_far(ortopt: Any, report: Report, model: Path) -> None:
    data = report("--only", "ping_pong", "--timeout", "0.3")
    assert data["stopped"] is True
    assert data["fixed_point"] is False
    assert model.with_name("m.opt.onnx").is_file()
    done = ortopt("optimize", model, "--only", "ping_pong", "--timeout", "0.3", "--no-verify")
    assert "stopped by the time limit" in done.stderr


def test_a_pass_that_loops_for_ever_is_stopped_and_costs_only_itself(ortopt: Any, model: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    only = "identity_elimination,endless"
    passes = ["--passes", only, "--timeout", "1", "--json", tmp_path / "r.json"]
    done = ortopt("optimize", model, *passes)
    assert time.monotonic() - started < 20
    data = json.loads((tmp_path / "r.json").read_text())
    assert (data["stopped"], data["verified"], data["fixed_point"]) == (True, True, False)
    assert after(data) == {"Add": 1, "MatMul": 1, "Relu": 1}
    assert sorted(ops(model.with_name("m.opt.onnx"))) == ["Add", "MatMul", "Relu"]
    assert "stopped by the time limit" in done.stderr


def test_check_each_names_who_breaks_the_model(ortopt: Any, report: Report, model: Path) -> None:
    data = report("--enable", "renames", "--check-each", verify=True)
    assert data["options"]["check_each"] is True
    assert [(one["pass"], one["graph"]) for one in data["failures"]] == [("renames", "main")]
    assert "has become output 'renamed'" in data["failures"][0]["reason"]
    assert data["verified"] is True
    assert data["nodes"]["after"] == 2
    done = ortopt("optimize", model, "--enable", "renames", "--check-each", "--strict", "-o", "s.onnx", code=4)
    assert "renames failed at level 1" in done.stderr
    assert not model.with_name("s.onnx").exists()


def test_keep_pass_leaves_out_the_rewrite_only(report: Report, model: Path) -> None:
    text = "main (float[N,8] x) => (float[N,8] y, float[N,8] z) { s = Abs (x) n = Neg (s) y = Abs (n) z = Abs (x) }"
    save(parse(text), model)
    whole = report("--only", "wrong_once", verify=True)
    assert [(one["pass"], one["left_out"]) for one in whole["repairs"]] == [("wrong_once", "pass")]
    assert after(whole) == {"Abs": 3, "Neg": 1}
    kept = report("--only", "wrong_once", "--keep-pass", verify=True)
    assert {one["left_out"] for one in kept["repairs"]} == {"rewrite"}
    assert after(kept) == {"Abs": 2, "Neg": 2}
    assert kept["verified"] is True


def test_a_pass_that_fails_is_left_out_and_reported(ortopt: Any, report: Report, model: Path) -> None:
    data = report("--enable", "failure")
    assert data["nodes"]["after"] == 2
    assert [(one["pass"], one["level"], one["step"]) for one in data["failures"]] == [("failure", 1, 1)]
    done = ortopt("optimize", model, "--enable", "failure", "--no-verify")
    assert done.stderr.count("\n") == 1
    assert "warning: failure failed at level 1" in done.stderr
    assert "\x1b" not in done.stderr + done.stdout
    assert "left      without failure, which failed" in done.stdout
    assert "left out: failure failed" in ortopt("optimize", model, "--enable", "failure", "--no-verify", "-v").stdout


def test_inputs_are_what_is_verified_with(ortopt: Any, report: Report, model: Path, tmp_path: Path) -> None:
    given = tmp_path / "in.npz"
    np.savez(given, x=-np.ones((2, 8), np.float32))
    report("--inputs", given, verify=True)
    # With nothing but zeros, Relu and Neg agree: only what is fed can say so.
    np.savez(given, x=np.zeros((2, 8), np.float32))
    assert report("--only", "wrong_numbers", "--inputs", given, verify=True)["verified"] is True


@pytest.mark.parametrize(("how", "data_files"), [("auto", 0), ("inline", 0), ("copy", 1)])
def test_external_data(report: Report, model: Path, how: str, data_files: int, tmp_path: Path) -> None:
    big = parse("main (float[N,8] x) => (float[N,4] y) { y = Relu (x) }")
    value = ir.Value(name="w", const_value=ir.tensor(np.ones((8, 4096), np.float32), name="w"))
    big.graph.register_initializer(value)
    node = ir.node("MatMul", [big.graph.inputs[0], value])
    big.graph.insert_before(big.graph[0], node)
    big.graph[1].replace_input_with(0, node.outputs[0])
    big.graph.outputs[0].shape = ir.Shape(["N", 4096])
    save(big, model)
    data = report("--external-data", how)
    assert len(list(tmp_path.glob("*.data"))) == data_files
    assert (data["output"]["data"] is not None) == bool(data_files)


def test_external_data_is_reused(ortopt: Any, tmp_path: Path) -> None:
    test = parse(
        "main (float[N,4096] x) => (float[N,4096] y) { i = Identity (x) y = Add (i, w) }".replace(
            "(float[N,4096] x)", "(float[N,4096] x, float[4096] w)"
        )
    )
    w = test.graph.inputs[1]
    w.const_value = ir.tensor(np.ones(4096, np.float32), name="w")
    test.graph.register_initializer(w)
    del test.graph.inputs[1:]
    save(test, tmp_path / "e.onnx", external_data="copy")
    (data,) = tmp_path.glob("*.data")
    ortopt("optimize", "e.onnx", "--external-data", "reuse", "--no-verify")
    assert list(tmp_path.glob("*.data")) == [data]
    assert ops(tmp_path / "e.opt.onnx") == ["Add"]


def test_weights_that_cannot_stay_where_they_are_are_copied_with_a_word(ortopt: Any, tmp_path: Path) -> None:
    weights = ", ".join(["1"] * 512)
    head = f"main (float[N,512] x) => (float[N,512] y) <float[512] w = {{{weights}}}>"
    model = parse(f"{head} {{ i = Identity (x) y = Add (i, w) }}")
    save(model, tmp_path / "inline.onnx", external_data="inline")
    done = ortopt("optimize", "inline.onnx", "-o", "out.onnx", "--external-data", "reuse", "--no-verify")
    (line,) = done.stderr.splitlines()
    assert line == (
        "ortopt: warning: external data: 2048 bytes of weights could not be reused, and were copied: the model holds"
        " them in its own file, not beside it"
    )
    with pytest.warns(UserWarning, match="could not be reused, and were copied"):
        optimize("inline.onnx", verify=False).save("again.onnx", external_data="reuse")
    part = ortopt("extract", "inline.onnx", "--outputs", "y", "-o", "part.onnx", "--external-data", "reuse")
    assert "could not be reused" in part.stderr
    save(model, tmp_path / "beside.onnx", external_data="copy")
    done = ortopt("optimize", "beside.onnx", "-o", "out.onnx", "--external-data", "reuse", "--no-verify")
    assert done.stderr == ""
    assert "written   out.onnx, 2.0 kB stay in the original's files" in done.stdout
    arguments = ("optimize", "beside.onnx", "--external-data", "reuse", "--no-verify", "-q", "--json", "-")
    data = json.loads(ortopt(*arguments).stdout)
    assert data["output"]["reused"] == 2048
    assert data["file_bytes"]["after"] > 2048


@pytest.mark.parametrize("option", [("--dim", "N=0"), ("--input-shape", "x=0,8")])
def test_sizes_with_which_nothing_is_computed_are_refused(ortopt: Any, model: Path, option: tuple[str, str]) -> None:
    done = ortopt("optimize", model, *option, "--no-verify", code=1)
    assert f"with {option[1]} no output has any element, and nothing is computed" in done.stderr


def test_a_past_of_no_tokens_is_none_of_them(ortopt: Any, tmp_path: Path) -> None:
    text = "main (float[past,2] p, float[seq,2] x) => (float[all,2] y) { i = Relu (x) y = Concat <axis = 0> (p, i) }"
    save(parse(text), tmp_path / "past.onnx")
    ortopt("optimize", "past.onnx", "-o", "out.onnx", "--dim", "past=0", "--no-verify")
    assert "Concat" not in ops(tmp_path / "out.onnx")


def test_warnings_beyond_a_screenful_are_counted_and_whole_with_v(
    ortopt: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tuple(f"reason {number}: {'as we said ' * 12}" for number in range(9))
    monkeypatch.setattr(Optimization, "_not_for_target", lambda _: told)
    arguments = ("optimize", model, "--no-verify")
    done = ortopt(*arguments)
    *shown, last = done.stderr.splitlines()
    assert re.fullmatch(r"and (\d) more warnings: -v", last)
    assert int(last.split()[1]) + len(shown) == len(told)
    folded = sum(-(-len(line) // 80) for line in (done.stderr + done.stdout).splitlines() if line) + 1
    assert folded <= 24
    assert len(ortopt(*arguments, "-v").stderr.splitlines()) == len(told)
    assert len(ortopt(*arguments, "-q").stderr.splitlines()) == len(told)


def test_provenance(report: Report, model: Path) -> None:
    report()
    plain = onnx.load(model.with_name("m.opt.onnx"))
    assert not any(node.metadata_props for node in plain.graph.node)
    report("--provenance")
    (gemm,) = (node for node in onnx.load(model.with_name("m.opt.onnx")).graph.node if node.op_type == "Gemm")
    assert "matmul_add_fusion" in {prop.value for prop in gemm.metadata_props}


def test_provenance_of_a_result_that_python_saves(model: Path, tmp_path: Path) -> None:
    for asked in (False, True):
        optimize(model, provenance=asked, verify=False).save(tmp_path / "p.onnx")
        assert any(node.metadata_props for node in onnx.load(tmp_path / "p.onnx").graph.node) == asked


def test_what_stays_in_float32_has_to_match_something(ortopt: Any, model: Path) -> None:
    asked = ("optimize", model, "--float16", "--no-verify", "-q", "--keep-float32")
    ortopt(*asked, "MatMul")
    done = ortopt(*asked, "MatMul,*layer.7/*", code=1)
    assert "keep_float32 has '*layer.7/*', which matches nothing" in done.stderr


def test_keep_functions(report: Report, model: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "pkg" : 1]>
        main (float[N] x) => (float[N] y) { y = pkg.Twice (x) }
        <domain: "pkg", opset_import: ["" : 17]>
        Twice (x) => (y) { y = Add (x, x) }"""
    save(parse(text), model)
    assert report("--keep-functions")["functions"] == {"before": 1, "after": 1}


def test_dump_dir_holds_the_model_before_and_after(report: Report, tmp_path: Path) -> None:
    report("--dump-dir", tmp_path / "made" / "dumps", "--only", "identity_elimination")
    names = sorted(path.name for path in (tmp_path / "made" / "dumps").iterdir())
    assert [name.partition("-")[2] for name in names] == [
        "start.onnx",
        "level1-step1-main-identity_elimination.after.onnx",
        "level1-step1-main-identity_elimination.before.onnx",
    ]
    assert [len(ops(tmp_path / "made" / "dumps" / name)) for name in names] == [5, 3, 5]


def test_the_trace_is_chromes_format(report: Report, tmp_path: Path) -> None:
    report("--trace", tmp_path / "t.json")
    trace = json.loads((tmp_path / "t.json").read_text())
    events = trace["traceEvents"]
    assert all({"name", "ph", "ts", "pid", "tid"} <= event.keys() for event in events)
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 for event in spans)
    phases = [event["name"] for event in spans if event["cat"] == "phase"]
    assert phases == ["load", "optimize", "save"]
    (whole,) = (event for event in spans if event["name"] == "optimize")
    passes = {event["name"]: event for event in spans if event["cat"] == "pass"}
    assert {"matmul_add_fusion", "identity_elimination"} <= passes.keys()
    for event in passes.values():
        assert whole["ts"] <= event["ts"] <= event["ts"] + event["dur"] <= whole["ts"] + whole["dur"] + 0.01
        assert event["args"]["level"] in (1, 2, 3)
    assert sum(event["ph"] == "i" for event in events) >= 1


def test_quiet_says_nothing(ortopt: Any, model: Path) -> None:
    done = ortopt("optimize", model, "-q", "--no-verify")
    assert done.output == ""


def test_verbose_lists_ops_and_passes_and_more_verbose_idle_ones(ortopt: Any, model: Path) -> None:
    assert "identity_elimination" not in ortopt("optimize", model, "--no-verify").stdout
    verbose = ortopt("optimize", model, "-v", "--no-verify").stdout
    assert re.search(r"^Identity +\d +0 +-\d", verbose, re.MULTILINE)
    assert re.search(r"^identity_elimination +\d", verbose, re.MULTILINE)
    assert "more, nothing to do" in verbose
    assert "constant_sharing" not in verbose
    every = ortopt("optimize", model, "-vv", "--no-verify").stdout
    assert "constant_sharing" in every
    assert "more, nothing to do" not in every


def test_the_report_is_plain_text_when_piped(ortopt: Any, model: Path) -> None:
    done = ortopt("optimize", model, "--no-verify")
    assert {letter for letter in done.stdout if not letter.isascii()} == {"→"}
    assert "\x1b" not in done.stdout


def test_zoo_models_go_to_the_current_folder(ortopt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ortopt("optimize", "zoo:lstm_tagger__ts13", "--only", "identity_elimination")
    assert (tmp_path / "lstm_tagger__ts13.opt.onnx").is_file()


def test_an_unverifiable_model_is_written_with_a_warning(ortopt: Any, report: Report, model: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "mine" : 1]>
        main (float[N] x) => (float[N] y) { i = Identity (x) y = mine.Op (i) }"""
    save(parse(text), model)
    data = report(verify=True)
    assert data["verified"] is False
    assert data["verification"]["status"] == "impossible"
    assert data["output"] is not None
    done = ortopt("optimize", model)
    assert "warning: the result could not be verified" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_tolerance_lets_a_pass_approximate(ortopt: Any, model: Path, report: Report) -> None:
    text = "main (float[N,64] x) => (float[N,64] y) { g = Gelu (x) y = Identity (g) }"
    save(parse(text, 20), model)
    enabled = ("--enable", "gelu_approximation")
    assert [one["pass"] for one in report(*enabled, verify=True)["repairs"]] == ["gelu_approximation"]
    data = report(*enabled, "--rtol", "1e-3", verify=True)
    assert not data["repairs"]
    assert "gelu_approximation" in ran(data)
    assert data["options"]["rtol"] == 1e-3
    assert not report(*enabled, "--atol", "1e-3", verify=True)["repairs"]
    near_zero = report(*enabled, "--rtol", "1e-3", "--atol", "0", verify=True)
    assert near_zero["repairs"], "relative to each number"
    assert optimize(model, enable=["gelu_approximation"], rtol=1e-3).verified
    with pytest.raises(UsageError, match="must be a number from 0 on"):
        optimize(model, rtol=-1.0)
