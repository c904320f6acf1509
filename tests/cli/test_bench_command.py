"""``ortopt bench``: versions measured in turn, in processes of their own; figures that say what they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ortopt.analysis.providers import CUDA, usable
from ortopt.errors import InvalidModelError
from ortopt.measurement.asking import MeasurementBudget
from ortopt.measurement.in_turns import Figures, Version, measure_in_turns, require_original, timeline
from ortopt.verification.input_sets import store_inputs
from tests.reporting.test_page import data_of

HEAD = '<ir_version: 9, opset_import: ["": 17]>'
TEXTS = {
    "plain": f"{HEAD} main (float[N,4] x) => (float[N,4] y) {{ a = Neg (x) b = Neg (a) y = Relu (b) }}",
    "picky": f"{HEAD} main (float[N] x) => (float[1] y) {{ s = Constant <value_ints = [1]> () y = Reshape (x, s) }}",
}
GROUPED = """<ir_version: 10, opset_import: ["" : 17, "ortopt.group" : 1]>
main (float[N,4] x) => (float[N,4] y) <float[N,4] a, float[N,4] t> {
    a = ortopt.group.group_0 (x)
    t = Neg (a)
    y = ortopt.group.group_1 (t)
}
<domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p) => (r) { r = Relu (p) }
<domain: "ortopt.group", opset_import: ["" : 17]> group_1 (p) => (r) { r = Exp (p) }
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in (*TEXTS.items(), ("grouped", GROUPED)):
        (tmp_path / f"{name}.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return tmp_path


@pytest.mark.processes
def test_data_and_a_trace_of_all_versions(ortopt: Any, files: Path) -> None:
    effort = ["--rounds", 1, "--repeat", 3, "--threads", 1, "--no-verify"]
    done = ortopt("bench", "plain.onnx", *effort, "--json", "--trace", "trace.json")
    data = json.loads(done.stdout)
    assert (data["schema"], data["providers"], data["effort"]["rounds"]) == (1, ["CPUExecutionProvider"], 1)
    (row,) = data["models"]
    assert row["model"] == "plain.onnx"
    assert [(one["name"], one["level"], one["error"]) for one in row["versions"]] == [
        ("original", 0, None),
        ("-O3", 3, None),
        ("-O4", 4, None),
    ]
    for one in row["versions"]:
        for key in ("call", "open", "first", "ratio"):
            low, median, high = one[key]
            assert 0 < low <= median <= high
        assert one["peak"][1] > 0
    assert row["versions"][0]["ratio"] == [1, 1, 1]
    events = json.loads((files / "trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert list(names.values()) == ["original", "-O3", "-O4"]
    for process in names:
        kinds = [event.get("cat") for event in events if event["pid"] == process]
        assert kinds.count("compile") >= 1
        assert kinds.count("call") == 1 + 2 + 3  # the first, those that warm up, those that are timed
    assert sorted(path.name for path in files.iterdir()) == [
        *sorted(f"{n}.onnx" for n in (*TEXTS, "grouped")),
        "trace.json",
    ]


def test_a_table_of_several_models(ortopt: Any, files: Path) -> None:
    done = ortopt("bench", "plain.onnx", "-", "--rounds", 1, "--repeat", 1, "--levels", "0", stdin=GROUPED_BYTES)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["plain.onnx", "stdin"]
    assert lines[2].startswith("measured with x float32[")
    assert "processors here); CPUExecutionProvider" in lines[2]
    assert [line.split("   ")[0] for line in lines[3:6]] == ["version", "plain.onnx original", "stdin original"]
    assert re.search(r"\d× (faster|slower)|as fast", lines[5]), "the other model is compared with the first"
    assert not re.search(r"faster|slower|as fast", lines[4])
    assert done.stderr == ""


def test_models_of_other_interfaces_have_tables_of_their_own(ortopt: Any, files: Path) -> None:
    arguments = ("--rounds", 1, "--repeat", 1, "--levels", "0", "--threads", 1)
    (files / "other.onnx").write_bytes(
        onnx.parser.parse_model(TEXTS["plain"].replace("Relu", "Abs")).SerializeToString()
    )
    done = ortopt("bench", "plain.onnx", "picky.onnx", "other.onnx", *arguments, "--inputs", "no", code=1)
    assert "one model at a time" in done.stderr
    data = json.loads(ortopt("bench", "plain.onnx", "grouped.onnx", "other.onnx", *arguments, "--json").stdout)
    assert [(row["model"], row["table"]) for row in data["models"]] == [
        ("plain.onnx", 1), ("grouped.onnx", 1), ("other.onnx", 1)
    ]  # fmt: skip
    text = f"{HEAD} main (float[N,4] other) => (float[N,4] y) {{ y = Neg (other) }}"
    (files / "renamed.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    data = json.loads(ortopt("bench", "plain.onnx", "renamed.onnx", *arguments, "--json").stdout)
    assert [row["table"] for row in data["models"]] == [1, 2]
    assert data["models"][1]["versions"][0]["ratio"] == [1, 1, 1]
    assert data["models"][1]["inputs"][0] | {"shape": 0} == {"name": "other", "dtype": "float32", "shape": 0}


def test_a_profile_shows_where_the_time_goes(ortopt: Any, files: Path) -> None:
    arguments = ("--rounds", 1, "--repeat", 1, "--threads", 1, "--no-verify", "--profile")
    data = json.loads(ortopt("bench", "plain.onnx", *arguments, "--levels", "0,3", "--json").stdout)
    profile = data["models"][0]["profile"]
    assert {row["op"] for row in profile["original"]} == {"Neg", "Relu"}
    assert {row["op"] for row in profile["result"]} <= {"Neg", "Relu"}
    assert profile["fused_at_load"]["original"] is not None
    assert [row["layer"] for row in profile["layers"]] == [""]
    shown = ortopt("bench", "plain.onnx", *arguments, "--levels", "0,3").stdout
    assert "where the time of plain.onnx goes:" in shown
    assert "all kernels" in shown
    alone = json.loads(ortopt("bench", "plain.onnx", *arguments, "--levels", "0,4", "--json").stdout)
    assert alone["models"][0]["profile"]["result"] is None, "a grouped model has no profile of one session"


def test_optimize_profiles_and_tunes_at_sizes_that_it_tells(ortopt: Any, files: Path) -> None:
    (files / "image.onnx").write_bytes(onnx.parser.parse_model(IMAGE).SerializeToString())
    reports = ("--no-verify", "--json", "r.json", "--html", "r.html")
    done = ortopt("optimize", "image.onnx", "-o", "out.onnx", "--profile", "--tune", "--tune-seconds", 0, *reports)
    said = " ".join(done.stdout.split())
    assert measured_lines(said) == ["x float32[1, 3, 224, 224] (N=1, H=224, W=224)"]
    assert re.search("measured against the original: .* at N=1, H=224, W=224", said)
    data = json.loads((files / "r.json").read_text())
    for one in (data["profile"], *data["tuning"]["measured_with"]):
        assert one["sizes"] == {"N": 1, "H": 224, "W": 224}
    page = data_of((files / "r.html").read_text())
    assert page["report"]["profile"]["measured_with"] == data["profile"]["measured_with"]
    np.savez(files / "x.npz", x=np.ones((2, 3, 5, 6), np.float32))
    ortopt("optimize", "image.onnx", "-o", "out.onnx", "--profile", "--inputs", "x.npz", "--overwrite", *reports)
    data = json.loads((files / "r.json").read_text())
    assert data["profile"]["inputs"][0]["shape"] == [2, 3, 5, 6]


def test_the_time_of_two_models_by_layer(ortopt: Any, files: Path) -> None:
    for name, op in (("first", "Exp"), ("second", "Tanh")):
        text = f"{HEAD} main (float[N,4] x) => (float[N,4] y) {{ h = {op} (x) y = Neg (h) }}"
        model = onnx.parser.parse_model(text)
        for number, node in enumerate(model.graph.node):
            node.name = f"/net/block.{number}/{node.op_type}"
        (files / f"{name}.onnx").write_bytes(model.SerializeToString())
    arguments = ("--rounds", 1, "--repeat", 1, "--threads", 1, "--no-verify", "--levels", 0, "--profile")
    lines = [line.split() for line in ortopt("bench", "first.onnx", "second.onnx", *arguments).stdout.splitlines()]
    start = lines.index(["layer", "first.onnx,", "ms", "second.onnx,", "ms", "change"])
    assert [line[0] for line in lines[start + 1 : start + 3]] == ["net/block.0", "net/block.1"]
    assert all(float(cell) > 0 for line in lines[start + 1 : start + 3] for cell in line[1:3])


GROUPED_BYTES = onnx.parser.parse_model(GROUPED).SerializeToString()


def test_groups_are_on_the_trace(files: Path, tmp_path: Path) -> None:
    store_inputs({"x": np.ones((2, 4), np.float32)}, tmp_path / "x")
    effort = MeasurementBudget(rounds=1, repeat=2)
    found = measure_in_turns([Version(4, files / "grouped.onnx")], tmp_path / "x", effort)
    trace = timeline(found, tmp_path / "x", effort, tmp_path)
    kinds = [(event.get("cat"), event["name"]) for event in trace["traceEvents"]]
    for name in ("group_0", "leftover_0", "group_1"):
        assert (kinds.count(("compile", name)), kinds.count(("run", name))) == (1, 5)
    assert found[0].call is not None


def test_without_the_original_there_is_nothing_to_compare_with() -> None:
    every = [Figures(Version(level, Path()), error) for level, error in ((0, ""), (4, "it is broken"))]
    require_original(every)
    with pytest.raises(InvalidModelError, match="-O4 does not run: it is broken"):
        require_original(every[1:])


QUICK = ("--rounds", 1, "--repeat", 1, "--levels", "0", "--seconds", 0)
IMAGE = f"{HEAD} main (float[N,3,H,W] x) => (float[N,3,H,W] y) {{ y = Neg (x) }}"
TOKENS = f"{HEAD} main (int64[batch,seq] ids) => (int64[batch,seq] y) {{ y = Neg (ids) }}"


def measured_lines(text: str) -> list[str]:
    """What is said of the inputs of each table."""
    return re.findall(r"measured with (.*?); ", " ".join(text.split()))


def test_sizes_are_representative_and_stand_above_each_table(ortopt: Any, files: Path) -> None:
    for name, text in {"image": IMAGE, "tokens": TOKENS}.items():
        (files / f"{name}.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    done = ortopt("bench", "image.onnx", "tokens.onnx", *QUICK)
    assert measured_lines(done.stdout) == [
        "x float32[1, 3, 224, 224] (N=1, H=224, W=224)",
        "ids int64[1, 16] (batch=1, seq=16)",
        "ids int64[1, 128] (batch=1, seq=128)",
    ]
    rows = json.loads(ortopt("bench", "tokens.onnx", *QUICK, "--json").stdout)["models"]
    assert [(row["model"], row["table"], row["sizes"], row["fallback"]) for row in rows] == [
        ("tokens.onnx", 1, {"batch": 1, "seq": 16}, None),
        ("tokens.onnx", 2, {"batch": 1, "seq": 128}, None),
    ]
    assert [row["inputs"] for row in rows] == [
        [{"name": "ids", "dtype": "int64", "shape": [1, length]}] for length in (16, 128)
    ]


@pytest.mark.parametrize(
    ("arguments", "shapes"),
    [
        (("--dim", "seq=7"), [[1, 7]]),
        (("--dim", "seq=7,batch=3"), [[3, 7]]),
        (("--dim-hint", "seq=2..5"), [[1, 2], [1, 5]]),
        (("--input-shape", "ids=4,9"), [[4, 9]]),
        (("--inputs", "ids.npz"), [[3, 6]]),
    ],
)
def test_sizes_of_the_user(ortopt: Any, files: Path, arguments: tuple[str, ...], shapes: list[list[int]]) -> None:
    np.savez(files / "ids.npz", ids=np.ones((3, 6), np.int64))
    (files / "tokens.onnx").write_bytes(onnx.parser.parse_model(TOKENS).SerializeToString())
    rows = json.loads(ortopt("bench", "tokens.onnx", *QUICK, "--json", *arguments).stdout)["models"]
    assert [row["inputs"][0]["shape"] for row in rows] == shapes


def test_sizes_that_have_no_effect_are_a_usage_error(ortopt: Any, files: Path) -> None:
    np.savez(files / "x.npz", x=np.ones((3, 4), np.float32))
    for option in (("--dim", "N=1"), ("--dim-hint", "N=1"), ("--input-shape", "x=1,4")):
        done = ortopt("bench", "plain.onnx", *QUICK, "--inputs", "x.npz", *option, code=1)
        assert f"{option[0]} gives sizes to random inputs: leave it out with --inputs" in done.stderr
    assert "no input has a dimension named M" in ortopt("bench", "plain.onnx", "--dim-hint", "M=1", code=1).stderr


def test_other_sizes_are_told_where_the_model_refuses_the_usual_ones(ortopt: Any, files: Path) -> None:
    text = f"""{HEAD} main (float[N,3,H,W] x) => (float[N,196608] y) {{
        s = Constant <value_ints = [-1, 196608]> () y = Reshape (x, s) }}"""
    (files / "fixed.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    said = ortopt("bench", "fixed.onnx", *QUICK).stdout
    assert measured_lines(said) == ["x float32[1, 3, 256, 256] (N=1, H=256, W=256)"]
    assert "not at all representative sizes: it does not run at N=1, H=224, W=224: " in " ".join(said.split())


def test_inputs_are_tried_until_the_model_runs(ortopt: Any, files: Path) -> None:
    done = ortopt("bench", "picky.onnx", "--rounds", 1, "--repeat", 1, "--levels", 0)
    assert "original" in done.stdout


@pytest.mark.skipif(usable(CUDA)[0], reason="CUDA works here")
def test_a_provider_that_does_not_work_here_is_a_usage_error(ortopt: Any, files: Path) -> None:
    for named in ("cuda", "cuda,cpu"):
        done = ortopt("bench", "plain.onnx", "--provider", named, code=1)
        assert "CUDAExecutionProvider does not work here, and cannot be measured" in done.stderr
