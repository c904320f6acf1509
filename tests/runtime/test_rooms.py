"""The rooms of the runtime, as a table checked on the import graph: a room imports only from those before it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2] / "ortopt" / "runtime"

ROOMS = (
    "onnxruntime_internals run_settings denormals",
    "values instruments",
    "cuda",
    "execution",
    "specialization",
    "planning",
    "debugging onnxruntime_interface",
    "decoding",
    "session_factory session_arguments",
    "session",
)
"""Lowest first."""

HEIGHT = {room: height for height, rooms in enumerate(ROOMS) for room in rooms.split()}
FILES = [path for path in sorted(HOME.rglob("*.py")) if path.name != "__init__.py"]


def room_of(path: Path) -> str:
    return path.relative_to(HOME).with_suffix("").parts[0]


def test_the_table_has_a_row_for_every_room() -> None:
    assert {room_of(path) for path in FILES} == HEIGHT.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOME)))
def test_a_room_imports_only_from_those_before_it(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("ortopt.runtime"):
            continue
        rest = (node.module or "").split(".")[2:]
        for room in rest[:1] or [alias.name for alias in node.names]:
            assert HEIGHT[room] <= HEIGHT[room_of(path)], f"{room_of(path)} must not import {ast.unparse(node)}"


def test_what_few_sessions_need_is_loaded_when_it_is_needed() -> None:
    code = "import sys; from ortopt import InferenceSession; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HOME.parents[1])
    late = ("cuda", "debugging", "specialization.specializing", "specialization.export", "values.foreign_memory")
    loaded = [name for name in done.stdout.split() if name.startswith(tuple(f"ortopt.runtime.{room}" for room in late))]
    assert loaded == []
