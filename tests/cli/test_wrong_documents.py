"""JSON and TOML with a wrong value in any place: one line and exit code 2, or the meaning that it had."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import onnx_ir as ir
import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from ortopt import api, registry
from ortopt.analysis.cost_tables import read_file
from ortopt.cli import check_run
from ortopt.cli.group import commands
from ortopt.errors import InvalidModelError, UsageError
from ortopt.measurement.choices import Choices, read_choices
from ortopt.options import Fusions, March, declarations
from ortopt.partition.groups import GUARD_KEY, ORIGIN_KEY, PROVIDER_KEY, WEIGHTS_KEY, groups_of
from ortopt.regression import baseline as baselines
from ortopt.regression import facts, results
from ortopt.regression import manifest as manifests
from ortopt.regression.check import Journal
from ortopt.regression.comparison import compare
from ortopt.regression.model_run import Answer
from ortopt.regression.pool import Job
from ortopt.regression.results import Check, Shard, Status
from ortopt.regression.results import Result as CheckResult
from ortopt.regression.thresholds import DEFAULTS
from tests.regression.facts import WHOLE

DEEP: Final = 100_000
WRONG: Final = {
    "null": "null",
    "a list": "[1]",
    "an object": '{"a": 1}',
    "a text": '"x"',
    "a number": "7",
    "a fraction": "7.5",
    "a negative number": "-1",
    "true": "true",
    "NaN": "NaN",
    "infinity": "-Infinity",
    "no float": "1e999",
    "a huge integer": "1" + "0" * 400,
    "an integer of too many digits": "1" * 5000,
    "half a letter": '"\\ud800"',
    "nested lists": "[" * DEEP + "]" * DEEP,
    "nested objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "open lists": "[" * DEEP,
}
KINDS: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "a list": (list,),
    "an object": (dict,),
    "a text": (str,),
    "a number": (int, float),
    "a fraction": (float,),
    "true": (bool,),
}
"""What is no wrong type in the place of a value of one of these."""


def paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places in a document."""
    yield path
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from paths(value, (*path, key))


def at(data: Any, path: Sequence[Any]) -> Any:
    for key in path:
        data = data[key]
    return data


def texts(data: Any) -> Iterator[tuple[tuple[Any, ...], str, str]]:
    """A document with a wrong value in each place, and with each key twice: the place, what is wrong, the text."""
    for path in paths(data):
        value = at(data, path)
        for name, wrong in WRONG.items():
            if type(value) not in KINDS.get(name, ()):
                yield path, name, with_text(data, path, wrong)
        if path and isinstance(path[-1], str):
            twice = json.dumps(value)
            yield path, "a key twice", with_text(data, path, f"{twice}, {json.dumps(path[-1])}: {twice}")


def taken(data: Any, path: Path, read: Callable[[Path], Any], reason: str) -> tuple[list[tuple[Any, str, Any]], int]:
    """Wrong documents that are read all the same: the place, what is wrong, what is read; and how many are refused."""
    found, refused = [], 0
    for place, wrong, text in texts(data):
        path.write_text(f"{text}\n")
        try:
            found.append((place, wrong, read(path)))
        except InvalidModelError as error:
            assert reason in str(error)
            refused += 1
    return found, refused


def with_text(data: Any, path: Sequence[Any], text: str) -> str:
    """A document as text, with another text in one place."""
    if not path:
        return text
    changed = copy.deepcopy(data)
    at(changed, path[:-1])[path[-1]] = "@HERE@"
    return json.dumps(changed).replace('"@HERE@"', text)


REGRESSED: Final[dict[str, Any]] = {
    "verified": "impossible",
    "inputs": ["x: float[N,9]"],
    "outputs": ["z: float[N,8]"],
    "nodes": 101,
    "blocks": {"attention": {"found": 12, "fused": 0}, "normalization": {"found": 25, "fused": 0}},
    "fused": {},
    "size": 2_000_000,
    "error": 1e-4,
    "repairs": {"wrong_fusion": 9},
    "failures": {"failing_fusion": 9},
    "seconds": 1000.0,
    "memory": 3_000_000_000,
    "latency": {"ratio": 2.0, "low": 1.9, "high": 2.1, "rounds": 9},
}


