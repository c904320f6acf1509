"""What a model takes is found by trying: sizes, branches, sets that end the process."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.errors import UsageError
from ortopt.testing import parse
from ortopt.verification.draws import Draw, initial_draws
from ortopt.verification.input_search import EmptySets, Search
from ortopt.verification.input_sets import InputSet
from ortopt.verification.inputs import Inputs, Interface, draw_inputs
from ortopt.verification.process import InProcessWorker, Worker, WorkerError
from ortopt.verification.verify import Reference, verify

WRONG_IN = """main (float[N] x, {condition}) => (float[N] y) {{
    {test}
    y = If ({name}) <then_branch = t () => (float[N] u) {{ u = {then} (x) }},
                     else_branch = e () => (float[N] v) {{ v = {other} (x) }}> }}"""


def branches(condition: str, test: str, name: str, then: str = "Neg", other: str = "Abs") -> ir.Model:
    return parse(WRONG_IN.format(condition=condition, test=test, name=name, then=then, other=other))


CONDITIONS = [
    ("bool c", "", "c"),
    ("bool[1] c", "", "c"),
    ("int64 n", "k = Constant <value = int64 {16000}> () c = Equal (n, k)", "c"),
    ("int32[1] n", "k = Constant <value = int32[1] {7}> () m = Identity (n) c = Equal (k, m)", "c"),
    ("int64 n", "k = Constant <value = int64 {16000}> () c = Greater (n, k)", "c"),
    ("int64 n", "k = Constant <value = int64 {16000}> () c = Less (k, n)", "c"),
    ("int64 n", "k = Constant <value = int64 {-9}> () c = LessOrEqual (n, k)", "c"),
]


@pytest.mark.parametrize("wrong", [{"then": "Sqrt"}, {"other": "Sqrt"}])
@pytest.mark.parametrize(("condition", "test", "name"), CONDITIONS)
def test_both_branches_are_taken(condition: str, test: str, name: str, wrong: dict[str, str]) -> None:
    right = branches(condition, test, name)
    assert verify(right, right, in_process=True).status == "verified"
    assert verify(right, branches(condition, test, name, **wrong), in_process=True).status == "differs"


def test_inputs_of_many_elements_stay_as_they_are() -> None:
    """What is equal to the padding everywhere shows nothing."""
    model = parse("""main (int64[N] ids) => (bool[N] y) {
        k = Constant <value = int64 {3}> () y = Equal (ids, k) }""")
    assert len(set(draw_inputs(model, sizes={"N": 50})["ids"].tolist())) > 5
    assert not Interface(model).has_conditions


def test_open_dimensions_are_tried_as_symbols_are() -> None:
    model = parse("main (float[?,3,?] x) => (float[?,3,?] y) { y = Identity (x) }")
    interface = Interface(model)

    def shape(how: Draw) -> tuple[int, ...]:
        return tuple(interface.draw(how=how)["x"].shape)

    assert shape(Draw()) == (2, 3, 4)
    assert shape(Draw(size=1)) == (1, 3, 1)
    assert shape(Draw(size=64)) == (2, 3, 64)
    assert shape(Draw(length=512)) == (1, 3, 512)


@pytest.mark.parametrize(("size", "batch"), [(16, 16), (224, 2)])
def test_a_batch_of_large_images_is_small(size: int, batch: int) -> None:
    model = parse("main (float[batch,3,height,width] x) => (float[batch,3,height,width] y) { y = Identity (x) }")
    assert Interface(model).draw(how=Draw(size=size))["x"].shape == (batch, 3, size, size)


def test_the_last_of_several_dimensions_may_be_long() -> None:
    model = parse("main (float[batch,samples] x, int64[batch] lens, float[2,?,8] state) => (float[batch,samples] y)"
                  " { y = Identity (x) }")  # fmt: skip
    drawn = Interface(model).draw(how=Draw(length=4096))
    assert [drawn[name].shape for name in ("x", "lens", "state")] == [(2, 4096), (2,), (2, 1, 8)]


SIGNAL = """main (float[{dims}] x) => (float[F] y) {{
    n = Shape <start = -1> (x)
    k = Constant <value = int64[1] {{{least}}}> ()
    frames = Div (n, k)
    one = Constant <value = int64[1] {{1}}> ()
    {more}
    y = Expand (z, frames) }}"""
FINE = "flat = Constant <value = int64[1] {-1}> () s = Reshape (x, flat) i = Sub (frames, one) z = Gather (s, i)"
DIES = """lowest = Constant <value = int64[1] {-9223372036854775808}> ()
    more = Add (frames, one)
    less = Neg (more)
    share = Div (lowest, less)
    z = Cast <to = 1> (share)"""  # the least integer divided by -1 ends the process


@pytest.mark.parametrize("dims", ["N", "B,N", "?,?"])
def test_a_signal_of_some_length_is_needed(dims: str) -> None:
    text = SIGNAL.format(dims=dims, least=100 if dims == "N" else 400, more=FINE)
    found = verify(parse(text), parse(text), in_process=True)
    assert found.status == "verified"


def test_a_single_signal_of_some_length_is_needed() -> None:
    alone = """first = Constant <value = int64[1] {0}> () s = Squeeze (x, first) h = Slice (s, first, k)
        all = Reshape (h, k) z = Gather (all, first)"""
    text = SIGNAL.format(dims="batch,samples", least=400, more=alone)
    found = verify(parse(text), parse(text), in_process=True)
    assert found.status == "verified"


def test_a_set_that_ends_the_process_is_not_the_last() -> None:
    text = SIGNAL.format(dims="B,N", least=400, more=DIES)
    right = verify(parse(text), parse(text))
    assert (right.status, right.input_sets) == ("verified", 2)
    wrong = verify(parse(text), parse(text.replace("Cast <to = 1> (share)", "Cast <to = 1> (n)")))
    assert wrong.status == "differs"


def test_a_model_that_always_ends_its_process_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortopt.verification.input_search._FAILING_FOR", 1000.0)  # five processes, however slow
    text = SIGNAL.format(dims="B,N", least=1_000_000, more=DIES)
    found = verify(parse(text), parse(text))
    assert found.status == "impossible"
    assert "SIGFPE" in found.reason
    assert found.attempts == 5


def test_attempts_are_all_different() -> None:
    ways = list(initial_draws())
    assert len({tuple(dataclasses.astuple(way)) for way in ways}) == len(ways)


def test_a_set_that_cannot_be_drawn_does_not_end_the_search() -> None:
    tried: list[Any] = []

    def draw(how: Draw) -> Inputs:
        if how.size is None:
            raise UsageError("too large")
        return {"x": np.zeros(how.size)}

    def attempt(_worker: Worker, inputs: Inputs, _label: str) -> InputSet:
        tried.append(inputs["x"].size)
        raise WorkerError("it does not run")

    interface = Interface(parse("main (float[N] x) => (float[N] y) { y = Identity (x) }"))
    search = Search(interface, draw, attempt, fine=True, given={})
    with pytest.raises(WorkerError, match="it does not run"):
        search.run(InProcessWorker([]))
    assert tried == [1, 2, 8, 16, 32, 64, 128, 224]


@pytest.mark.parametrize(
    ("dims", "labels"),
    [
        ("A,2] x, float[B,2", ["'A' is 0 and 'B' is 0"]),
        ("A,2] x, float[A,B", ["'A' is 0", "'B' is 0"]),
    ],
)
def test_a_symbol_is_0_alone_only_where_it_may_be_another_size_alone(
    dims: str, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Concat leaves parts without elements out, whatever their other sizes are: what they fill stays unwritten."""
    monkeypatch.setattr("ortopt.verification.input_search._FURTHER_SECONDS", 10.0)
    text = f"main (float[{dims}] y) => (float[M,N] z) {{ z = Concat <axis = 1> (x, y) }}"
    with Reference(parse(text), in_process=True) as reference:
        assert reference.run() is None
        sets = reference._outputs.sets.values()  # type: ignore[union-attr]
    empty = [each for each in sets if "is 0" in each.label]
    assert [each.label for each in empty] == labels
    assert all(each.extreme for each in empty)


