"""What people see: a line per model in a log, a live table on a terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from ortopt.cli.check_display import _COLOURS, Lines, Live, line_of, show, watcher
from ortopt.regression.comparison import compare
from ortopt.regression.formats import LIMIT, markdown
from ortopt.regression.formats import page as page_text
from ortopt.regression.results import EXIT_CODES, Check, Finding, Result, Shard, Status, read
from ortopt.regression.thresholds import DEFAULTS
from tests.regression.facts import WHOLE
from tests.reporting.test_page import data_of

FACTS = {"nodes": 5, "error": 1.2e-6, "verified": "verified"}
WORSE = Finding("worse", "nodes", 5, 4, 4.0, "nodes 5, baseline 4 (Add +1)")


def result(name: str = "a.onnx", status: Status = Status.SAME, **more: Any) -> Result:
    return Result(name, name, "", status, facts=FACTS, seconds=1.5, **more)


def test_a_line_has_figures_and_reasons() -> None:
    assert line_of(result()) == "a.onnx: same, 5 nodes, error 1.2e-06, 1.5 s"
    worse = result(status=Status.WORSE, findings=(WORSE,))
    assert line_of(worse).endswith("1.5 s: nodes 5, baseline 4 (Add +1)")
    assert "\x1b" not in line_of(result("evil\x1b[31m.onnx"))


def screen(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def rendered(out: Console, shown: Any) -> str:
    with out.capture() as captured:
        out.print(shown)
    return captured.get()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_shows_what_runs_and_how_long_it_will_take(width: int) -> None:
    out = screen(width)
    live = Live(out, 2)
    live.expect(4, 60.0)
    assert live.remaining(0.0) == 30.0  # by what is recorded, until something is known
    live.begun("models/a_very_long_name_of_a_model_that_does_not_fit_into_a_narrow_terminal.onnx")
    live.begun("b.onnx")
    live.done(result("b.onnx"))
    assert live.remaining(5.0) == 15.0
    shown = rendered(out, live._table())
    assert "1 of 4 models" in shown
    assert "running" in shown
    assert "same" in shown
    assert max(map(len, shown.splitlines())) <= width


def test_what_failed_stays_on_the_terminal() -> None:
    out = screen()
    with Live(out, 1) as live:
        live.done(result(status=Status.WORSE, findings=(WORSE,)))
        live.done(result("b.onnx"))
    assert isinstance(out.file, io.StringIO)
    assert "a.onnx: worse, error 1.2e-06, 1.5 s: nodes 5, baseline 4" in out.file.getvalue()


def test_a_log_gets_lines() -> None:
    out = Console(file=io.StringIO(), width=200)
    assert isinstance(watcher(out, 1, quiet=False), Lines)
    assert isinstance(watcher(screen(), 1, quiet=False), Live)
    quiet = watcher(out, 1, quiet=True)
    quiet.done(result())
    quiet.done(result("b.onnx", Status.BROKEN, error="it is empty"))
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue() == "b.onnx: broken, 5 nodes, error 1.2e-06, 1.5 s: it is empty\n"


def test_the_last_lines() -> None:
    out = Console(file=io.StringIO(), width=200)
    check = Check((result(status=Status.BETTER), result("b.onnx")), {}, missing=("c.onnx",), seconds=3.2)
    show(check, out)
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue().splitlines() == [
        "note: 1 of the baseline were not checked: c.onnx",
        "1 are better than the baseline: --update keeps that",
        "2 models in 3 s: 1 better, 1 same",
    ]


GITHUB = 65_536
"""Characters that a comment of GitHub has at most."""


def sections(page: str) -> list[str]:
    """What stands folded, by title."""
    return [line.partition("<summary>")[2].partition("</summary>")[0] for line in page.splitlines() if line[:9] == FOLD]


FOLD = "<details>"


@pytest.mark.parametrize("says", ["it is worse", "&" * 100_000, "x" * 100_000])
@pytest.mark.parametrize("name", ["x" * 100, "<" * 10_000])
@pytest.mark.parametrize("models", [1, 40, 5000])
def test_what_goes_into_a_comment_is_not_too_long(models: int, name: str, says: str) -> None:
    finding = structs.replace(WORSE, says=says)
    same = [result(f"{number}{name}") for number in range(models)]
    worse = [result(f"{number}!{name}", Status.WORSE, findings=(finding,) * 20) for number in range(models)]
    page = markdown(Check((*same, *worse), {}, missing=(name,) * 100, notes=(says,)))
    assert len(page) <= LIMIT < GITHUB - 100
    assert page.count("<details>") == page.count("</details>")
    told = page.count("</code> | worse | <details>")
    assert told >= 1
    assert (f"(And {models - told} worse; `--json` has all of it.)" in page) == (told < models)


def test_a_comment_has_failures_first_and_folds_the_rest() -> None:
    found = (
        result("a.onnx"),
        result("b.onnx", Status.WORSE, findings=(WORSE, structs.replace(WORSE, says="fused op Gelu: 1 lost"))),
        result("c.onnx", Status.BROKEN, error="tell @everybody"),
        result("d.onnx", Status.BETTER),
    )
    page = markdown(Check(found, {}))
    failures, *_ = page.split("\n<details>")
    row = "| <code>b.onnx</code> | worse | <details><summary>nodes 5, baseline 4 (Add +1)</summary>"
    assert f"{row}fused op Gelu: 1 lost</details> |" in failures
    assert failures.index("c.onnx") < failures.index("b.onnx")
    assert not {"a.onnx", "d.onnx"} & {word for word in failures.replace(">", "<").split("<") if word}
    assert sections(page) == ["What is no failure (1)", "All models (4)"]
    assert "@everybody" not in page  # who is called so is not told
    assert "- to accept what is worse: --update" in failures


def test_nothing_is_said_twice_of_a_worse_model() -> None:
    """Where attention is lost: by its blocks, not by its op again; ops of which it is told are not told again."""
    gone = {"com.microsoft::Attention": 12, "com.microsoft::Gelu": 10}
    before = {**WHOLE, "fused": gone, "ops": {"Add": 78, **gone}, "rewrites": dict.fromkeys("abcdef", 3)}
    ops = {"Add": 100, "Softmax": 12, "MatMul": 24}
    blocks = {**WHOLE["blocks"], "attention": {"found": 12, "fused": 0}}
    now = {**WHOLE, "fused": {}, "ops": ops, "nodes": 136, "blocks": blocks, "rewrites": {}, "error": 1e-3}
    findings = tuple(compare(now, before, DEFAULTS, same_versions=True))
    line = line_of(Result("a", "a", "", Status.WORSE, facts=now, findings=findings, seconds=2.0))
    assert line == (
        "a: worse, latency 0.80×, 2.0 s: attention: 0 of 12 blocks are one op, baseline 12 of 12; a no longer fires"
        " (3 times), b no longer fires (3 times), c no longer fires (3 times), and 3 more; fused op"
        " com.microsoft::Gelu: 0, baseline 10: 10 lost; nodes 136, baseline 100 (MatMul +24, Add +22, Softmax +12,"
        " com.microsoft::Attention -12); error 0.001, baseline 1e-07 (allowed: 5e-06, bound 0.0001)"
    )


def test_a_live_table_has_latency_where_it_is_measured() -> None:
    live = Live(screen(), 1)
    live.done(structs.replace(result(), facts=WHOLE))
    live.begun("b.onnx (latency)")
    lines = rendered(screen(), live._table()).splitlines()
    assert lines[0].split() == ["same", "a.onnx", "0.80×", "1.5", "s"]
    assert lines[1].split()[:3] == ["running", "b.onnx", "(latency)"]


def test_results_are_data_and_back(tmp_path: Path) -> None:
    broken = Result("x", "x", "", Status.BROKEN, error="it is empty")
    worse = structs.replace(result(status=Status.WORSE, findings=(WORSE,)), facts=WHOLE)
    check = Check((worse, broken), {"onnx": "1"}, "b.json", ("c",), Shard(1, 2), 3.0)
    (tmp_path / "r.json").write_text(json.dumps(check.as_dict()))
    assert read(tmp_path / "r.json") == check
    assert check.exit_code == 2


def test_what_fails_the_check_and_nothing_else_has_the_colour_of_a_failure() -> None:
    kinds = data_of(page_text(Check(tuple(result(status=status) for status in Status), {})))["kinds"]
    failures = {status.value for status in EXIT_CODES}
    assert set(kinds) == {status.value for status in Status}
    assert {status for status, kind in kinds.items() if kind == "bad"} == failures
    assert {status.value for status, colour in _COLOURS.items() if colour == "red"} == failures
    assert {status for status, kind in kinds.items() if not kind} == {"not run", "skipped"}


def test_the_page_has_the_worst_models_first_and_latency_as_the_threshold_has_it() -> None:
    measured = {**FACTS, "latency": WHOLE["latency"]}
    found = (
        structs.replace(result(), facts=measured),
        result("b.onnx", Status.WORSE),
        result("c.onnx", Status.BROKEN),
        result("d.onnx", Status.WORSE),
    )
    data = data_of(page_text(Check(found, {})))
    assert [row["name"] for row in data["rows"]] == ["c.onnx", "b.onnx", "d.onnx", "a.onnx"]
    assert data["counts"] == {"broken": 1, "worse": 2, "same": 1}
    assert data["rows"][-1]["latency"] == WHOLE["latency"]["ratio"] == 0.8
