"""The time of two models by layer: joined by name, the slowest shown."""

from __future__ import annotations

import io

from ortopt.reporting import report
from ortopt.reporting.layer_times import MAX_ROWS, joined, show


def shown(*profiles: tuple[str, dict[str, object] | None]) -> list[list[str]]:
    stream = io.StringIO()
    show(profiles, report.console(stream))
    return [line.split() for line in stream.getvalue().splitlines()]


def test_layers_are_joined_by_name() -> None:
    rows = joined({"": 0.5, "block.0": 2.0, "idle": 0.0}, {"block.0": 1.0, "new": 3.0})
    assert rows == [
        {"layer": "", "original": 0.5, "result": None},
        {"layer": "block.0", "original": 2.0, "result": 1.0},
        {"layer": "new", "original": None, "result": 3.0},
    ]
    assert joined({"a": 1.0}, None) == [{"layer": "a", "original": 1.0, "result": None}]


def test_a_model_beside_its_result() -> None:
    layers = joined({"": 0.5, "block.0": 2.0}, {"block.0": 1.0, "new": 3.0})
    assert shown(("m.onnx", {"layers": layers}))[:4] == [
        ["layer", "original,", "ms", "result,", "ms", "change"],
        ["(none)", "0.500", "gone"],
        ["block.0", "2.000", "1.000", "2.00×", "faster"],
        ["new", "3.000", "new"],
    ]


def test_two_models_as_they_are() -> None:
    first, second = ({"layers": joined({"a": time, "b": 1.0}, {"a": 9.0})} for time in (2.0, 8.0))
    assert shown(("m.onnx", first), ("n.onnx", second))[:2] == [
        ["layer", "m.onnx,", "ms", "n.onnx,", "ms", "change"],
        ["a", "2.000", "8.000", "4.00×", "slower"],
    ]


def test_only_the_slowest_are_shown() -> None:
    times = {f"block.{number}": float(number) for number in range(1, 21)}
    lines = shown(("m.onnx", {"layers": joined(times, times)}))
    assert [line[0] for line in lines[1 : MAX_ROWS + 1]] == [f"block.{number}" for number in range(13, 21)]
    assert lines[MAX_ROWS + 1][:4] == ["12", "more", "layers", "take"]


def test_one_layer_or_one_model_is_no_table() -> None:
    assert shown(("m.onnx", {"layers": joined({"a": 1.0}, {"a": 2.0})})) == []
    assert shown(("m.onnx", {"layers": joined({"a": 1.0, "b": 1.0}, None)})) == []
    assert shown(("m.onnx", None)) == []
