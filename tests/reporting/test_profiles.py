"""Profiles side by side: what changed, what ONNX Runtime does at load, and why the hottest ops are left."""

from __future__ import annotations

import io

import onnx_ir as ir

from ortopt.graph.refusal import Code, Reason
from ortopt.instrumentation.explanation import Explanation
from ortopt.measurement.profiling import OpTime, Profile
from ortopt.reporting import profiles, report
from ortopt.testing import parse
from ortopt.transformer import GraphTransformer

BEFORE = Profile(
    (OpTime("MatMul", 1, 3.0, 0.75), OpTime("Identity", 1, 1.0, 0.25)), {"MatMul": 1, "Identity": 1}, {"MatMul": 1}, 9
)
AFTER = Profile(
    (OpTime("MatMul", 1, 2.4, 0.96), OpTime("com.microsoft::New", 1, 0.1, 0.04)), {"MatMul": 1}, {"MatMul": 1}, 9
)
MODEL = "main (float[2,2] a, float[2,2] b) => (float[2,2] y) { y = MatMul (a, b) }"


class SomePass(GraphTransformer):
    """Nothing becomes of it."""

    def apply(self, graph: ir.Graph, context: object) -> bool:
        return False


def described() -> dict[str, object]:
    model, listener = parse(MODEL), Explanation()
    for reason in (
        Reason("no Add comes after", Code.ABSENT, "y"),
        Reason("too large; --max-growth 1MB takes it", Code.SIZE),
    ):
        kind = type("Other" if reason.code is Code.ABSENT else "Growing", (SomePass,), {"__doc__": "It."})
        listener.refused(kind(), model.graph[0], reason)
    listener.refused(SomePass(), ir.node("MatMul", [], name="gone"), "it is no longer there")
    return profiles.describe(BEFORE, AFTER, model, listener)


def test_the_data_name_what_is_left_and_why() -> None:
    data = described()
    (left,) = data["left"]  # type: ignore[misc]
    assert (left["op"], left["nodes"]) == ("MatMul", 1)
    assert [row["reason"] for row in left["reasons"]] == ["too large; --max-growth 1MB takes it", "no Add comes after"]
    assert data["fused_at_load"] == {"original": [{"op": "Identity", "file": 1, "loaded": 0}], "result": []}


def test_the_table_says_faster_slower_gone_and_new() -> None:
    stream = io.StringIO()
    profiles.show(described(), report.console(stream))
    lines = stream.getvalue().splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:5]}
    assert rows["MatMul"][-2:] == ["1.25×", "faster"]
    assert rows["Identity"][-1] == "gone"
    assert rows["com.microsoft::New"][-1] == "new"
    assert rows["all"][-2:] == ["1.60×", "faster"]
    assert "when it loads the original, ONNX Runtime changes: Identity 1 → 0" in lines
    assert "ONNX Runtime leaves the result as it is when it loads it" in lines
    assert "MatMul takes 96% of the result's time (1 nodes in the file):" in lines


def test_an_original_alone_has_no_changes() -> None:
    data = profiles.describe(BEFORE, None)
    assert (data["result"], data["left"], data["fused_at_load"]["result"]) == (None, [], None)
    stream = io.StringIO()
    profiles.show(data, report.console(stream))
    assert "gone" not in stream.getvalue()