def test_a_size_that_something_must_divide_may_be_0() -> None:
    text = """main (float[N] x) => (float[M,4] y) { shape = Constant <value_ints = [-1, 4]> ()
        y = Reshape <allowzero = 0> (x, shape) }"""
    ran = [{"N": 8}]
    interface = Interface(parse(text))
    sizes: list[int] = []

    def attempt(_worker: Worker, how: Draw, label: str) -> InputSet:
        sizes.append(dict(how.sizes)["N"])
        if sizes[-1] % 4:
            raise WorkerError("it does not run")
        return InputSet(Path(), Path(), [], label, 0.0, 1)

    sets = EmptySets(interface, attempt, {}, ran, 10.0).run(InProcessWorker([]))
    assert [each.label for each in sets] == ["'N' is 0"]
    assert sizes[0] == 0


def test_a_result_that_is_wrong_without_elements_only_differs() -> None:
    text = """main (float[N,4] x) => (float[4] y) {{
        axes = Constant <value_ints = [0]> () s = ReduceSum <keepdims = 0> (x, axes)
        shape = Shape <end = 1> (x) none = Constant <value_ints = [0]> () empty = Equal (shape, none)
        more = Cast <to = 1> (empty) y = {} (s, more) }}"""
    right, wrong = parse(text.format("Sub")), parse(text.format("Add"))
    assert verify(right, wrong, in_process=True).status == "differs"
    assert verify(right, right, in_process=True).status == "verified"
