"""The tool that changes ortopt's own code."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzzing.code_mutants import killed
from fuzzing.code_mutants.changes import changed, changes
from fuzzing.code_mutants.mutants import ROOT, Address, functions
from ortopt.terminal_text import one_line

FUNCTION = '''
def f(a, b=1):
    """Docstring."""
    if a is None:
        return 0
    if not a and b < 2:
        log(a)
    if a > 5:
        raise ValueError(f"{a} + {b}" + str(a + 1))
    return min(a + b, key=len) if ready(a) else [x for x in b if x]
'''


def function(text: str) -> ast.FunctionDef:
    found = ast.parse(text).body[0]
    assert isinstance(found, ast.FunctionDef)
    return found


def test_every_change_is_one_small_change() -> None:
    original = function(FUNCTION)
    texts = [ast.unparse(changed(original, number)) for number, _ in enumerate(changes(original))]
    assert len(set(texts)) == len(texts)
    before = ast.unparse(original).splitlines()
    for text in texts:
        assert sum(a != b for a, b in zip(before, text.splitlines(), strict=True)) == 1
    assert ast.unparse(original) == ast.unparse(function(FUNCTION)), "the function itself stays"


def test_signatures_docstrings_and_texts_of_errors_stay() -> None:
    kept = ["def f(a, b=1):", '    """Docstring."""', "        raise ValueError(f'{a} + {b}' + str(a + 1))"]
    original = function(FUNCTION)
    for number, _ in enumerate(changes(original)):
        lines = ast.unparse(changed(original, number)).splitlines()
        assert all(line in lines for line in kept)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return a < b", "return a <= b"),
        ("return a and b", "return a or b"),
        ("return not a", "return a"),
        ("return a + 1", "return a + 2"),
        ("return a // b", "return a * b"),
        ("return True", "return False"),
        ("note(a)", "pass"),
        ("return any(a)", "return all(a)"),
        ("return g(a, strict=b)", "return g(a)"),
        ("return a if b else c", "return c if b else a"),
        ("return {x for x in a if x}", "return {x for x in a}"),
    ],
)
def test_kinds_of_changes(before: str, after: str) -> None:
    original = function(f"def f(a, b, c):\n    {before}")
    made = [ast.unparse(changed(original, number).body[0]) for number, _ in enumerate(changes(original))]
    assert after in made


def test_guards_are_dropped() -> None:
    original = function("def f(a):\n    if a:\n        return 1\n    return g(a)")
    made = [ast.unparse(changed(original, number)) for number, _ in enumerate(changes(original))]
    assert any("if False:" in text for text in made)
    assert any("if not a:" in text for text in made)


def test_functions_have_the_names_of_their_code() -> None:
    tree = ast.parse("class A:\n    class B:\n        def f(self):\n            def g(): pass\n\ndef h(): pass")
    assert [name for name, _ in functions(tree)] == ["A.B.f", "h"]


def test_lists_are_read_as_written(tmp_path: Path) -> None:
    addresses = [Address("A.f", "constant", "1", "2", 0), Address("A.f", "comparison", "a < 'ü'", "a <= 'ü'", 1)]
    killed.write(addresses, tmp_path / "list")
    assert killed.read(tmp_path / "list") == sorted(addresses)


def test_what_is_gone_is_told() -> None:
    gone = Address("no_such_function", "constant", "1", "2", 0)
    assert killed.located([gone]) == ([], [gone])


def test_short_messages_stay() -> None:
    """What the mutant below changes."""
    assert one_line("a short message") == "a short message"


@pytest.mark.skipif("CODE_MUTANTS_TRIAL" not in os.environ, reason="fails, and so proves nothing in a trial")
def test_fails_in_a_trial() -> None:
    raise AssertionError


def test_a_mutant_is_killed_by_its_test_and_survives_others(tmp_path: Path) -> None:
    """In a process of its own, as it forks."""
    code = """
import pytest, ortopt.verification.runner  # what each trial needs, as `load` imports it once for all
from fuzzing.code_mutants import trial
from fuzzing.code_mutants.mutants import mutants_of
[mutant, *_] = [
    found for found in mutants_of("ortopt/terminal_text.py")
    if found.address.function == "_shortened" and found.address.kind == "guard"
]
import sys
from pathlib import Path
tests = "tests/fuzzing/test_code_mutants.py::"
trials = trial.Trials(Path(sys.argv[1]))
print(trials.tried(mutant, [tests + "test_short_messages_stay"]))
print(trials.tried(mutant, [tests + "test_guards_are_dropped"]))
print(trials.tried(mutant, [tests + "no_such_test"]))
print(trials.tried(mutant, [tests + "test_fails_in_a_trial"]))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "failure")]
    environment = {**os.environ, "CODE_MUTANTS_TRIAL": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["killed", "survived", "invalid", "invalid"], run.stderr
