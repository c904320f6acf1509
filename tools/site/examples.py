"""What a pass does to the smallest model that its tests rewrite, and why it leaves others alone."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

import onnx

from ortopt import registry, testing
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from tests.all_passes.pass_examples import examples, refusals

MAX_ELEMENTS = 12
"""Constants with more elements are shortened."""


class Example(NamedTuple):
    """A model, and what the pass makes of it."""

    before: onnx.ModelProto
    after: onnx.ModelProto


def smallest(name: str) -> Example | None:
    """The smallest model that the tests of a pass rewrite, before and after; None if no test gives one.

    Args:
        name: Name of the pass.
    """
    for before, more in sorted(examples(name), key=lambda example: len(text_of(example[0]))):
        model = load(before)
        options = more.get("options") or testing.all_fusions(more.get("target", "ort"))
        changed, _ = testing.run(name, model, level=more.get("level"), options=options)
        if changed:
            return Example(before, onnx.load_from_string(to_bytes(model)))
    return None


def text_of(model: onnx.ModelProto) -> str:
    """A model in ONNX's text form, without its header and its inferred types; long constants are shortened."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    del shown.graph.value_info[:]
    for node in shown.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("name")
    text = onnx.printer.to_text(shown)
    text = re.sub(r"\A<.*?^>\s*", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\{([^{}=]*)\}", lambda match: f"{{{_shortened(match[1])}}}", text)
    lines = (line.rstrip() for line in text.replace("] (", "] (").splitlines())
    return "\n".join("\n".join(textwrap.wrap(line, 84, subsequent_indent="      ")) for line in lines if line)


def _shortened(elements: str) -> str:
    parts = elements.split(",")
    if len(parts) <= MAX_ELEMENTS:
        return elements
    return ",".join([*parts[: MAX_ELEMENTS // 2], f" … {len(parts)} in all"])


def reasons(name: str) -> list[str]:
    """Why a pass leaves nodes alone: the reasons that its code gives, and those that its tests expect.

    Args:
        name: Name of the pass.
    """
    told = dict.fromkeys(reason for part in _code(name) for reason in _told(part))
    for expected, model, more in refusals(name):
        if not any(_covers(reason, expected) for reason in told):
            told[_whole_reason(name, expected, model, more)] = None
    return sorted(told, key=str.lower)


def _code(name: str) -> list[ast.stmt]:
    """The class of a pass, and what of its file it asks: other passes of the file give reasons of their own."""
    kind = registry.installed().find(name)
    source = inspect.getsource(importlib.import_module(kind.__module__))
    parts = {part.name: part for part in ast.parse(source).body if isinstance(part, ast.ClassDef | ast.FunctionDef)}
    taken: dict[str, ast.stmt] = {}
    waiting = [kind.__name__]
    while waiting:
        part = parts[waiting.pop()]
        if part.name not in taken:
            taken[part.name] = part
            read = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
            waiting += sorted(parts.keys() & read)
    return list(taken.values())


def _whole_reason(name: str, expected: str, model: onnx.ModelProto, more: dict[str, Any]) -> str:
    """The reason that a pass gives, of which a test expects a part; without the value that it is about."""
    options = more.get("options") or testing.all_fusions(more.get("target", "ort"))
    _, explanation = testing.run(name, load(model), level=more.get("level"), options=options)
    given = (refusal.reason for refusal in explanation.refusals if expected in refusal.reason)
    reason = next(given, None)
    if reason is None:
        return expected
    return reason.clause if expected in reason.clause else str(reason)


def _covers(reason: str, expected: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in reason.split("…"))
    return expected in reason or re.search(pattern, expected) is not None


def _told(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        place = {"need": 1, "refuse": 1, "Refusal": 0}.get(called)
        if place is not None and len(node.args) > place:
            yield from (text for text in _texts(node.args[place]) if text.strip("… "))


def _texts(node: ast.expr) -> Iterator[str]:
    """The sentences that an expression may be; what is filled in is an ellipsis."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)  # type: ignore[misc]
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
