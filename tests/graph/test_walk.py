"""Questions about the graph behind a value: each value once, at any depth, within bounds, until the run is stopped."""

from __future__ import annotations

from collections import Counter
from functools import partial

import onnx_ir as ir
import pytest

from ortopt.cancellation import CancellationToken
from ortopt.errors import OptimizationCancelled
from ortopt.graph import scope
from ortopt.graph.refusal import Refusal
from ortopt.graph.walk import WHOLE_GRAPH, Answers, Question, each, walk
from ortopt.options import Options


def built(length: int, op: str = "And", width: int = 2) -> tuple[ir.Model, ir.Value]:
    """A row of nodes, each of which reads the one before it so many times."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.BOOL))
    nodes, at = [], x
    for place in range(length):
        nodes.append(ir.node(op, [at] * width, name=f"n{place}"))
        at = nodes[-1].outputs[0]
    model = ir.Model(ir.Graph([x], [at], nodes=nodes, opset_imports={"": 17}), ir_version=10)
    scope.attach(model, Options())
    return model, at


def depth(asked: Counter[ir.Value], value: ir.Value) -> Question[ir.Value, int]:
    asked[value] += 1
    node = value.producer()
    if node is None:
        return 0
    return max((yield from each(operand for operand in node.inputs if operand is not None))) + 1


@pytest.mark.parametrize("length", [26, 600, 1_500])
def test_each_value_is_asked_about_once(length: int) -> None:
    _, value = built(length)
    asked: Counter[ir.Value] = Counter()
    assert walk(partial(depth, asked), value, unknown=-1, most=WHOLE_GRAPH) == length
    assert len(asked) == length + 1
    assert set(asked.values()) == {1}


def test_a_bound_makes_the_rest_unknown() -> None:
    _, value = built(600)
    asked: Counter[ir.Value] = Counter()
    answers: Answers[ir.Value, int] = Answers()
    assert walk(partial(depth, asked), value, unknown=1_000, most=10, answers=answers) == 1_010
    assert len(asked) == 10
    assert answers.known == {}  # all of it rests on what was taken for unknown


def test_answers_are_kept() -> None:
    _, value = built(600)
    asked: Counter[ir.Value] = Counter()
    answers: Answers[ir.Value, int] = Answers()
    node = value.producer()
    assert node is not None
    for at in (node.inputs[0], value, value):
        assert at is not None
        walk(partial(depth, asked), at, unknown=0, most=WHOLE_GRAPH, answers=answers)
    assert set(asked.values()) == {1}
    assert answers.known[value] == 600


def test_a_refusal_is_raised_where_the_answer_is_asked_for() -> None:
    def question(number: int) -> Question[int, str]:
        if number == 3:
            raise Refusal("three")
        try:
            return (yield number + 1)
        except Refusal as refusal:
            if number == 1:
                return f"no: {refusal.reason}"
            raise

    assert walk(question, 1, unknown="") == "no: three"
    answers: Answers[int, str] = Answers()
    for _ in range(2):
        with pytest.raises(Refusal, match="three"):
            walk(question, 2, unknown="", answers=answers)
    assert set(answers.refused) == {2, 3}


def test_unknown_may_be_a_refusal() -> None:
    _, value = built(20)
    with pytest.raises(Refusal, match="too far"):
        walk(partial(depth, Counter()), value, unknown=Refusal("too far"), most=10)


def test_a_circle_is_unknown_where_it_closes() -> None:
    """As through a Loop: a state is what its body makes of the state."""
    following = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": []}

    def reaches(name: str) -> Question[str, frozenset[str]]:
        found = yield from each(following[name])
        return frozenset({name}).union(*found)

    answers: Answers[str, frozenset[str]] = Answers()
    assert walk(reaches, "a", unknown=frozenset({"?"}), answers=answers) == {"a", "b", "c", "d", "?"}
    assert answers.known == {"d": frozenset({"d"})}


def test_the_token_of_the_run_is_asked() -> None:
    model, value = built(600)
    token = CancellationToken()
    asked: Counter[ir.Value] = Counter()

    def question(at: ir.Value) -> Question[ir.Value, int]:
        if len(asked) == 100:
            token.cancel()
        return depth(asked, at)

    with scope.stopped_by(model, token), pytest.raises(OptimizationCancelled):
        walk(question, value, unknown=0)
    assert len(asked) < 200
    assert walk(partial(depth, Counter()), value, unknown=0, most=WHOLE_GRAPH) == 600
