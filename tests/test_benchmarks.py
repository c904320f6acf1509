"""The benchmark's arithmetic, tables and processes; nothing here asserts a time."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import (
    bench,
    cuda,
    decode,
    decoders,
    generators,
    graphs,
    half_precision,
    latency,
    page,
    scale,
    shapes,
    tools,
)
from benchmarks.process import measure
from benchmarks.tables import exponent, geometric_mean, machine, markdown, number, quartiles, speedups

FACTS = {
    "machine": {"cpu": "Abacus", "cores": 2, "memory_gib": 4, "system": "Linux wood", "python": "3.13.0", "load": 0.5},
    "versions": {"onnx": "1.0"},
    "repeat": 3,
}


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([3.0]) == pytest.approx(3.0)
    assert geometric_mean([]) is None
    with pytest.raises(ValueError, match=r"math domain error|positive"):
        geometric_mean([1.0, 0.0])


def test_quartiles() -> None:
    assert quartiles([5.0, 1.0, 3.0, 2.0, 4.0]) == (2.0, 3.0, 4.0)
    assert quartiles([2.0, 1.0]) == (1.25, 1.5, 1.75)
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)


def test_speedups_are_taken_round_by_round() -> None:
    assert speedups([1.0, 10.0, 1.0], [0.5, 5.0, 0.5]) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="zip"):
        speedups([1.0], [1.0, 2.0])


def test_exponent() -> None:
    assert exponent([1, 10, 100], [3.0, 30.0, 300.0]) == pytest.approx(1.0)
    assert exponent([1, 10, 100], [3.0, 300.0, 30000.0]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="two sizes"):
        exponent([10, 10], [1.0, 2.0])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (1.23456, "1.23"),
        (0.0012345, "0.00123"),
        (1234.5, "1234"),
        (9.996, "10.00"),
        (-2, "-2.00"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text


def test_markdown() -> None:
    assert markdown(["a", "b"], [["x|y", "1"]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n"


def test_machine_is_named() -> None:
    facts = machine()
    assert {"cpu", "cores", "memory_gib", "system", "python", "load"} == set(facts)
    assert all(value for name, value in facts.items() if name != "load")


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("pass", "ok"),
        ("print('to stdout')", "ok"),
        ("raise SystemExit(3)", "exit 3: no message"),
        ("raise ValueError('too\\nbad')", "exit 1: bad"),
        ("import os; os.abort()", "crashed: SIGABRT"),
        ("import time; time.sleep(60)", "timed out after 2 s"),
    ],
)
def test_how_a_process_ends(code: str, outcome: str) -> None:
    run = measure([sys.executable, "-I", "-c", code], timeout=2.0)
    assert run.outcome == outcome
    assert run.ok == (outcome == "ok")
    assert run.seconds > 0


def test_a_program_that_is_missing() -> None:
    assert "no-such-program" in measure(["no-such-program"]).outcome


def test_a_timeout_ends_grandchildren_too(tmp_path: Path) -> None:
    sign = tmp_path / "alive"
    grandchild = f"import time, pathlib; time.sleep(2); pathlib.Path({str(sign)!r}).touch()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', {grandchild!r}])"
    assert measure([sys.executable, "-I", "-c", child], timeout=0.5).outcome == "timed out after 0.5 s"
    measure([sys.executable, "-I", "-c", "import time; time.sleep(2.5)"])
    assert not sign.exists()


def test_peak_memory_is_the_childs_alone() -> None:
    ballast = np.ones(40_000_000)
    small = measure([sys.executable, "-I", "-c", "pass"]).peak
    large = measure([sys.executable, "-I", "-c", "b = bytes(range(256)) * 400_000"]).peak
    assert ballast.nbytes > 300e6
    assert 1e6 < small < 60e6
    assert 100e6 < large < 200e6


def test_a_count_leaves_constants_out_and_looks_inside(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1, "local" : 1]>
        main (bool c, float[2] x) => (float[2] y) {
            t = local.twice (x)
            y = If (c) <then_branch = yes () => (float[2] a) { k = Constant <value = float[2] {1, 2}> ()
                                                               a = Add (t, k) },
                        else_branch = no () => (float[2] b) { b = com.microsoft.Gelu (t) }>
        }
        <domain: "local", opset_import: ["" : 17]>
        twice (x) => (y) { y = Add (x, x) }"""
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert graphs.count(path) == graphs.Nodes(total=5, fused=1)


