"""What listeners are told: refusals, offers, and what would have grown too large."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt.api import Optimization, make_options
from ortopt.graph.edit import constant
from ortopt.graph.match import inputs, need
from ortopt.instrumentation.explanation import Explanation
from ortopt.rule import Forwarded
from ortopt.testing import parse
from tests.rules import Swap, applied


class ReluToNeg(Swap):
    """Relu becomes Neg where its input comes from a Neg."""

    def match(self, root: ir.Node) -> Forwarded:
        (x,) = inputs(root, 1)
        producer = x.producer()
        need(producer is not None and producer.op_type == "Neg", "it follows no Neg", x)
        return Forwarded((root,), x)


class AbsToNeg(Swap):
    """Abs becomes Neg, which makes the Relu after it a candidate."""

    roots = ("Abs",)


def test_a_refused_candidate_that_is_rewritten_later_is_no_refusal() -> None:
    explanation = Explanation(["relu_to_neg"])
    text = "main (float[N] x) => (float[N] y, float[N] z) { a = Abs (x) y = Relu (a) z = Relu (x) }"
    applied(text, ReluToNeg(), AbsToNeg(), observers=[explanation], keep_order=True)
    assert [refusal.node for refusal in explanation.refusals] == ["z"], "nodes without names go by their results"
    assert [rewrite.nodes for rewrite in explanation.rewrites] == [(("y", "Relu"),)]


class Inflate(Swap):
    """Relu of one element becomes an addition of 4 kB."""

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("ReduceSum", [ir.node("Add", [found.value, constant([0.0] * 1000)]).outputs[0]], {"keepdims": 1})


BIG = "main (float[1] x, float[1] w) => (float[1] y, float[1] z) { y = Relu (x) z = Relu (w) }"


@pytest.mark.parametrize(("growth", "count"), [(0, 2), (4000, 1), (8000, 0)])
def test_what_would_grow_the_file_too_much_is_counted_and_never_told_as_a_rewrite(growth: int, count: int) -> None:
    explanation = Explanation()
    options = make_options(
        level=1, providers=("cpu",), target="ort", passes=None, only=("inflate",), steps=3, max_growth=growth
    )
    run = Optimization(parse(BIG), options, transformers=[Inflate()], observers=[explanation])
    run.transform()
    refused = run.result(None).summary.too_large
    assert [(one.transformer, one.count, one.nbytes) for one in refused] == [("inflate", count, 4000 * count)][:count]
    assert len(explanation.rewrites) == 2 - count
    assert len(explanation.refusals) == count
