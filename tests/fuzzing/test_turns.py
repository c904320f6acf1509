"""Times of results in turns with their originals: what was opened, how often, and which figure counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fuzzing import turns
from ortopt.verification.start import Runtime

MODELS = b"original", b"result"


@pytest.mark.parametrize(("arguments", "openings"), [(("openvino",), 3), (("node:/package",), 1)])
def test_the_middle_of_several_openings_counts(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], openings: int
) -> None:
    answers = [0.5, 2.0, 0.9][:openings]
    asked: list[tuple[float, float]] = []

    def one(
        _: Runtime, models: tuple[bytes, bytes], __: Mapping[str, Any], seconds: float, warm: float, *, cold: bool
    ) -> float:
        assert models == MODELS
        assert not cold
        asked.append((seconds, warm))
        return answers[len(asked) - 1]

    monkeypatch.setattr(turns, "_of_one_opening", one)
    found = turns.ratio(Runtime("a runtime", None, arguments), *MODELS, {}, 3.0)
    assert found == (0.9 if openings > 1 else 0.5)
    assert [seconds for seconds, _ in asked] == [3.0 / openings] * openings
    assert all((warm > 0) == (openings == 1) for _, warm in asked)


@pytest.mark.parametrize(
    ("took", "repeats"),
    [((0.01, 0.005), 4), ((0.03, 0.02), 1), ((0.1, 0.0001), 5), ((2.0, 0.0001), 1), ((0.0, 0.0), 20_000)],
)
def test_short_models_run_several_times_in_a_turn(took: tuple[float, float], repeats: int) -> None:
    assert turns._repeats(took) == repeats


def test_slower_results_are_told() -> None:
    told = turns.told("a runtime", {"one": 0.5, "another": 2.0, "a third": 1.01})
    assert told == (
        "a runtime: 1.003 of the originals' time, geometric mean of 3; 1 slower\n"
        "a runtime: another: 2.00 of the original's time"
    )
