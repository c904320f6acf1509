"""A real plug-in package, installed: the command line lists its pass and runs it; a broken one is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from ortopt.serialization.save import save
from ortopt.testing import parse

pytestmark = pytest.mark.xdist_group("plug-in")  # what they share is costly

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plug-in installed in it, as pip would."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--disable-pip-version-check", "--target", str(folder), str(ROOT / "tests" / "plugin")]
    subprocess.run(command, check=True)
    return folder


def ortopt(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    return subprocess.run(
        [sys.executable, "-m", "ortopt", *arguments], capture_output=True, text=True, env=environment, check=False
    )


def test_the_command_line_lists_the_plug_ins_pass(site: Path) -> None:
    done = ortopt(site, "passes", "abs_abs_elimination", "--json")
    assert done.returncode == 0, done.stderr
    assert "ortopt-example-plugin" in done.stdout
    assert "Abs(Abs(x))" in json.dumps(json.loads(done.stdout))


def test_the_command_line_runs_the_plug_ins_pass(site: Path, tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    save(parse("main (float[N] x) => (float[N] y) { a = Abs (x) b = Abs (a) y = Neg (b) }"), source)
    done = ortopt(site, "optimize", str(source), "-o", str(tmp_path / "out.onnx"), "--only", "AbsAbsElimination")
    assert done.returncode == 0, done.stderr
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == ["Abs", "Neg"]


def test_a_plug_in_that_does_not_load_costs_only_itself(site: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken_plugin-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[ortopt.transformers]\nbroken = no_such_module:Pass\n")
    done = ortopt(tmp_path, "passes")
    assert done.returncode == 0, done.stderr
    assert "identity_elimination" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("ortopt: warning: the plug-in broken-plugin (broken = no_such_module:Pass) is left out: ")
    assert "No module named 'no_such_module'" in line


def test_of_a_plug_in_only_what_is_wrong_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "odd_plugin.py").write_text(
        "from ortopt import GraphTransformer\n"
        "class OddOne(GraphTransformer):\n    'Nothing becomes of it.'\n"
        "    def apply(self, graph, context): return False\n"
        "Passes = (OddOne, 'no class', OddOne)\n"
    )
    info = tmp_path / "odd_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ortopt.transformers]\nodd = odd_plugin:Passes\n")
    done = ortopt(tmp_path, "passes", "odd_one", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "odd_one"
    said = done.stderr.splitlines()
    assert "'no class' is no GraphTransformer class" in said[0]
    assert "two transformers are named odd_one" in said[1]
