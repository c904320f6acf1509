"""Questions that give what they ask for, and the order in which nodes can be built anew."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt import ops
from ortopt.graph.match import Absent, Refusal, need_known, producer
from ortopt.graph.order import after_what_they_read
from ortopt.testing import parse

TEXT = "main (float[N] x) => (float[N] y) { a = Relu (x) b = Abs (a) c = Neg (a) y = Add (b, c) }"


def nodes_of(text: str) -> list[ir.Node]:
    return list(parse(text).graph)


def test_an_answer_is_given_or_refused() -> None:
    assert need_known(0, "it is not known") == 0
    with pytest.raises(Refusal, match="it is not known"):
        need_known(None, "it is not known")


def test_a_producer_may_have_to_serve_one_reader() -> None:
    relu, magnitude, *_ = nodes_of(TEXT)
    assert producer(magnitude.outputs[0], "Abs", alone="it is used elsewhere") is magnitude
    assert producer(relu.outputs[0], "Relu") is relu
    with pytest.raises(Refusal, match="it is used elsewhere"):
        producer(relu.outputs[0], "Relu", alone="it is used elsewhere")
    with pytest.raises(Absent, match="no Neg comes before"):
        producer(relu.outputs[0], "Neg", alone="it is used elsewhere")


def test_nodes_stand_after_what_they_read() -> None:
    relu, magnitude, negation, total = nodes_of(TEXT)
    order = after_what_they_read([total, relu], {magnitude, negation, relu})
    assert order[0] is relu
    assert order[-1] is total
    assert set(order) == {relu, magnitude, negation, total}
    assert after_what_they_read([total], {negation}) == [negation, total]


def test_a_value_that_does_not_count_is_read_through() -> None:
    relu, magnitude, _, total = nodes_of(TEXT)
    through = {magnitude.outputs[0]: relu.outputs[0]}
    assert after_what_they_read([total], {relu}, lambda value: through.get(value, value)) == [relu, total]


def test_copies_follow_one_another() -> None:
    relu, magnitude, *_ = nodes_of(TEXT)
    value = ops.followed(relu.inputs[0], [relu, magnitude])
    copy = producer(value, "Abs")
    assert copy is not magnitude
    assert producer(copy.inputs[0], "Relu").inputs[0] is relu.inputs[0]


def test_activations_have_their_parameters() -> None:
    text = "main (float[N] x) => (float[N] y) { a = Elu <alpha = 2.0> (x) b = HardSigmoid (a) y = Tanh (b) }"
    elu, gate, tanh = (ops.Activation(node).parameters for node in nodes_of(text))
    assert elu == {"alpha": 2.0}
    assert gate == {"alpha": 0.2, "beta": 0.5}
    assert tanh == {}