@pytest.mark.parametrize("kind", generators.GENERATORS)
@pytest.mark.parametrize("size", [1, 2, 7, 8, 100, 1000])
def test_generated_graphs_are_valid_and_run(kind: str, size: int) -> None:
    import onnxruntime

    model = generators.GENERATORS[kind](size)
    onnx.checker.check_model(model, full_check=True)
    if size >= 1000:
        assert len(model.graph.node) == pytest.approx(size, rel=0.05)
    if kind == "chain":
        assert len(model.graph.node) == size
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    [fed] = session.get_inputs()
    dims = [dim if isinstance(dim, int) else 3 for dim in fed.shape]
    [result] = session.run(None, {fed.name: np.linspace(-1, 1, math.prod(dims), dtype="float32").reshape(dims)})
    assert np.isfinite(result).all()
    assert result.size


@pytest.mark.parametrize("kind", shapes.SHAPES)
@pytest.mark.parametrize("size", [1, 100])
def test_graphs_of_which_one_thing_is_many_are_valid_and_load(kind: str, size: int) -> None:
    import onnxruntime

    source = shapes.SHAPES[kind](size).SerializeToString()
    onnx.checker.check_model(source, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def test_what_grows_too_fast_is_said() -> None:
    def points(model: str, power: float, tool: str = "ortopt") -> list[scale.Point]:
        return [
            scale.Point(model, size, size, tool, seconds=[size**power], peaks=[size]) for size in (1000, 4000, 16000)
        ]

    assert scale.too_steep([*points("even", 1.1), *points("steep", 1.3), *points("other", 2.0, "onnx_ir")]) == ["steep"]
    assert scale.too_steep([scale.Point("slow", 1000, 1000, "ortopt", outcome="timed out after 5 s")]) == ["slow"]


def test_generated_graphs_are_the_same_every_time() -> None:
    for generate in (*generators.GENERATORS.values(), *shapes.SHAPES.values()):
        assert generate(200).SerializeToString() == generate(200).SerializeToString()


def test_external_weights_lie_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "BIG", generators.SMALL)
    path = tmp_path / "stack.onnx"
    generators.external(path, 1)
    onnx.checker.check_model(path)
    whole = onnx.load(path)
    assert (tmp_path / "stack.onnx.data").stat().st_size > 4 * 4 * generators.SMALL.hidden**2
    outside = onnx.load(path, load_external_data=False)
    assert any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in outside.graph.initializer)
    assert all(np.isfinite(onnx.numpy_helper.to_array(tensor)).all() for tensor in whole.graph.initializer)


def test_bert_base_is_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "BERT_BASE", generators.Transformer(8, 2, 16, vocabulary=30))
    generators.bert_base(tmp_path / "bert.onnx")
    model = onnx.load(tmp_path / "bert.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == ["input_ids"]
    assert sum(node.op_type == "Softmax" for node in model.graph.node) == 12


def test_bert_base_weighs_what_bert_base_weighs() -> None:
    sizes: list[int] = []

    def weigh(name: str, dims: Sequence[int]) -> onnx.TensorProto:
        sizes.append(4 * math.prod(dims))
        return onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=dims)

    generators.transformer(generators.BERT_BASE, 12, weigh)
    assert sum(sizes) == pytest.approx(438e6, rel=0.001)


def _model(path: Path, text: str) -> str:
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> main {text}'), path)
    return str(path)


def test_latency_takes_turns_and_says_what_does_not_run(tmp_path: Path) -> None:
    good = _model(tmp_path / "good.onnx", "(float[2] x) => (float[2] y) { y = Relu (x) }")
    np.savez(tmp_path / "inputs.npz", x=np.ones(2, "float32"))
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    first, bad, last = latency.main(7, 60.0, str(tmp_path / "inputs.npz"), [good, str(tmp_path / "bad.onnx"), good])
    assert isinstance(bad, str)
    assert bad.startswith("does not run: ")
    assert (len(first), len(last)) == (7, 7)


