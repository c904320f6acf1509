"""Reasons summed up: what an option would change comes first, what is not there at all last."""

from __future__ import annotations

from ortopt.graph.refusal import Code
from ortopt.instrumentation.explanation import Explanation, OfferedRewrite, RefusedCandidate
from ortopt.reporting.reasons import by_pass, split, summary


def test_the_value_that_a_reason_is_about_is_apart() -> None:
    assert split("the rank is not 2 (x)") == ("the rank is not 2", " (x)")
    assert split("it is used elsewhere") == ("it is used elsewhere", "")


def test_what_an_option_would_change_comes_first() -> None:
    refusals = [
        *[RefusedCandidate("a_fusion", f"n{i}", "Add", "no MatMul comes before (x)", Code.ABSENT) for i in range(5)],
        RefusedCandidate("b_fusion", "n", "Add", "on the CPU, B is slower; --fusions all takes it anyway", Code.COST),
        *[RefusedCandidate("c_fusion", f"n{i}", "Add", f"the type changes (v{i})") for i in range(2)],
    ]
    assert [(row["pass"], row["count"]) for row in by_pass(refusals)] == [
        ("b_fusion", 1), ("c_fusion", 2), ("a_fusion", 5)
    ]  # fmt: skip


def test_passes_that_did_nothing_are_in_the_summary() -> None:
    listener = Explanation()
    listener.rewrites.append(OfferedRewrite(1, "a_fusion", (("n", "Add"),), "why"))
    assert summary(listener, ["b_fusion", "a_fusion", "a_fusion"]) == [
        {"pass": "a_fusion", "rewrites": 1, "refusals": 0, "reasons": []},
        {"pass": "b_fusion", "rewrites": 0, "refusals": 0, "reasons": []},
    ]
