"""Ops of one's own: a library that is really compiled, and run by every command that runs models."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ortopt import optimize
from ortopt.errors import UsageError

SOURCE = Path(__file__).parents[1] / "data" / "custom_op.c"
COMPILER = shutil.which("cc")
MODEL = """<ir_version: 9, opset_import: ["": 17, "my.domain": 1]> main (float[N,4] x) => (float[N,4] y) {
    i = Identity (x) d = my.domain.Double (i) e = Neg (d) f = Neg (e) y = Relu (f) }"""
FLAG = "--custom-op-library"

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C compiler is here"), pytest.mark.processes]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("custom") / "libdouble.so"
    assert COMPILER is not None
    subprocess.run([COMPILER, "-w", "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(path)], check=True)
    return path


@pytest.fixture
def custom(tmp_path: Path) -> Path:
    path = tmp_path / "custom.onnx"
    path.write_bytes(onnx.parser.parse_model(MODEL).SerializeToString())
    return path


def test_a_result_with_such_an_op_is_verified_and_the_op_is_kept(ortopt: Any, custom: Path, library: Path) -> None:
    without = json.loads(ortopt("optimize", custom, "-o", "out.onnx", "--json", "-").stdout)
    assert without["verified"] is False
    data = json.loads(ortopt("optimize", custom, "-o", "out.onnx", FLAG, library, "--json", "-").stdout)
    assert data["verified"] is True
    assert data["nodes"]["by_op"]["my.domain::Double"] == {"before": 1, "after": 1}
    assert data["nodes"]["after"] == 4
    assert data["options"]["custom_op_libraries"] == [str(library)]
    assert [node.op_type for node in onnx.load("out.onnx").graph.node] == ["Double", "Neg", "Neg", "Relu"]


def test_verify_run_and_bench_run_it(ortopt: Any, custom: Path, library: Path) -> None:
    ortopt("optimize", custom, "-o", "out.onnx", "--no-verify", "-q")
    assert "verified" in ortopt("verify", custom, "out.onnx", FLAG, library).stdout
    assert "the models could not be compared" in ortopt("verify", custom, "out.onnx", code=2).stderr
    assert "output   y" in ortopt("run", custom, FLAG, library).stdout
    effort = ("--rounds", 1, "--repeat", 1, "--threads", 1, "--levels", "0,3")
    data = json.loads(ortopt("bench", custom, FLAG, library, *effort, "--profile", "--json").stdout)
    assert [row["error"] for row in data["models"][0]["versions"]] == [None, None]
    assert {"Double", "Relu"} <= {row["op"].rpartition("::")[2] for row in data["models"][0]["profile"]["result"]}


def test_groups_beside_such_an_op_run(ortopt: Any, custom: Path, library: Path) -> None:
    """Behind the op there are groups where the file says what it gives: otherwise no type is known there."""
    typed = MODEL.replace("y) {", "y) <float[N,4] d> {")
    custom.write_bytes(onnx.parser.parse_model(typed).SerializeToString())
    ortopt("optimize", custom, "-o", "out.onnx", "-O4", "--group-policy", "literal", FLAG, library, "-q")
    assert "verified" in ortopt("verify", custom, "out.onnx", FLAG, library).stdout
    answers = []
    for path in (custom, "out.onnx"):
        data = json.loads(ortopt("run", path, FLAG, library, "--outputs", "y.npz", "--json").stdout)
        answers.append(np.load("y.npz")["y"])
    assert len(data["groups"]) == 2
    np.testing.assert_array_equal(*answers)
    assert ortopt("run", "out.onnx", code=2).stderr.count("Double") == 1


def test_check_runs_it(ortopt: Any, custom: Path, library: Path) -> None:
    data = json.loads(ortopt("check", custom, FLAG, library, "-q", "--json", "-").stdout)
    assert data["models"][0]["facts"]["verified"] == "verified"


def test_the_library_call_takes_it(custom: Path, library: Path) -> None:
    assert optimize(custom, custom_op_libraries=[str(library)]).verified
    with pytest.raises(UsageError, match="takes a list of files"):
        optimize(custom, custom_op_libraries=str(library))


def test_a_library_that_is_not_there_is_told_before_the_work(ortopt: Any, custom: Path) -> None:
    for command in (("optimize", custom), ("verify", custom, custom), ("run", custom), ("bench", custom)):
        assert "there is no file 'nowhere.so'" in ortopt(*command, FLAG, "nowhere.so", code=1).stderr


def test_what_is_no_library_is_the_reason_why_nothing_is_verified(ortopt: Any, custom: Path) -> None:
    Path("text.so").write_text("this is no library")
    done = ortopt("optimize", custom, "-o", "out.onnx", FLAG, "text.so")
    assert "could not be verified" in done.stderr
    assert "text.so" in done.stderr
