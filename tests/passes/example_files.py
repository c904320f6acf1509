"""Examples of passes that are written down as text: see tests/passes/examples/README.md."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ortopt import registry, testing
from ortopt.options import Options

FOLDER: Final = Path(__file__).parent / "examples"

_FILLED: Final = re.compile(r"(\w+)\[([\d,]+)\]\s+(\w+)\s+=\s+\{([^{}]*)\.\.\.\}")
_LINE: Final = re.compile(
    r"(becomes|ops|holds|settings|kept|opset|level|target|options|numbers|input \w+|but):(?: (.*))?"
)
_CHANGE: Final = re.compile(r"(.+?) ->(?: (.*))?")


class Example(NamedTuple):
    """A model, and what a pass makes of it.

    Attributes:
        title: What it shows; variants of one another have the same title up to `` / ``.
        model: The model, as text.
        kept: Whether the pass must leave it alone.
        arguments: For `check_keeps` if so, else for `check_rewrites`.
        holds: What the result must hold, as `ortopt.testing.canonical` writes it: an op with its attributes.
        settings: Options of the pass itself.
    """

    title: str
    model: str
    kept: bool
    arguments: dict[str, Any]
    holds: str
    settings: dict[str, Any]

    @property
    def group(self) -> str:
        """What it has in common with its variants."""
        return self.title.partition(" / ")[0]

    def check(self, name: str) -> None:
        """Check that a pass does with the model what the example says."""
        transformer = registry.installed().find(name)(**self.settings) if self.settings else name
        if self.kept:
            testing.check_keeps(transformer, self.model, **self.arguments)
            return
        result = testing.canonical(testing.check_rewrites(transformer, self.model, **self.arguments))
        assert self.holds in result, f"the result is\n{result}\nwithout {self.holds}"


def passes() -> list[str]:
    """The names of the passes that have such examples."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def read(name: str) -> list[Example]:
    """The examples of a pass, in the order of the file; none if it has no file.

    Args:
        name: Name of the pass.
    """
    path = FOLDER / f"{name}.txt"
    return read_file(path) if path.exists() else []


