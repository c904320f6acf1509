"""Annotations of GitHub Actions: what is annotated, where, how it is escaped, and how many there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ortopt.regression.baseline import Baseline
from ortopt.regression.formats import MAX_SHOWN, Place, annotated_places, annotation_lines
from ortopt.regression.results import Check, Result, Status
from tests.regression.conftest import More
from tests.regression.facts import WHOLE

BASE = ("zoo", "--baseline", "b.json")


def result(name: str, status: Status = Status.SAME, **more: Any) -> Result:
    return Result(name, name, "", status, **more)


def told(*results: Result, **where: Place) -> list[str]:
    return list(annotation_lines(Check(results, {}), where))


def test_what_would_end_a_command_or_a_property_is_escaped() -> None:
    evil = result("a::b,c%0A\r\nd", Status.BROKEN, error="100 % of it: ::error::x\n::add-mask::y")
    (line,) = told(evil, **{evil.name: Place("models/a:b,c%.onnx", 7)})
    assert line == (
        "::error file=models/a%3Ab%2Cc%25.onnx,line=7,title=ortopt check%3A broken::"
        "a::b,c%250A d: broken%0A100 %25 of it: ::error::x ::add-mask::y"
    )
    assert "\n" not in line
    assert "\r" not in line


def test_errors_are_failures_and_warnings_what_should_be_looked_at() -> None:
    unverified = {**WHOLE, "reasons": ["it could not be verified: no kernel"]}
    said = told(
        result("same"),
        result("new", Status.NEW, facts=WHOLE),
        result("unverified", Status.NEW, facts=unverified),
        result("accepted", Status.ACCEPTED, reason="exported each night"),
        result("worse", Status.WORSE),
        result("fixed", Status.FIXED, reason="a known failure"),
        result("broken", Status.BROKEN, error="it is empty"),
    )
    assert said == [
        "::error title=ortopt check%3A broken::broken: broken%0Ait is empty",
        "::error title=ortopt check%3A worse::worse: worse",
        "::warning title=ortopt check%3A accepted::accepted: accepted%0Aexported each night",
        "::warning title=ortopt check%3A fixed::fixed: fixed%0Aa known failure",
        "::warning title=ortopt check%3A new::unverified: new%0Ait could not be verified: no kernel",
    ]


@pytest.mark.parametrize(("failures", "counted"), [(MAX_SHOWN, 0), (MAX_SHOWN + 1, 2), (500, 491)])
def test_of_more_than_github_shows_the_last_one_counts(failures: int, counted: int) -> None:
    said = told(*(result(f"{number:03}.onnx", Status.WORSE) for number in range(failures)))
    assert len(said) == MAX_SHOWN
    assert said[-1].startswith(f"::error title=ortopt check::{counted} more models:%0A") == bool(counted)
    assert said[0].endswith("::000.onnx: worse")
    assert max(map(len, said)) < 10_000


def test_a_model_is_annotated_at_its_file_else_at_its_facts_in_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "repository"
    (root / "zoo").mkdir(parents=True)
    for path in (root / "zoo" / "a.onnx", tmp_path / "outside.onnx"):
        path.write_bytes(b"x")
    gone, odd = "zoo/gone.onnx", 'zoo/ü "\u2028.onnx'
    text = Baseline({"onnx": "1"}, dict.fromkeys(("zoo/a.onnx", gone, odd), WHOLE)).text()
    (root / "b.json").write_bytes(text.replace("\n", "\r\n").encode("utf-8"))  # as Git writes it on Windows
    monkeypatch.chdir(root / "zoo")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(root))
    names = ("a.onnx", gone, odd, "outside.onnx", "none.onnx")
    check = Check(tuple(map(result, names)), {}, str(root / "b.json"))
    found = annotated_places(check, {"outside.onnx": tmp_path / "outside.onnx", "a.onnx": None})
    assert set(found) == {"a.onnx", gone, odd}
    assert found["a.onnx"] == ("zoo/a.onnx", 1)
    for name in (gone, odd):
        assert found[name].file == "b.json"
        line = text.split("\n")[found[name].line - 1]
        assert line.strip() == f"{json.dumps(name, ensure_ascii=False)}: {{"


def test_github_actions_are_told_without_being_asked(
    check: Any, zoo: Path, passes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(*BASE, "--update", "-q")
    passes(More)
    begin = "::error file=zoo/abs.onnx,line=1,title=ortopt check%3A worse::zoo/abs.onnx: worse%0Anodes 3, baseline 2"
    assert "::error" not in check(*BASE, code=3).stdout
    assert begin in check(*BASE, "--annotations", "-q", code=3).stdout
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert begin in check(*BASE, code=3).stdout
    assert "::error" not in check(*BASE, "--no-annotations", code=3).stdout
    done = check(*BASE, "--json", "-", code=3)
    assert json.loads(done.stdout)["exit_code"] == 3
    assert begin in done.stderr
    Path("r.json").write_text(done.stdout)
    assert begin in check("merge", "r.json", "--markdown", "-", code=3).stderr
    assert "::" not in check("zoo/relu.onnx", "--baseline", "b.json").stdout
