"""A part of the zoo is as good as models/baseline.json says (`make zoo` checks all of it)."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from ortopt import zoo
from ortopt.cli.group import commands

FOLDER = Path(__file__).parents[2] / "models"
PART = ("lstm_tagger__ts13", "control_flow__script17", "greedy_loop__script17")
MANIFEST = """
models = {models}
baseline = "{baseline}"
[defaults.thresholds]
seconds = "off"
memory = "off"
{configurations}"""


def test_the_baseline_has_every_model_in_every_configuration() -> None:
    manifest = tomllib.loads((FOLDER / "ortopt-zoo.toml").read_text(encoding="utf-8"))
    names = {f"zoo:{name} [{key}]" for name in zoo.names() for key in manifest["configurations"]}
    known = json.loads((FOLDER / manifest["baseline"]).read_text(encoding="utf-8"))["models"]
    assert {name for name in names if "zoo:light_" not in name} <= known.keys()
    assert {facts["verified"] for facts in known.values()} <= {"verified", "not shown"}
    assert [facts["options"] for name, facts in known.items() if name.startswith("zoo:swin")] == [
        "-O1 --target onnx",
        "-O2",
        "",
        "-O4",
    ]


@pytest.mark.slow
@pytest.mark.processes
def test_a_part_is_as_good(tmp_path: Path) -> None:
    text = (FOLDER / "ortopt-zoo.toml").read_text(encoding="utf-8")
    configurations = text[text.index("[configurations") :]
    models = [f"zoo:{name}" for name in PART]
    path = tmp_path / "part.toml"
    path.write_text(MANIFEST.format(models=models, baseline=FOLDER / "baseline.json", configurations=configurations))
    done = CliRunner().invoke(commands, ["check", str(path), "-q"])
    assert done.exit_code == 0, done.output