def read_file(path: Path) -> list[Example]:
    """The examples of a file, in its order.

    Args:
        path: The file.
    """
    _, *sections = re.split(r"^--- ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: list[Example] = []
    above = ""
    for section in sections:
        title, told, model, changes = _parts(section)
        above = model or above
        holds, settings = told.pop("holds", ""), _settings(told.pop("settings", ""))
        text = _named(_changed(above, changes, title))
        found.append(Example(title, text, "kept" in told, _arguments(told), holds, settings))
    return found


def text(name: str, title: str) -> str:
    """The model of an example.

    Args:
        name: Name of the pass.
        title: Title of the example.
    """
    (model,) = (example.model for example in read(name) if example.title == title)
    return model


def _parts(section: str) -> tuple[str, dict[str, str], str, list[str]]:
    """The title of a section, what its lines say by key, its model, and the changes of the model above."""
    title, *lines = (line for line in section.splitlines() if line and not line.startswith("#"))
    model: list[str] = []
    told: list[list[str]] = []
    for line in lines:
        if found := _LINE.fullmatch(line):
            told.append([found[1], found[2] or ""])
        elif not told:
            model.append(line)
        else:
            assert line.startswith(" "), f"{title}: {line!r} is not understood"
            told[-1][1] += f" {line.strip()}"
    kept = {"kept": title.removeprefix("kept: ")} if title.startswith("kept: ") else {}
    by_key = {key: said for key, said in told if key != "but"}
    return title, kept | by_key, "\n".join(model), [said for key, said in told if key == "but"]


def _changed(model: str, changes: list[str], title: str) -> str:
    """A model with other text in places, each of which is written as ``OLD -> NEW``."""
    for change in changes:
        model = " ".join(model.split())  # a change may go over the end of a line
        found = _CHANGE.fullmatch(change)
        assert found is not None, f"{title}: {change!r} is no change"
        assert found[1] in model, f"{title}: {found[1]!r} is not in the model above"
        model = model.replace(found[1], found[2] or "")
    return model


def _filled(constant: re.Match[str]) -> str:
    """A constant with the numbers for which ``...`` stands behind those that are written."""
    kind, shape, name, written = constant.groups()
    first = [each for each in written.split(",") if each.strip()]
    numbers = itertools.cycle(_PERIOD_OF_HALVES if kind == "float16" else _PERIOD)
    behind = itertools.islice(numbers, len(first), math.prod(map(int, shape.split(","))))
    return f"{kind}[{shape}] {name} = {{{','.join([*first, *behind])}}}"


def _numbers(count: int) -> np.ndarray:
    """Numbers of no order that is easily met elsewhere: their bits are few, so that sums of products are exact."""
    places = np.arange(count)
    return ((5 * places + places // 7) % 9 - 4) / 8


_PERIOD: Final = [str(number) for number in _numbers(63).tolist()]  # after that they are the same again
_HALVES: Final = _numbers(63).astype(np.float16).view(np.uint16)  # their bits, as ONNX's text has them
_PERIOD_OF_HALVES: Final = [str(bits) for bits in _HALVES.tolist()]


def _named(graph: str) -> str:
    return _FILLED.sub(_filled, f"main {graph}" if graph.startswith("(") else graph)


def _arguments(told: dict[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    inputs: dict[str, np.ndarray] = {}
    for key, value in told.items():
        match key.split():
            case ["kept"]:
                given["because"] = value or None
            case ["becomes"]:
                given["after"] = _named(value.strip())
            case ["ops"]:
                given["ops"] = {op: int(count) for op, count in (each.split() for each in value.split(","))}
            case ["opset" | "level"]:
                given[key] = int(value)
            case ["options"]:
                given["options"] = _options(value)
            case ["numbers"]:
                given["numbers"] = {"yes": True, "no": False}[value]
            case ["input", name]:
                inputs[name] = _array(value)
            case _:
                given[key] = value
    return {**given, "inputs": inputs} if inputs else given


def _settings(text: str) -> dict[str, Any]:
    """Options of a pass from their names and values: on or off, or text."""
    pairs = (each.split(maxsplit=1) for each in text.split(", ") if each)
    return {name: {"true": True, "false": False}.get(value, value) for name, value in pairs}


def _options(text: str) -> Options:
    """Options from their names and values; a choice by its value, a list with ``+`` between its parts."""
    default = Options()
    given: dict[str, Any] = {}
    for name, value in (each.split(maxsplit=1) for each in text.split(",") if each):
        kind = type(getattr(default, name))
        if kind is bool:
            given[name] = {"true": True, "false": False}[value]
        elif kind is type(None):
            release = tuple(map(int, value.split(".")))
            given[name] = release if len(release) > 1 else release[0]
        else:
            given[name] = tuple(value.split("+")) if kind is tuple else kind(value)
    return Options(**given)


def _array(text: str) -> np.ndarray:
    """An array from its type, shape and elements: ``float32[1,3] nan 0.5 -inf``.

    Or from its type, its shape, and some of its elements: ``float32[9,99] ... [0,3]=nan``. With numbers on both sides,
    the others lie between them: ``float32[99] -4 ... 4 [3]=nan``.
    """
    kind, *elements = text.split()
    dtype, _, shape = kind.removesuffix("]").partition("[")
    sizes = [int(size) for size in shape.split(",") if size]
    if "..." in elements[:2]:
        numbers, some = _numbers(math.prod(sizes)), elements[1:]
        if elements[0] != "...":
            numbers, some = np.linspace(float(elements[0]), float(elements[2]), math.prod(sizes)), elements[3:]
        array = numbers.astype(dtype).reshape(sizes)
        for place, _, element in (each.partition("]=") for each in some):
            array[tuple(map(int, place[1:].split(",")))] = element
        return array
    if dtype == "bool":
        elements = [{"true": "1", "false": ""}[element] for element in elements]
    return np.array(elements).astype(dtype).reshape(sizes)
