"""Attributes that have a reader are read there alone, and names of domains are written once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

READ = frozenset(
    {"perm", "axes", "axis", "pads", "strides", "dilations", "group", "auto_pad"}
    | {"kernel_shape", "transA", "transB", "keepdims"}
)
FOLDERS = (
    *("transformers", "ortopt/patterns", "ortopt/transpose", "ortopt/partition", "ortopt/half_precision"),
    "ortopt/graph",
)
DOMAINS = frozenset({"com.microsoft", "com.microsoft.nchwc", "ai.onnx.ml", "ai.onnx.preview.training"})


def sources(*folders: str) -> list[Path]:
    """All files below some folders."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def reads(source: str) -> Iterator[int]:
    """The lines where an attribute with a reader is asked for by its name.

    A name is asked for as the argument of a call, as an index, and with ``in``; and where names of attributes are
    compared. A new node may be given one: in a dictionary, or as an ``ir.Attr``.
    """
    for node in ast.walk(ast.parse(source)):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Call) and not ast.unparse(node.func).startswith("ir.Attr"):
            asked = [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            asked = [node.slice]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            asked = [node.left, *getattr(node.comparators[0], "elts", ())]
        elif isinstance(node, ast.Compare) and ast.unparse(node.left).split(".")[-1] == "name":
            asked = node.comparators
        elif isinstance(node, ast.comprehension):
            asked = list(getattr(node.iter, "elts", ()))
        yield from (one.lineno for one in asked if isinstance(one, ast.Constant) and one.value in READ)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('attribute(node, "perm", ())', 1),
        ('attribute(node, name="axis")', 1),
        ('node.attributes["pads"].as_ints()', 1),
        ('"axes" in node.attributes', 1),
        ('[each for name, each in node.attributes.items() if name not in ("transA", "beta")]', 1),
        ('[each for each in kept if each.name != "axis"]', 1),
        ('[attribute(node, name, 0) for name in ("transA", "transB")]', 2),
        ('ir.node("Concat", values, {"axis": 0})', 0),
        ('ir.AttrInt64s("pads", (0, 0))', 0),
        ("ops.Transpose(node).order", 0),
    ],
)
def test_reads_are_found(source: str, count: int) -> None:
    assert len(list(reads(source))) == count


def test_no_attribute_that_has_a_reader_is_read_by_hand() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources(*FOLDERS)
        for line in reads(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_names_of_domains_are_written_once() -> None:
    for path in sources("ortopt", "transformers"):
        source = path.read_text(encoding="utf-8")
        if path == ROOT / "ortopt" / "semantics" / "domains.py" or not any(domain in source for domain in DOMAINS):
            continue
        for node in ast.walk(ast.parse(source)):
            literal = isinstance(node, ast.Constant) and node.value in DOMAINS
            assert not literal, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} spells a domain"
