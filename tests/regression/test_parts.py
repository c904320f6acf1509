"""Thresholds, manifests, names, shards and intervals, each by itself."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from ortopt.api import make_options
from ortopt.errors import InvalidModelError, UsageError
from ortopt.measurement.pairs import interval
from ortopt.regression import manifest, shards, sources, thresholds
from ortopt.regression.baseline import Baseline
from ortopt.regression.case import Case, Settings
from ortopt.regression.comparison import compare
from ortopt.regression.facts import Facts
from ortopt.regression.results import Shard
from ortopt.regression.thresholds import DEFAULTS, Threshold


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (3, 103),
        ("3", 103),
        ("5%", 105),
        ("2x", 200),
        ("5% + 10", 115),
        ("1.5x + 1kB", 1150),
        ("off", math.inf),
        (0, 100),
    ],
)
def test_thresholds_are_read(value: object, limit: float) -> None:
    assert thresholds.parse("nodes", value).limit(100) == pytest.approx(limit)


@pytest.mark.parametrize("value", ["", "many", "5 %%", "-1", -1, True, None, "0.5x", math.nan, math.inf, "1 apple"])
def test_what_is_no_threshold(value: object) -> None:
    with pytest.raises(UsageError, match="threshold of nodes"):
        thresholds.parse("nodes", value)


def test_defaults_are_read_as_they_are_written() -> None:
    for threshold in DEFAULTS.values():
        assert thresholds.parse("nodes", str(threshold)) == threshold or not threshold.compares


MANIFEST = """
models = ["a", "zoo:lstm*"]
baseline = "base.json"
[defaults]
level = 2
provider = "cpu"
dim = { batch = 1 }
max-growth = "1MB"
thresholds = { nodes = "5%" }
[[model]]
match = "*"
thresholds = { size = "off" }
[[model]]
match = "a/b*"
level = 1
inputs = "b.npz"
disable = "cast_elimination, reshape_merging"
skip = "too large"
"""


def test_a_manifest_is_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(MANIFEST)
    read = manifest.read(tmp_path / "m.toml")
    first, second = (
        read.settings(name, "", {"options": {"level": 3, "steps": 2}}) for name in ("a/a.onnx", "a/b.onnx")
    )
    assert first.options == {"level": 3, "providers": ["cpu"], "dims": {"batch": 1}, "max_growth": "1MB", "steps": 2}
    assert second.options["level"] == 1  # what is said of a model beats the command line, which beats the defaults
    assert second.options["disable"] == ["cast_elimination", "reshape_merging"]
    assert (second.inputs, second.skip, first.skip) == (str(tmp_path / "b.npz"), "too large", "")
    assert second.thresholds["nodes"] == Threshold(1.05)
    assert not second.thresholds["size"].compares
    assert second.thresholds["error"] == DEFAULTS["error"]


WRONG = {
    "knows no 'level'": "level = 3",
    "knows no 'speed'": "[defaults]\nspeed = 3",
    "level": "[defaults]\nlevel = 7",
    "there is no threshold 'node'": "[defaults]\nthresholds = { node = 3 }",
    "match": "[[model]]\nlevel = 3",
    "there is no configuration 'fast'": "[[model]]\nmatch = 'x'\nconfiguration = 'fast'",
    "models is a list": "models = 'x'",
    "the reason": "[[model]]\nmatch = 'x'\nexpect_failure = true",
    "knows no 'timeout'": "[defaults]\ntimeout = 3",
    "true, false, or the reason": "[defaults]\naccept-changes = 3",
    "removed \\(the reason\\)": "[[model]]\nmatch = 'x'\nremoved = true",
    "says max_growth twice": "[defaults]\nmax-growth = 1\nmax_growth = 2",
}


def test_a_manifest_that_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text("models = [")
    with pytest.raises(InvalidModelError, match="no manifest: "):
        manifest.read(tmp_path / "m.toml")


@pytest.mark.parametrize("because", WRONG)
def test_what_a_manifest_cannot_say(because: str, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(WRONG[because])
    with pytest.raises(UsageError, match=because) as caught:
        manifest.read(tmp_path / "m.toml")
    assert "m.toml" in str(caught.value)


def test_names_do_not_depend_on_how_models_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zoo/a.onnx", "zoo/sub/b.onnx", "zoo/.hidden/c.onnx", "zoo/sub/readme.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    expected = ["zoo/a.onnx", "zoo/sub/b.onnx"]
    ways = (["zoo"], ["./zoo/"], [str(tmp_path / "zoo")], ["zoo/**/*.onnx"], ["zoo/a.onnx", "zoo/sub"])
    for arguments in ways:
        assert [case.name for case in sources.cases(arguments, {})[0]] == expected
    (tmp_path / "zoo" / manifest.NAME).write_text("")
    assert [case.name for case in sources.cases(["zoo"], {})[0]] == ["a.onnx", "sub/b.onnx"]
    monkeypatch.chdir(tmp_path / "zoo" / "sub")
    assert [case.name for case in sources.cases([str(tmp_path / "zoo" / "a.onnx")], {})[0]] == ["a.onnx"]


def test_the_zoo_is_a_zoo() -> None:
    names = [case.name for case in sources.cases(["zoo:bert*"], {})[0]]
    assert "zoo:bert_small__ts17" in names
    assert all(name.startswith("zoo:bert") for name in names)


def cases(*names: str) -> list[Case]:
    return [Case(name, "", Path(name), Settings()) for name in names]


def test_shards_are_balanced_and_stable() -> None:
    names = [f"m{number}" for number in range(40)]
    costs = Baseline({}, {name: {"seconds": float(1 + number % 7)} for number, name in enumerate(names)})
    parts = [shards.part_of(cases(*names), Shard(number, 3), costs) for number in (1, 2, 3)]
    assert sorted(case.name for part in parts for case in part) == sorted(names)
    loads = [sum(costs.models[case.name]["seconds"] for case in part) for part in parts]
    assert max(loads) - min(loads) <= 1
    more = [shards.part_of(cases(*reversed(names), "new"), Shard(number, 3), costs) for number in (1, 2, 3)]
    for part, with_new in zip(parts, more, strict=True):
        assert {case.name for case in part} == {case.name for case in with_new} - {"new"}


def test_the_dearest_begin_first() -> None:
    costs = Baseline({}, {"a": {"seconds": 1.0}, "b": {"seconds": 9.0}, "c": {"seconds": 5.0}})
    assert [case.name for case in shards.dearest_first(cases("a", "b", "c", "new"), costs)] == ["b", "c", "new", "a"]


def test_an_interval_holds_the_median_as_often_as_it_says() -> None:
    assert interval([1.0]) == (1.0, 1.0, 1.0)
    assert interval([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0)
    draws = np.random.default_rng(0).lognormal(size=(2000, 9))
    held = [low <= 1 <= high for low, _, high in map(interval, draws.tolist())]
    assert 0.95 <= np.mean(held) <= 0.98
    low, _, high = interval(draws[0].tolist())
    assert min(draws[0]) < low < high < max(draws[0])


FACTS: Facts = {"model": "m", "options": "", "verified": "verified", "nodes": 10, "size": 1000, "result": "r"}
FUSED = {**FACTS, "ops": {"LN": 5, "Add": 5}, "fused": {"LN": 5}}


def kinds(now: Facts, before: Facts, *, same: bool = True) -> dict[str, str]:
    return {row.fact: row.kind for row in compare(now, before, DEFAULTS, same_versions=same)}


def test_fused_further_is_no_loss() -> None:
    further = {**FUSED, "nodes": 6, "ops": {"Skip": 5, "Add": 1}, "fused": {"Skip": 5}}
    assert kinds(further, FUSED) == {"nodes": "better", "fused.LN": "note", "fused.Skip": "better"}
    assert kinds({**further, "nodes": 10}, FUSED)["fused.LN"] == "worse"
    assert kinds({**further, "fused": {"Skip": 4}}, FUSED)["fused.LN"] == "worse"


def test_other_bytes_are_told_where_versions_are_the_same() -> None:
    assert kinds({**FACTS, "result": "s"}, FACTS) == {"result": "note"}
    assert kinds({**FACTS, "result": "s"}, FACTS, same=False) == {}


def test_what_is_no_longer_verified_is_worse_whatever_else_changed() -> None:
    assert kinds({**FACTS, "verified": "impossible", "options": "-O1"}, FACTS) == {
        "verified": "worse",
        "options": "note",
    }
    assert kinds({**FACTS, "verified": "not asked for", "options": "--no-verify"}, FACTS)["verified"] == "worse"
    assert kinds(FACTS, {**FACTS, "verified": "impossible"}) == {"verified": "better"}


def test_an_error_that_is_no_number_is_worse_than_all() -> None:
    assert kinds({**FACTS, "error": "inf", "bound": 1e-4}, {**FACTS, "error": 1e-6}) == {"error": "worse"}


def test_the_interface_is_held() -> None:
    assert kinds({**FACTS, "inputs": ["x: float[1]"]}, {**FACTS, "inputs": ["x: float[N]"]}) == {"inputs": "worse"}


def test_a_manifest_gives_shapes_and_names(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(
        """
        [defaults]
        input-shape = "x=1,_,8"
        value-info = true

        [[model]]
        match = "b.onnx"
        input_shapes = { y = [2, 3] }
        rename = { y = "z" }
        """
    )
    read = manifest.read(tmp_path / "m.toml")
    assert read.settings("a.onnx", "", {}).options == {"input_shapes": "x=1,_,8", "value_info": True}
    given = read.settings("b.onnx", "", {}).options
    assert given == {"input_shapes": {"y": [2, 3]}, "value_info": True, "rename": {"y": "z"}}
    assert make_options(**given).input_shapes == {"y": (2, 3)}
    (tmp_path / "m.toml").write_text('[defaults]\ninput-shape = "x=wrong"')
    with pytest.raises(UsageError, match="input_shapes takes sizes"):
        manifest.read(tmp_path / "m.toml")


def test_patterns_of_which_there_is_no_model_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"")
    (tmp_path / "m.toml").write_text(
        """
        models = ["a.onnx", "none*.onnx"]
        [[model]]
        match = "a.*"
        level = 1
        [[model]]
        match = "b*"
        level = 1
        [[model]]
        match = "c*"
        removed = "it is no longer trained"
        """
    )
    idle = sources.cases([str(tmp_path / "m.toml")], {}).idle()
    assert [text.partition("': ")[2] for text in idle] == [
        "there is no model in 'none*.onnx'",
        "[[model]] 'b*' matches no model",
    ]
    assert list(sources.cases([str(tmp_path / "a.onnx")], {}).idle()) == []
