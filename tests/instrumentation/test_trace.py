"""Spans lie within each other as the work did."""

from __future__ import annotations

import itertools
import json
from typing import Any

import onnx_ir as ir

from ortopt import Context, GraphTransformer
from ortopt.api import optimize
from ortopt.instrumentation.dump import Trace
from ortopt.testing import parse

IF = """main (float[N] x, bool c) => (float[N] y) {
    i = Identity (x)
    y = If (c) <
        then_branch = one () => (float[N] a) { k = Identity (i) a = Relu (k) },
        else_branch = two () => (float[N] b) { b = Neg (i) }
    >
}"""


class Broken(GraphTransformer):
    """Nothing becomes of it."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        raise ValueError("no")


def spans(trace: Trace, category: str) -> list[dict[str, Any]]:
    return [event for event in trace.as_dict()["traceEvents"] if event.get("cat") == category]


def test_rules_lie_one_after_the_other_inside_their_sweep() -> None:
    trace = Trace()
    optimize(parse(IF), verify=False, observers=[trace])
    sweeps, passes = spans(trace, "sweep"), spans(trace, "pass")
    assert {event["args"]["graph"] for event in passes} >= {"main"}
    assert {event["name"] for event in passes} >= {"identity_elimination", "constant_folding"}
    for event in passes:
        around = [
            s for s in sweeps if s["ts"] <= event["ts"] and event["ts"] + event["dur"] <= s["ts"] + s["dur"] + 0.01
        ]
        assert around or event["args"]["visits"] == 0
    for first, second in itertools.pairwise(passes):
        assert first["ts"] + first["dur"] <= second["ts"] + 0.01
    rewrites = spans(trace, "rewrite")
    assert [event["args"]["number"] for event in rewrites] == sorted(event["args"]["number"] for event in rewrites)
    json.dumps(trace.as_dict(), allow_nan=False)


def test_what_failed_is_marked() -> None:
    trace = Trace()
    optimize(parse(IF), verify=False, strict=False, observers=[trace], transformers=[Broken()])
    (failure,) = spans(trace, "failure")
    assert failure["name"] == "broken failed"
    assert failure["args"] == {"reason": "ValueError: no"}
    assert all(event["dur"] >= 0 for event in spans(trace, "pass"))