def _rows() -> list[bench.Row]:
    return [
        bench.Row("m", "original", nodes=10, nodes_after_ort=5, fused_after_ort=2, latency=[2.0, 4.0, 2.0]),
        bench.Row(
            "m",
            "ortopt",
            seconds=[1.0, 9.0, 1.0],
            peaks=[100_000_000],
            nodes=4,
            nodes_after_ort=4,
            fused_after_ort=1,
            latency=[1.0, 2.0, 1.0],
        ),
        bench.Row("m", "onnxslim", seconds=[4.0], peaks=[1], nodes=6, nodes_after_ort=5, fused_after_ort=2),
        bench.Row("m", "onnxsim", seconds=[2.0], peaks=[1], nodes=7, nodes_after_ort=5, fused_after_ort=2),
        bench.Row("m", "onnxscript", outcome="crashed: SIGSEGV"),
    ]


def test_the_report() -> None:
    text = bench.report(_rows())
    assert "| m | 1.00 | 4.00 | 2.00 | crashed | 0.500 |" in text
    assert "Geometric mean of ortopt / fastest peer: 0.500; worst 0.500 on m." in text
    assert "| m | 10 | 4 | 6 | 7 | crashed |" in text
    assert "| m | 2000 | 2.00 (2.00 to 2.00) |" in text
    assert "No harm done downstream in 1 results." in text
    assert "- m, onnxscript: crashed: SIGSEGV" in text


@pytest.mark.parametrize(
    ("tool", "nodes", "fused", "said"),
    [
        ("ortopt", 6, 2, "6 nodes, 5 without it"),
        ("ortopt", 5, 0, "No harm done downstream in 1 results."),
        ("ortopt_onnx1", 5, 1, "1 fused, 2 without it"),
        ("ortopt_onnx1", None, None, "cannot load the result"),
        ("onnxslim", 9, 0, "No harm done downstream in 0 results."),
    ],
)
def test_harm(tool: str, nodes: int | None, fused: int | None, said: str) -> None:
    original, *_ = _rows()
    assert said in bench.harm([original, bench.Row("m", tool, nodes=3, nodes_after_ort=nodes, fused_after_ort=fused)])


def test_a_model_end_to_end(tmp_path: Path) -> None:
    plan = bench.Plan(("control_flow__script17",), ("ort_basic", "ort_extended"), 1, latency=True, timeout=120.0)
    rows = bench.run(plan, tmp_path / "out")
    assert [(row.tool, row.outcome, row.latency_outcome) for row in rows] == [
        ("original", "ok", "ok"),
        ("ort_basic", "ok", "ok"),
        ("ort_extended", "ok", "ok"),
    ]
    assert all(row.nodes and row.nodes_after_ort and row.latency for row in rows)
    written = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [row["tool"] for row in written["rows"]] == ["original", "ort_basic", "ort_extended"]
    assert "control_flow__script17" in (tmp_path / "out" / "bench.md").read_text()


def test_a_tool_that_fails_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tools,
        "command",
        lambda tool, source, out, *, unlimited=False: [sys.executable, "-I", "-c", "raise SystemExit(2)"],
    )
    plan = bench.Plan(("superres__ts13",), ("onnxslim_broken",), 3, latency=False, timeout=60.0)
    _, row = bench.measure_model("superres__ts13", plan, tmp_path, warm_up=False)
    assert (row.outcome, row.seconds, row.nodes) == ("exit 2: no message", [], None)


def test_a_tool_that_writes_nothing_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tools, "command", lambda tool, source, out, *, unlimited=False: [sys.executable, "-I", "-c", "pass"]
    )
    plan = bench.Plan(("superres__ts13",), ("lazy",), 1, latency=False, timeout=60.0)
    _, row = bench.measure_model("superres__ts13", plan, tmp_path, warm_up=False)
    assert row.outcome == "exit 0, but no file"


def test_a_light_model_is_only_counted(tmp_path: Path) -> None:
    plan = bench.Plan((), ("ort_basic",), 1, latency=False, timeout=60.0, light=("light_zfnet512",))
    original, row = bench.run(plan, tmp_path / "out")
    assert original.nodes is not None and row.nodes is not None
    assert row.nodes < original.nodes and not row.seconds
    page = (tmp_path / "out" / "bench.md").read_text()
    assert "| light_zfnet512 | 38 | 22 |" in page.partition("no tool limited")[2]


def test_where_more_nodes_are_left_is_said() -> None:
    rows = [
        bench.Row("m", "original", nodes=9),
        bench.Row("m", "ortopt_onnx1", nodes=5),
        bench.Row("m", "onnxslim", nodes=4),
        bench.Row("m", "ort_extended", nodes=1),
        bench.Row("n", "ortopt_onnx1", nodes=3),
        bench.Row("n", "onnxsim", nodes=3),
        bench.Row("n", "onnxslim", "exit 1: no"),
    ]
    assert "- m: 5 nodes, 4 by onnxslim\n" in bench.more_nodes(rows)
    assert "- n" not in bench.more_nodes(rows)
    assert bench.more_nodes(rows[4:]).endswith("on all 1 models.\n")


