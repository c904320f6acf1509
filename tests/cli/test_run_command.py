"""``ortopt run``: outputs, figures, traces, and an exit code that says whose mistake it was."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

ROOT = Path(__file__).parents[2]
GROUPED = """<ir_version: 10, opset_import: ["" : 17, "ortopt.group" : 1]>
main (float[N,4] x) => (float[N,4] y, float[N,4] t) <float[4] w = {1, 2, 3, 4}, float[N,4] a> {
    a = ortopt.group.group_0 (x, w)
    t = Neg (a)
    y = ortopt.group.group_1 (t, a, w)
}
<domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p, q) => (r) { s = Add (p, q) r = Relu (s) }
<domain: "ortopt.group", opset_import: ["" : 17]> group_1 (p, o, q) => (r) { s = Mul (p, q) r = Add (s, o) }
"""
HEAD = '<ir_version: 9, opset_import: ["": 17]>'
TEXTS = {
    "grouped": GROUPED,
    "plain": f"{HEAD} main (float[N,4] x) => (float[N,4] file) {{ file = Neg (x) }}",
    "square": f"{HEAD} main (float[N] x) => (float[M] y) {{ s = Constant <value_ints = [57]> () y = Reshape (x, s) }}",
    "missing": f"{HEAD} main (float[N] x) => (float[N] y) {{ y = NoSuchOp (x) }}",
    "text": f"{HEAD} main (string[N] s) => (string[N] t) {{ t = Identity (s) }}",
    "half": f"{HEAD} main (float[N] x) => (bfloat16[N] y) {{ y = Cast <to = 16> (x) }}",
    "list": f"{HEAD} main (float[N] x) => (seq(float[M]) y) {{ y = SequenceConstruct (x, x) }}",
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return tmp_path


def test_a_table(ortopt: Any, files: Path) -> None:
    done = ortopt("run", "grouped.onnx", "--repeat", 4, "--dim", "N=3")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "name type shape min mean max"
    for line, start in zip(lines[1:], ("input x float32 [3, 4]", "output y float32 [3, 4]", "output t"), strict=False):
        assert re.fullmatch(rf"{re.escape(start)}.*( -?[\d.]+){{3}}", line)
    assert any(line.startswith("3 more runs: median ") and "quartiles" in line for line in lines)
    assert "3 groups on CPUExecutionProvider" in lines
    assert lines[-1].startswith("runs 4, group runs 12, hits 9, misses 3, compiles 3, copies 0, fallbacks 0")
    assert done.stderr == ""


def test_what_a_plain_session_counted_is_shown_on_request(ortopt: Any, files: Path) -> None:
    assert "compiles" not in ortopt("run", "plain.onnx").stdout
    assert ortopt("run", "plain.onnx", "-v").stdout.splitlines()[-1].startswith("runs 1, group runs 0, hits 0")


def test_outputs_are_shown_with_what_they_hold(ortopt: Any, files: Path) -> None:
    np.savez(files / "x.npz", x=np.array([[1, -3, np.nan, 4], [np.inf, 2, -np.inf, np.nan]], np.float32))
    lines = [" ".join(line.split()) for line in ortopt("run", "plain.onnx", "--inputs", "x.npz").stdout.splitlines()]
    assert lines[0] == "name type shape min mean max not finite"
    assert "output file float32 [2, 4] -4 -1 3 2 NaN, 2 inf" in lines
    assert "file: -1, 3, nan, -4, -inf, -2, inf, nan" in lines
    data = json.loads(ortopt("run", "plain.onnx", "--inputs", "x.npz", "--json").stdout)
    (row,) = data["outputs"]
    assert row["numbers"] == {"min": -4, "mean": -1, "max": 3, "nan": 2, "inf": 2}
    assert row["values"] == [-1, 3, "nan", -4, "-inf", -2, "inf", "nan"]


def test_inputs_have_representative_sizes_unless_others_are_asked_for(ortopt: Any, files: Path) -> None:
    text = f"{HEAD} main (float[N,3,H,W] x) => (float[N,3,H,W] y) {{ y = Neg (x) }}"
    (files / "image.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())

    def shape(*arguments: object) -> list[int]:
        found: list[int] = json.loads(ortopt("run", "image.onnx", "--json", *arguments).stdout)["inputs"][0]["shape"]
        return found

    assert shape() == [1, 3, 224, 224]
    assert shape("--dim-hint", "H=32..64,W=32") == [1, 3, 32, 32]
    assert shape("--dim", "H=5", "--input-shape", "x=2,_,_,7") == [2, 3, 5, 7]


def test_a_decoder_does_not_fill_the_screen(ortopt: Any, files: Path) -> None:
    names = [f"p{i}" for i in range(20)]
    inputs = ", ".join(f"float[N,4] {name}" for name in names)
    outputs = ", ".join(f"float[N,4] o{name}" for name in names)
    nodes = " ".join(f"o{name} = Neg ({name})" for name in names)
    text = f"{HEAD} main ({inputs}) => ({outputs}) {{ {nodes} }}"
    (files / "many.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    few, everything = (ortopt("run", "many.onnx", *more).stdout for more in ((), ("-v",)))
    assert "and 24 more inputs and outputs (-v)" in few.splitlines()
    assert (few.count("float32"), everything.count("float32")) == (16, 40)


def test_a_shape_is_drawn(ortopt: Any, files: Path) -> None:
    data = json.loads(ortopt("run", "plain.onnx", "--input-shape", "x=5,_", "--json").stdout)
    assert [row["shape"] for row in data["inputs"]] == [[5, 4]]


def test_where_groups_ran_is_said(ortopt: Any, files: Path) -> None:
    assert "3 groups on host" in ortopt("run", "grouped.onnx", "--run-type", "host").stdout.splitlines()
    assert "one session on CPUExecutionProvider" in ortopt("run", "plain.onnx").stdout.splitlines()


def test_data(ortopt: Any, files: Path) -> None:
    data = json.loads(ortopt("run", "grouped.onnx", "--json", "--repeat", 3).stdout)
    assert (data["schema"], data["model"]) == (1, "grouped.onnx")
    assert [one["name"] for one in data["groups"]] == ["group_0", "leftover_0", "group_1"]
    assert data["statistics"]["runs"] == 3
    seconds = data["seconds"]
    assert seconds["later"] == 2
    assert seconds["quartiles"][0] <= seconds["median"] <= seconds["quartiles"][1]
    assert json.loads(ortopt("run", "plain.onnx", "--json").stdout)["seconds"]["median"] is None


def test_what_was_specialized_is_written_for_any_runtime(ortopt: Any, files: Path) -> None:
    arguments = ("--dim", "N=3", "--repeat", 3, "--export-specialized", "special.onnx", "--specialize-constants")
    first = ortopt("run", "plain.onnx", *arguments, "--outputs", "a.npz")
    assert "wrote special.onnx: group_0_specialized" in " ".join(first.stdout.split())
    data = json.loads(ortopt("run", "special.onnx", "--dim", "N=3", "--outputs", "b.npz", "--json").stdout)
    assert data["statistics"]["specialized_runs"] == 1
    assert data["exported"] is None
    with np.load(files / "a.npz") as one, np.load(files / "b.npz") as other:
        assert (one["file"] == other["file"]).all()
    data = json.loads(ortopt("run", "special.onnx", "--dim", "N=4", "--json").stdout)
    assert data["statistics"]["guard_failures"] == 1
    data = json.loads(ortopt("run", "plain.onnx", "--specialize", 2, "--repeat", 3, "--json").stdout)
    assert data["statistics"]["specializations"] == 1


def test_outputs_are_those_of_the_inputs(ortopt: Any, files: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.savez(files / "x.npz", x=x)
    for run_type in ("ort", "reference", "host", "debug"):
        ortopt("run", "plain.onnx", "--inputs", "x.npz", "--outputs", "y.npz", "--run-type", run_type)
        with np.load(files / "y.npz", allow_pickle=False) as found:
            assert found.files == ["file"]  # a name that numpy.savez would not take
            np.testing.assert_array_equal(found["file"], -x)


def test_a_seed_draws_the_same_again(ortopt: Any, files: Path) -> None:
    def written(seed: int) -> Any:
        ortopt("run", "plain.onnx", "--outputs", "y.npz", "--seed", seed)
        with np.load(files / "y.npz") as found:
            return found["file"]

    assert (written(1) == written(1)).all()
    assert (written(1) != written(2)).any()


def test_types_that_numpy_lacks_and_strings_and_sequences_are_written(ortopt: Any, files: Path) -> None:
    np.savez(files / "x.npz", x=np.array([1, -2], np.float32))
    ortopt("run", "half.onnx", "--inputs", "x.npz", "--outputs", "y.npz", "--run-type", "host")
    with np.load(files / "y.npz") as found:
        assert found["y"].view(ml_dtypes.bfloat16).tolist() == [1, -2]
    np.savez(files / "s.npz", s=np.array(["a", "Zürich"]))
    ortopt("run", "text.onnx", "--inputs", "s.npz", "--outputs", "y.npz")
    with np.load(files / "y.npz") as found:
        assert found["t"].tolist() == ["a", "Zürich"]
    done = ortopt("run", "list.onnx", "--inputs", "x.npz", "--outputs", "y.npz")
    assert "sequence of 2" in done.stdout
    assert zipfile.ZipFile(files / "y.npz").namelist() == ["y.0.npy", "y.1.npy"]


def test_a_trace_loads_and_has_every_compile_and_run(ortopt: Any, files: Path) -> None:
    ortopt("run", "grouped.onnx", "--trace", "trace.json", "--repeat", 2)
    events = json.loads((files / "trace.json").read_text())["traceEvents"]
    kinds = [(event.get("cat"), event["name"]) for event in events]
    for name in ("group_0", "leftover_0", "group_1"):
        assert (kinds.count(("compile", name)), kinds.count(("run", name))) == (1, 2)
    assert kinds.count(("call", "run")) == 2


def test_a_trace_may_be_the_stream(ortopt: Any, files: Path) -> None:
    done = ortopt("run", "plain.onnx", "--trace", "-")
    assert len(json.loads(done.stdout)["traceEvents"]) == 3
    assert "one session on CPUExecutionProvider" in done.stderr


def test_stdin_and_the_zoo(ortopt: Any, files: Path) -> None:
    assert "output" in ortopt("run", "-", stdin=(files / "plain.onnx").read_bytes()).stdout
    assert "scores" in ortopt("run", "zoo:lstm_tagger__ts13").stdout


WRONG = {
    "no such input": {"z": np.zeros((2, 4), np.float32)},
    "one too many": {"x": np.zeros((2, 4), np.float32), "z": np.zeros(1)},
    "dtype": {"x": np.zeros((2, 4), np.int64)},
    "rank": {"x": np.zeros(4, np.float32)},
    "size": {"x": np.zeros((2, 5), np.float32)},
}


@pytest.mark.parametrize("name", ["plain", "grouped"])
@pytest.mark.parametrize("case", WRONG)
def test_inputs_that_do_not_fit_are_1(ortopt: Any, files: Path, case: str, name: str) -> None:
    np.savez(files / "x.npz", **WRONG[case])
    done = ortopt("run", f"{name}.onnx", "--inputs", "x.npz", "--outputs", "y.npz", code=1)
    assert done.stderr.startswith(f"ortopt: the inputs do not fit {name}.onnx: ")
    assert done.stderr.count("\n") == 1
    assert not (files / "y.npz").exists()


def test_a_group_that_differs_is_3(ortopt: Any, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortopt.runtime.debugging.difference", lambda *_, **__: "it is another")
    assert "it is another" in ortopt("run", "grouped.onnx", "--run-type", "debug", code=3).stderr


def test_onnx_runtime_does_not_add_lines_of_its_own(files: Path) -> None:
    for name in ("square", "missing"):
        done = subprocess.run(
            [sys.executable, "-m", "ortopt", "run", f"{name}.onnx"],
            cwd=files,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.startswith("ortopt: ")
        assert done.stderr.count("\n") == 1


def test_a_provider_that_is_not_there_is_left_out_with_a_warning(
    ortopt: Any, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ortopt.runtime import session_factory

    monkeypatch.setattr(session_factory, "usable", lambda name: (name == "CPUExecutionProvider", "nobody has one"))
    done = ortopt("run", "plain.onnx", "--provider", "cuda,cpu")
    assert done.stderr.startswith("ortopt: warning: CUDAExecutionProvider does not work here: nobody has one")
    assert done.stderr.count("\n") == 1
    assert ortopt("run", "plain.onnx", "--provider", "cuda", code=1).stderr.count("\n") == 1
