"""A match is run over its alternatives, in order, until an attempt holds; the reason is that of the first attempt."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt.graph.backtracking import MAX_ALTERNATIVES, choose, first_match
from ortopt.graph.refusal import Refusal, need

NODE = ir.node("X", [])


def test_attempts_go_depth_first() -> None:
    attempts: list[tuple[str, str]] = []

    def match(_: ir.Node) -> tuple[str, str]:
        attempts.append((choose(["a", "b"]), choose(["c", "d"])))
        need(attempts[-1] == ("b", "d"), f"not {attempts[-1]}")
        return attempts[-1]

    assert first_match(match, NODE) == ("b", "d")
    assert attempts == [("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")]


def test_a_choice_may_hang_on_the_one_before() -> None:
    attempts: list[int] = []

    def match(_: ir.Node) -> int:
        attempts.append(choose([1, 2]) if choose([True, False]) else choose([3, 4, 5]))
        need(attempts[-1] == 5, "another")
        return attempts[-1]

    assert first_match(match, NODE) == 5
    assert attempts == [1, 2, 3, 4, 5]


def test_the_reason_is_that_of_the_preferred_reading() -> None:
    def match(_: ir.Node) -> None:
        raise Refusal(f"not {choose([1, 2, 3])}")

    with pytest.raises(Refusal, match=r"^not 1$"):
        first_match(match, NODE)


def test_attempts_are_bounded_and_leave_nothing_behind() -> None:
    count = 0

    def match(_: ir.Node) -> None:
        nonlocal count
        count += 1
        for _choice in range(10):
            choose([1, 2])
        raise Refusal("never")

    for _ in range(2):
        count = 0
        with pytest.raises(Refusal, match="never"):
            first_match(match, NODE)
        assert count == 1 + MAX_ALTERNATIVES
    assert first_match(lambda _: choose([1, 2]), NODE) == 1
