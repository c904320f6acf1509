"""Profiles side by side: what changed, what ONNX Runtime does at load, and why the hottest ops are left."""

from __future__ import annotations

import io
import re

import onnx_ir as ir
from rich.console import Console

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
    assert (left["op"], left["nodes"], left["relevant"]) == ("MatMul", 1, 1)
    assert [row["reason"] for row in left["reasons"]] == ["too large; --max-growth 1MB takes it", "no Add comes after"]
    assert data["fused_at_load"] == {"original": [{"op": "Identity", "file": 1, "loaded": 0}], "result": []}


def test_the_table_says_faster_slower_gone_and_new() -> None:
    stream = io.StringIO()
    profiles.show(described(), report.console(stream))
    lines = stream.getvalue().splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:5]}
    assert rows["MatMul"][-2:] == ["1.25×", "faster"]
    assert rows["Identity"][-1] == "gone"
    assert rows["New"][-1] == "new"
    assert rows["all"][-2:] == ["1.60×", "faster"]
    assert "when it loads the original, ONNX Runtime takes 1 node out" in lines
    assert "ONNX Runtime leaves the result as it is when it loads it" in lines
    at = lines.index("MatMul takes 96% of the result's time (1 node in the file):")
    assert lines[at + 1] == "  growing (at 1): too large; --max-growth 1MB takes it"
    assert "no Add comes after" not in stream.getvalue(), "that something is not there is no news"


def large() -> dict[str, object]:
    """Profiles of 30 ops, the slowest of which several passes refused with long reasons."""
    names = [f"com.microsoft::AnOpWithARatherLongName{i}" for i in range(30)]
    shares = [0.4, 0.25, 0.1, 0.09, *[0.16 / 26] * 26]
    ops = tuple(OpTime(name, 1, 10 * share, share) for name, share in zip(names, shares, strict=True))
    file = dict.fromkeys(names, 1)
    loaded = {f"com.microsoft::Fused{i}": 3 for i in range(9)}
    both = Profile(ops, file, loaded, 9)
    nodes = [ir.node(name.rpartition("::")[2], [], name=name, domain="com.microsoft") for name in names]
    model, listener = ir.Model(ir.Graph([], [], nodes=nodes), ir_version=10), Explanation()
    for number, node in enumerate(nodes):
        for i in range(6):
            kind = type(f"PassWithARatherLongName{i}", (SomePass,), {"__doc__": "It."})
            because = f"reason {i} at op {number}: " + "it is a long story with many words in it " * 3
            listener.refused(kind(), node, Reason(because.strip(), Code.CONDITION))
    return profiles.describe(both, both, model, listener)


def test_only_slow_ops_have_reasons_and_the_screen_is_not_full() -> None:
    data = large()
    assert [row["op"][-1] for row in data["left"]] == ["0", "1", "2"]  # type: ignore[attr-defined]
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None, markup=False, highlight=False)
    profiles.show(data, console)
    lines = stream.getvalue().splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80
    text = " ".join(stream.getvalue().split())
    assert re.findall(r"reason (\d) at op (\d+)", text) == [("0", "0"), ("1", "0"), ("0", "1"), ("0", "2")]
    assert "23 other ops" in text
    assert "ONNX Runtime makes 3 Fused0, 3 Fused1, 3 Fused2, nodes of 6 other ops and takes 30 nodes out" in text


def test_a_hot_op_about_which_nothing_can_be_done() -> None:
    model, listener = parse(MODEL), Explanation()
    listener.refused(SomePass(), model.graph[0], Reason("no Add comes after", Code.ABSENT))
    stream = io.StringIO()
    profiles.show(profiles.describe(BEFORE, AFTER, model, listener), report.console(stream))
    assert "no pass that looked at it finds what it is for" in stream.getvalue()
    assert "no Add comes after" not in stream.getvalue()


def test_an_original_alone_has_no_changes() -> None:
    data = profiles.describe(BEFORE, None)
    assert (data["result"], data["left"], data["fused_at_load"]["result"]) == (None, [], None)
    stream = io.StringIO()
    profiles.show(data, report.console(stream))
    assert "gone" not in stream.getvalue()
