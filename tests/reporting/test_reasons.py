"""Reasons summed up: what an option would change comes first, what is not there at all last."""

from __future__ import annotations

import copy

import onnx_ir as ir

from ortopt.graph.refusal import Code, Reason, Refusal, reason_of
from ortopt.instrumentation.explanation import Explanation, OfferedRewrite, RefusedCandidate
from ortopt.reporting.reasons import as_data, by_pass, summary


def test_the_value_that_a_reason_is_about_is_apart() -> None:
    value = ir.Value(name="x")
    told = Refusal("the rank is not 2", value, code=Code.ABSENT).told
    assert (str(told), told.clause, told.about) == ("the rank is not 2 (x)", "the rank is not 2", "x")
    assert copy.deepcopy(told).about == "x"
    assert reason_of("it is for others (--target onnx)").clause == "it is for others (--target onnx)"


def test_a_reason_gives_its_parts_as_data() -> None:
    assert as_data(Reason("the type changes", Code.TYPE, "v")) == {
        "reason": "the type changes (v)", "clause": "the type changes", "about": "v", "code": "type"
    }  # fmt: skip


def test_that_something_was_decided_says_less_than_why() -> None:
    decided = Reason("FusedMatMul stands for the product", Code.DECIDED)
    assert not decided.replaces(Reason("on the CPU, A is slower", Code.COST))
    assert decided.replaces(Reason("no MatMul comes before", Code.ABSENT))
    assert Reason("the type changes", Code.TYPE).replaces(decided)


def test_what_an_option_would_change_comes_first() -> None:
    absent = Reason("no MatMul comes before", Code.ABSENT, "x")
    refusals = [
        *[RefusedCandidate("a_fusion", f"n{i}", "Add", absent) for i in range(5)],
        RefusedCandidate("b_fusion", "n", "Add", Reason("on the CPU, B is slower", Code.COST)),
        *[RefusedCandidate("c_fusion", f"n{i}", "Add", Reason("the type changes", about=f"v{i}")) for i in range(2)],
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
