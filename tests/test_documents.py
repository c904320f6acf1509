"""JSON and TOML from outside: bounded, each key once, typed; and read in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ortopt import documents
from ortopt.documents import MAX_DEPTH, Amount, Count, parse_json, parse_toml, typed

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded_whatever_the_interpreter_allows(begin: str, end: str) -> None:
    whole = f"{begin * MAX_DEPTH}1{end * MAX_DEPTH}"
    parse_json(whole)
    with pytest.raises(ValueError, match="nested more than 64"):
        parse_json(f"[{whole}]")
    with pytest.raises(ValueError, match="nested more than 64"):
        parse_json(begin * 200_000)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "{a=" * 100_000,
        f"{'.'.join('a' * 100_000)} = 1",
        f"[{'.'.join('a' * 100_000)}]",
        f"[[{' . '.join(['a'] * 100)}]]",
        f"""{".".join(['"a"'] * 100)} = 1""",
    ],
)
def test_a_dotted_key_is_nesting_too(text: str) -> None:
    with pytest.raises(ValueError, match="nested more than 64"):
        parse_toml(text)


def test_what_looks_like_a_dotted_key() -> None:
    text = "..." * 100 + " " + "a " * 200 + "1.2.3"
    assert parse_toml(f"a = '{text}'\nb.c.d = 1") == {"a": text, "b": {"c": {"d": 1}}}


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ('{"a": 1, "b": [{"c": 1, "c": 1}]}', "the key 'c' stands twice"),
        ("[NaN]", "NaN is no number"),
        ("[-Infinity]", "-Infinity is no number"),
        ('{"\\ud800": 1}', "is no Unicode"),
        ('["\\udfff"]', "is no Unicode"),
        ("{", "Expecting"),
        (b"\xff", "decode"),
    ],
)
def test_what_is_no_document(text: str | bytes, because: str) -> None:
    with pytest.raises(ValueError, match=because):
        parse_json(text)


def test_types() -> None:
    assert typed({"a": 3, "b": 0.5}, dict[str, Amount]) == {"a": 3, "b": 0.5}
    for wrong in (-1, 2**63, 1.0, True, None, "1", 10**400):
        with pytest.raises(ValueError, match=r"`int`|out of range"):
            typed(wrong, Count)
    for wrong in (-1, True, None, "1", 10**400, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"`float`|out of range"):
            typed(wrong, Amount)
    assert parse_json(b"\xef\xbb\xbf[1]") == [1]  # as some editors begin a file


OWN = {
    "documents.py": "the reader",
    "analysis/costs.py": "the table that ships, or one that has been checked",
    "analysis/kernel_history.py": "tables that ship",
    "analysis/kernels.py": "tables that ship",
    "analysis/cost_tables.py": "a table that ships",
    "analysis/releases.py": "a table that ships",
    "analysis/targets.py": "tables that ship",
    "discovery/pass_manifest.py": "the list of passes that ships",
    "zoo.py": "the zoo that ships",
    "measurement/in_turns.py": "ONNX Runtime's profile",
    "measurement/profiling.py": "ONNX Runtime's profile",
    "runtime/instruments.py": "ONNX Runtime's profile",
    "measurement/child.py": "between processes of ours",
    "measurement/asking.py": "between processes of ours",
    "evaluation/child.py": "between processes of ours",
    "evaluation/execution.py": "between processes of ours",
    "regression/pool.py": "between processes of ours",
    "regression/worker.py": "between processes of ours",
    "evaluation/raw_tensors.py": "between processes of ours",
    "verification/other_runtimes.py": "between processes of ours",
    "verification/process.py": "between processes of ours",
    "verification/worker.py": "between processes of ours",
    "regression/case.py": "what json has just written",
}
"""Modules that read JSON that nobody hands over, and whose it is."""


def test_nothing_else_reads_what_people_hand_over() -> None:
    """Who parses JSON or TOML anywhere else gets neither the bound on nesting nor the types."""
    found = set()
    for path in (ROOT / "ortopt").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in {
                *("json.load", "json.loads", "json.JSONDecoder", "msgspec.json", "tomllib.load", "tomllib.loads"),
            }:
                found.add(path.relative_to(ROOT / "ortopt").as_posix())
    assert found == OWN.keys()
    assert set(documents.__all__) >= {"parse_json", "parse_toml", "typed"}