def test_scale_tables() -> None:
    points = [
        scale.Point("chain", size, 4 * size, tool, seconds=[cost * size], peaks=[size * 1000])
        for size in (1000, 10_000)
        for tool, cost in (("ortopt", 0.002), ("ort_extended_lean", 0.001))
    ]
    points.append(scale.Point("wide", 1000, 4000, "ortopt", outcome="timed out after 5 s"))
    text = scale.report(points)
    assert "| chain | 1000 | 0.00400 | ortopt | 2.00 | 2.00 | 1.00 |" in text
    assert "| wide | 1000 | 0.00400 | ortopt | timed out after 5 s | - | - |" in text
    assert "| chain | ortopt | 1.00 | 1.00 | 1.00 |" in text
    assert "| wide | ortopt | 1" not in text


def test_all_figures_go_between_the_pages_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "page.md"
    names = ("measured", "files", "speed")
    text.write_text("".join(f"of {name}\n<!-- {name} -->\nold\n<!-- end of {name} -->\n" for name in names))
    parts = {"files": page.Part(("tables",)), "speed": page.Part(("tables",), is_markdown=False)}
    monkeypatch.setattr(page, "PARTS", parts)
    monkeypatch.setattr(page, "run", lambda part, models: (f"{'as' if part.is_markdown else 'plain'} {models}", 0))
    page.main(["--page", str(text), "--out", str(tmp_path), "--models", "m"])
    assert "as m\n\nplain m" in capsys.readouterr().out
    assert text.read_text().count("old") == len(names)
    for _ in range(2):  # once more: the marks are still there
        page.main(["--page", str(text), "--out", str(tmp_path)])
    assert "old" not in text.read_text()
    assert re.search(r"<!-- measured -->\n\n\d{4}-\d\d-\d\d: .*\d cores", text.read_text())
    assert "of speed\n<!-- speed -->\n\nplain \n\n<!-- end of speed -->\n" in text.read_text()


def test_parts_that_were_measured_are_kept_and_those_that_failed_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "page.md"
    text.write_text(
        "".join(f"<!-- {name} -->\nold\n<!-- end of {name} -->\n" for name in ("measured", "files", "scale"))
    )
    monkeypatch.setattr(page, "PARTS", {"files": page.Part(("tables",)), "scale": page.Part(("tables",))})
    runs = iter([("first", 0), ("too slow", 1), ("again", 0)])
    monkeypatch.setattr(page, "run", lambda part, models: next(runs))
    with pytest.raises(SystemExit, match="scale ended with 1"):
        page.main(["--page", str(text), "--out", str(tmp_path / "kept")])
    assert "first" in text.read_text()
    assert "too slow" in text.read_text()
    page.main(["--page", str(text), "--out", str(tmp_path / "kept"), "--keep"])
    assert "first" in text.read_text()
    assert "again" in text.read_text()


def test_a_page_without_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match="0 places for speed"):
        page.filled("<!-- files -->\n<!-- end of files -->\n", {"speed": "1"})


def test_the_page_has_a_place_for_every_part() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text, dict.fromkeys([*page.PARTS, "measured"], "new")).count("\nnew\n") == len(page.PARTS) + 1


def test_a_part_runs_as_its_own_command() -> None:
    assert page.run(page.Part(("tables",), is_markdown=False), "") == ("```text\n\n```", 0)
    with pytest.raises(SystemExit, match="half_precision --wrong ended with 2"):
        page.run(page.Part(("half_precision", "--wrong"), takes_models=False), "")