class Given:
    """Answers each order with the same facts, and optimizes nothing."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.ran = 0
        self._answer = answer

    def run(self, jobs: Sequence[Job], done: Callable[..., None], begun: Callable[..., None]) -> None:
        for job in jobs:
            self.ran += 1
            done(job, Answer(copy.deepcopy(self._answer), None, ""))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.onnx").write_bytes(b"it is never read")
    return tmp_path / "a.onnx"


def answering(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> Given:
    given = Given(answer)
    monkeypatch.setattr(check_run, "Pool", lambda *_, **__: given)
    return given


def invoke(*words: str) -> Result:
    done = CliRunner().invoke(commands, [*words])
    assert done.exit_code != 70, done.stderr
    if done.exit_code in (1, 2):
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("ortopt: "), done.stderr
        assert len(done.stderr) < 1000
    return done


def baseline() -> dict[str, Any]:
    return {"schema": 1, "versions": facts.versions(), "models": {"a.onnx": copy.deepcopy(WHOLE)}}


def test_a_baseline(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps(baseline()))
    assert baselines.read(path).models == {"a.onnx": WHOLE}
    found, refused = taken(baseline(), path, baselines.read, "b.json': no baseline of ortopt check: ")
    for place, wrong, read in found:
        assert (place[-1], wrong) == ("bound", "null"), (place, wrong)
        assert read.models["a.onnx"] == {**WHOLE, "bound": None}
    assert refused > 700


@pytest.mark.parametrize("fact", REGRESSED)
def test_a_figure_of_a_wrong_type_switches_no_comparison_off(fact: str, tmp_path: Path) -> None:
    """Each comparison finds its regression; with a wrong value below the fact it does, or the baseline is refused."""
    now = {**WHOLE, fact: REGRESSED[fact], "ops": {"Add": 90, "MatMul": 10} if fact == "fused" else WHOLE["ops"]}

    def is_worse(text: str) -> bool:
        (tmp_path / "b.json").write_text(text)
        before = baselines.read(tmp_path / "b.json").models["a.onnx"]
        return any(found.kind == "worse" for found in compare(now, before, DEFAULTS, same_versions=True))

    assert is_worse(json.dumps(baseline()))
    for place, wrong, text in texts(baseline()):
        if place[2:3] == (fact,):
            with contextlib.suppress(InvalidModelError):
                assert is_worse(text), (place, wrong)


def test_facts_that_every_result_has_may_not_be_missing(tmp_path: Path) -> None:
    for fact in facts.ALWAYS:
        data = baseline()
        del data["models"]["a.onnx"][fact]
        (tmp_path / "b.json").write_text(json.dumps(data))
        with pytest.raises(InvalidModelError, match=f"'a.onnx': there is no `{fact}`"):
            baselines.read(tmp_path / "b.json")


def test_a_part_of_a_zoo(tmp_path: Path) -> None:
    row = CheckResult("a.onnx", "a.onnx", "", Status.SAME, facts=WHOLE, seconds=1.0)
    data = Check((row,), {"onnx": "1"}, shard=Shard(1, 1)).as_dict()
    for follows in ("counts", "exit_code"):
        del data[follows]
    del data["models"][0]["failed"], data["models"][0]["usable"]
    nullable = {"shard", "facts", "bound"}
    found, refused = taken(data, tmp_path / "1.json", results.read, "1.json': no results of ortopt check: ")
    for place, wrong, _ in found:
        is_text = at(data, place) is None and wrong == "a text"
        assert is_text or (wrong == "null" and place[-1] in nullable), (place, wrong)
    assert refused > 800


def test_a_journal(tmp_path: Path) -> None:
    """A line that is cut off is ignored, and so is one of other versions, or of another order: the model runs again."""
    path, versions, order = tmp_path / "j.jsonl", {"onnx": "1"}, {"name": "a.onnx", "path": "a.onnx", "options": {}}
    answer = Answer(WHOLE, None, "")
    journal = Journal(path, versions)
    journal.add(order, answer)
    journal.close()
    line = path.read_text()

    def read(path: Path) -> Any:
        with contextlib.closing(Journal(path, versions)) as read:
            return read.answer(order, WHOLE["model"])

    found, refused = taken(json.loads(line), path, read, "j.jsonl': no journal of ortopt check: ")
    for place, wrong, known in found:
        is_other = known is None and (place[:1] == ("order",) or wrong == "open lists")
        is_text = (place, wrong) == (("answer", "error"), "a text")
        assert is_other or is_text or (place[-1], wrong) == ("bound", "null"), (place, wrong)
    assert refused > 700


CHOICES: Final = Choices(2, Fusions.ALL, ("gelu_fusion",), ("ensure_unique_dq",), ("Gelu",), march=March.NATIVE)


@pytest.mark.parametrize("is_report", [True, False])
def test_choices(is_report: bool, tmp_path: Path) -> None:
    data = {"choices": CHOICES.as_dict(), "more": 1} if is_report else CHOICES.as_dict()
    found, refused = taken(data, tmp_path / "c.json", read_choices, "has no choices")
    for place, wrong, read in found:
        assert structs.replace(read, for_threads=None) == CHOICES, (place, wrong)
        assert read == CHOICES or place[-1] == "for_threads"  # any number is one
    assert refused > 120


COSTS: Final = {
    "name": "mine",
    "sources": {"s": "made up"},
    "measured": {"onnxruntime": "1", "processor": "p", "threads": 1, "kernels": "k"},
    "costs": [
        {
            **{"op": "Gelu", "variant": "v", "provider": "CPUExecutionProvider", "verdict": "loses", "source": "s"},
            **{"speed": [0.5, 0.6], "instead_of": "its parts", "sizes": "any", "at": {"rows": [0, 4]}},
        }
    ],
}


def test_a_table_of_costs(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps(COSTS))
    meant = read_file(str(tmp_path / "c.json")).costs
    for path, wrong, text in texts(COSTS):
        (tmp_path / "c.json").write_text(text)
        allowed = (path[-1:] == ("speed",) or path[-2:] == ("rows", 1)) and wrong == "null"
        try:
            assert (read_file(str(tmp_path / "c.json")).costs == meant) != allowed, (path, wrong)
        except InvalidModelError as error:
            assert "no table of costs" in str(error)
            assert not allowed, (path, wrong)


def test_what_a_grouped_model_says_of_a_group() -> None:
    for key, data in ((ORIGIN_KEY, ["node", 3]), (GUARD_KEY, {"x": {"shape": [2]}})):
        for path, wrong, text in texts(data):
            value = ir.Value(name="x")
            body = ir.Graph([value], [value], nodes=[])
            function = ir.Function("ortopt.group", "group_0", "", graph=body, attributes=[])
            function.metadata_props.update({PROVIDER_KEY: "p", WEIGHTS_KEY: "0", key: text})
            call = ir.node("group_0", [ir.Value(name="a")], domain="ortopt.group")
            model = ir.Model(ir.Graph([], [], nodes=[call]), ir_version=10, functions=[function])
            try:
                groups_of(model)
            except InvalidModelError as error:
                assert re.search("metadata that cannot be read|no object", str(error)), (path, wrong)
            else:
                assert key == GUARD_KEY, (path, wrong)
                assert path, wrong  # what a guard promises is read where it is used: tests/runtime/ has that


@pytest.mark.parametrize("text", [WRONG["nested lists"], WRONG["nested objects"], WRONG["open lists"], "{", "\xff", ""])
def test_every_command_that_reads_a_document(text: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, WHOLE)
    model.with_name("d.json").write_bytes(text.encode("latin-1"))
    for words in (
        ("check", "a.onnx", "--baseline", "d.json"),
        ("check", "a.onnx", "--changed-since", "d.json"),
        ("check", "a.onnx", "--costs", "d.json"),
        ("check", "merge", "d.json"),
        ("optimize", "a.onnx", "--choices", "d.json"),
        ("optimize", "a.onnx", "--costs", "d.json"),
        ("explain", "a.onnx", "--costs", "d.json"),
        ("costs", "show", "--costs", "d.json"),
        ("costs", "compare", "shipped", "d.json"),
    ):
        assert invoke(*words).exit_code == 2, words


MANIFEST: Final = {
    "models": '["a.onnx"]',
    "baseline": '"none.json"',
    "defaults.level": "4",
    "defaults.provider": '"cpu"',
    "defaults.dims": "{ N = 4 }",
    "defaults.input_shapes": '"x=1,_"',
    "defaults.rename": '{ y = "z" }',
    "defaults.disable": '["gelu_fusion"]',
    "defaults.max_growth": '"1MB"',
    "defaults.steps": "3",
    "defaults.value_info": "true",
    "defaults.settings": "{ group_fusion = { policy = 'cost' } }",
    "defaults.thorough": "true",
    "defaults.inputs": '"a.npz"',
    "defaults.accept_changes": '"nightly"',
    "defaults.thresholds": '{ nodes = 3, size = "2%" }',
    "configurations.fast.level": "4",
    "model": '[{ match = "a.onnx", configuration = "fast", skip = "slow", removed = "old", expect_failure = "no" }]',
}
VALUES: Final = {
    **{"a list": "[1]", "a table": "{ a = 1 }", "a text": '"x"', "a number": "7", "true": "true", "NaN": "nan"},
    **{"infinity": "inf", "a date": "1979-05-27", "a huge integer": "1" + "0" * 400, "a long one": "1" * 5000},
    **{"nested lists": "[" * DEEP, "nested tables": "{a=" * DEEP, "a long key": f"{{ {'.'.join('a' * DEEP)} = 1 }}"},
}
SENSE: Final = {
    ("defaults.dims", "a table"),
    ("defaults.inputs", "a text"),
    ("defaults.accept_changes", "a text"),
    ("defaults.accept_changes", "true"),
    ("defaults.max_growth", "a number"),
    ("defaults.max_growth", "a huge integer"),
    ("defaults.steps", "a number"),
    ("defaults.steps", "a huge integer"),
    ("defaults.value_info", "true"),
    ("defaults.thorough", "true"),
}
"""Values that a manifest may have in these places."""


@pytest.mark.parametrize("name", MANIFEST)
def test_a_manifest(name: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no TOML is refused with 2; what makes no sense with 1, as any usage."""
    answering(monkeypatch, WHOLE)
    Path("none.json").write_text(json.dumps({"schema": 1, "models": {}}))
    for wrong, value in {"as it is": MANIFEST[name], **VALUES}.items():
        Path("m.toml").write_text("".join(f"{key} = {value if key == name else MANIFEST[key]}\n" for key in MANIFEST))
        code = invoke("check", "m.toml").exit_code
        if wrong in ("nested lists", "nested tables", "a long key"):
            assert code == 2, wrong
        elif wrong == "as it is":
            assert code == 0
        else:
            assert (code in (1, 2)) != ((name, wrong) in SENSE), (name, wrong, code)


@pytest.mark.parametrize("name", declarations())
def test_any_option_in_a_manifest(name: str, tmp_path: Path) -> None:
    """A value is refused as usage, or it is one that the option has."""
    for wrong, value in VALUES.items():
        (tmp_path / "m.toml").write_text(f"[defaults]\n{name} = {value}\n")
        with contextlib.suppress(UsageError, InvalidModelError):
            said = manifests.read(tmp_path / "m.toml").defaults or {}
            options = api.make_options(**said["options"])
            registry.select(options)
            assert facts.options_text(options) or wrong == "true", value
