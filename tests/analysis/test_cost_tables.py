"""A table of the caller's counts before the one that ships."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ortopt import registry
from ortopt.analysis import costs
from ortopt.analysis.cost_tables import read_file, table_for, table_of
from ortopt.analysis.costs import Form, Verdict
from ortopt.analysis.kernels import CPU
from ortopt.errors import InvalidModelError
from ortopt.options import MEASURED_TARGETS, Options, Target

ROW = {"op": "Gelu", "provider": CPU, "verdict": "loses", "speed": [0.5, 0.6], "instead_of": "its parts", "source": "s"}


def written(folder: Path, **changed: Any) -> str:
    table = {"name": "mine", "sources": {"s": "made up"}, "costs": [ROW], **changed}
    path = folder / "mine.json"
    path.write_text(json.dumps(table))
    return str(path)


def test_without_a_file_it_is_the_one_that_ships() -> None:
    assert table_of(None) is costs.shipped()


def test_what_the_file_knows_counts_and_of_the_rest_what_ships(tmp_path: Path) -> None:
    table = table_of(written(tmp_path))
    gelu = table.find(Form("", "Gelu"), CPU)
    assert gelu is not None
    assert gelu.verdict is Verdict.LOSES
    assert table.find(Form("", "Attention"), CPU) is costs.shipped().find(Form("", "Attention"), CPU)
    assert table.name == "mine"
    assert table.over is costs.shipped()
    assert read_file(written(tmp_path)).over is None


def test_of_a_range_of_sizes_that_the_file_does_not_know_what_ships_counts(tmp_path: Path) -> None:
    form = Form("com.microsoft", "BiasGelu")
    row = {**ROW, "op": str(form), "at": {"rows": [0, 1]}}
    table = table_of(written(tmp_path, costs=[row]))
    few, many = (table.find(form, CPU, [{"rows": count}]) for count in (1, 7))
    assert few is table.own[0]
    assert many is costs.shipped().find(form, CPU, [{"rows": 7}])


def test_a_copy_of_what_ships_is_what_ships(tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    copy.write_bytes((Path(costs.__file__).with_name("data") / "costs.json").read_bytes())
    assert table_of(str(copy)) is costs.shipped()


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    first = table_of(written(tmp_path))
    assert table_of(written(tmp_path, name="another one")).name == "another one"
    assert first.name == "mine"


BROKEN: dict[str, dict[str, Any]] = {
    "Expected `str`, got `int` - at `name`": {"name": 3},
    "Expected `array`, got `object` - at `costs`": {"costs": {}},
    "Expected `object`, got `int` - at `costs[0]`": {"costs": [3]},
    "Expected `str`, got `null` - at `costs[0].op`": {"costs": [{**ROW, "op": None}]},
    "Invalid enum value 'wins' - at `costs[0].verdict`": {"costs": [{**ROW, "verdict": "wins"}]},
    "Expected `int`, got `str` - at `measured.threads`": {"measured": {"threads": "many"}},
    "row 1 names the source 'x'": {"costs": [{**ROW, "source": "x"}]},
    "row 1 has a speed that is not two positive numbers": {"costs": [{**ROW, "speed": [2, 1]}]},
    "row 1 has sizes that are not two numbers": {"costs": [{**ROW, "at": {"rows": [3, 2]}}]},
}


@pytest.mark.parametrize("because", BROKEN)
def test_a_file_that_is_no_table(tmp_path: Path, because: str) -> None:
    with pytest.raises(InvalidModelError, match=re.escape(f"no table of costs: {because}")):
        table_of(written(tmp_path, **BROKEN[because]))


def test_a_file_that_is_no_json_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{")
    with pytest.raises(InvalidModelError, match="no table of costs"):
        table_of(str(tmp_path / "x"))
    with pytest.raises(InvalidModelError, match="No such file"):
        table_of(str(tmp_path / "y"))


@pytest.mark.parametrize("target", [target for target in MEASURED_TARGETS if target is not Target.ORT])
def test_forms_for_another_runtime_have_been_measured_there(target: Target) -> None:
    table = costs.of_target(target)
    assert table is not None
    known = {cost.key for cost in table.own}
    meant = [kind for kind in registry.installed() if kind.targets == MEASURED_TARGETS]
    asked = {Form(*form) for kind in meant for form in kind.weighs}
    assert asked
    rows = {cost.key for cost in costs.shipped().own if cost.form in asked and cost.provider == CPU}
    assert rows <= known, "run: python -m tools.measure_targets TARGET RUNTIME --forms NAME"


def test_other_targets_have_no_table_of_their_own() -> None:
    assert costs.of_target(Target.ORT) is None
    assert costs.of_target(Target.MOBILE) is None


def test_what_loses_on_the_web_loses_for_that_target_alone() -> None:
    form, sizes = (
        Form("", "MatMul", "in place of DFT of a power of two"),
        {"columns": 256, "rows": 512, "components": 1},
    )
    native, web = (table_for(Options(target=target)).find(form, CPU, [sizes]) for target in (Target.ORT, Target.WEB))
    assert native is not None
    assert web is not None
    assert (native.verdict, web.verdict) == (Verdict.PAYS, Verdict.LOSES)
    assert web.speed is not None
    assert web.speed[0] < 1


def test_what_is_not_known_of_another_runtime_is_not_taken() -> None:
    form = Form("", "Conv", "in place of STFT")  # OpenVINO refuses what it stands for
    native, there = (table_for(Options(target=target)).find(form, CPU) for target in (Target.ORT, Target.OPENVINO))
    assert native is not None
    assert there is not None
    assert (native.verdict, there.verdict) == (Verdict.PAYS, Verdict.UNKNOWN)


def test_what_was_measured_on_the_web_takes_the_place_of_what_was_measured_elsewhere() -> None:
    form, sizes = Form("", "MatMul", "of the points of tiles of 6×6"), {"channels": 64, "outputs": 64, "pixels": 3136}
    native, web = (table_for(Options(target=target)).find(form, CPU, [sizes]) for target in (Target.ORT, Target.WEB))
    assert native is not None
    assert web is not None
    assert (native.verdict, web.verdict) == (Verdict.LOSES, Verdict.PAYS)