def test_scale_measures_a_file(tmp_path: Path) -> None:
    source = tmp_path / "chain.onnx"
    source.write_bytes(generators.chain(50).SerializeToString())
    points = scale.measure_file("chain", source, ("ort_extended_lean", "cp"), 1, 60.0)
    assert [(point.tool, point.outcome, point.nodes) for point in points] == [
        ("ort_extended_lean", "ok", 50),
        ("cp", "ok", 50),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["chain.onnx"]


# CUDA


@pytest.mark.parametrize("name", sorted(cuda.models()))
def test_models_for_cuda_are_valid_and_fixed_in_shape(name: str) -> None:
    if name == "decode-12x768":
        pytest.skip("300 MB")
    model, feeds = cuda.models()[name]()
    onnx.checker.check_model(model, full_check=True)
    for one in model.graph.input:
        assert [dim.dim_value for dim in one.type.tensor_type.shape.dim] == list(feeds[one.name].shape)


@pytest.mark.parametrize("way", cuda.WAYS)
def test_every_way_of_the_cuda_benchmark_runs_dry(way: str, tmp_path: Path) -> None:
    model, feeds = cuda.decode_step(layers=1, width=32, heads=2, length=8)
    path = tmp_path / "decode.onnx"
    onnx.save(model, path)
    np.savez(path.with_suffix(".npz"), **feeds)  # type: ignore[arg-type]  # allow_pickle is no name of ours
    cuda.child("expect", path, "cpu", 0.0)
    figures = cuda.child(way, path, "cpu", 0.0)
    assert figures["us"] > 0
    assert figures["first"] > 0


def test_the_cuda_benchmarks_table_names_the_machine_and_says_when_it_is_dry() -> None:
    rounds = [{way: {"us": 10.0 * (i + 1), "first": 0.5} for i, way in enumerate(cuda.WAYS)} for _ in range(3)]
    text = cuda.table(rounds)
    assert text.count("\n") == len(cuda.WAYS) + 2
    assert "0.25 (0.25 - 0.25) of plain |" in text  # 10 us against 40
    facts = {**FACTS, "machine": {**FACTS["machine"], "gpu": "Beads 9000, 1.0"}, "rounds": 3}  # type: ignore[dict-item]
    assert "DRY RUN" in cuda.headline({**facts, "provider": "cpu"})
    real = cuda.headline({**facts, "provider": "cuda"})
    assert real.startswith("Beads 9000, 1.0; Abacus")
    assert "DRY" not in real


def test_the_cuda_benchmark_refuses_a_machine_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cuda"])
    monkeypatch.setattr("ortopt.analysis.providers.usable", lambda name: (False, "there is no NVIDIA driver here"))
    with pytest.raises(SystemExit, match="CUDA does not work here: there is no NVIDIA driver here"):
        cuda.main()


def test_conversions_are_compared_on_the_models_that_all_tools_convert() -> None:
    rows = [
        half_precision.Row("a", "ours", "ok", 1e-3, 2, 3, 4, 9, 1.0, 10**6, 10**6),
        half_precision.Row("b", "ours", "ok", 2e-3, 5, 6, 7, 9, 1.0, 10**6, 10**6),
        half_precision.Row("a", "other", "ok", math.inf, 7, 8, 10, 11, 2.0, 10**6, 2 * 10**6),
        half_precision.Row("b", "other", "does not run: it crashed"),
    ]
    text = half_precision.summary(rows)
    assert "| ours | 2 of 2 | 2 of 2 | 0.002 | 2 | 3 | 4 | 9 | 1 | 1 | 1 |" in text
    assert "| other | 1 of 2 | 0 of 2 | nan | 7 | 8 | 10 | 11 | 2 | 1 | 2 |" in text
    assert "the 1 models" in text


def test_a_decode_benchmark_steps_alike_in_all_ways(tmp_path: Path) -> None:
    small = decoders.Decoder(layers=1, heads=4, key_heads=2, size=8, inner=16)
    path = decoders.write(small, tmp_path / "decoder.onnx")
    tasks = [decode.Task(way, str(path), 2, 3, 2, 1) for way in decode.WAYS]
    steps = [decode.stepping(task) for task in tasks]
    for _ in range(3):
        first, *others = [next(each) for each in steps]
        for other in others:
            np.testing.assert_allclose(other, first, rtol=1e-4, atol=1e-5)


def test_a_line_of_the_decode_benchmark_has_the_ratios_of_each_round() -> None:
    rows = {way: [{"cpu": 2.0 / (1 + i), "wall": 1.0}] * 3 for i, way in enumerate(decode.WAYS)}
    line = decode.line("small", 8, 1, rows)
    assert line == ("| small | 8 | 1 | 1000.00 | 0.50 (0.50 to 0.50) | 1.50 (1.50 to 1.50) | 2.00 (2.00 to 2.00) |")
    assert decode.table([line]).count("\n") == 3
