"""Sizes that the caller chooses hold for whatever a model is verified with: drawn inputs and recorded ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ortopt import optimize, zoo
from ortopt.cli.group import commands
from ortopt.errors import UsageError
from ortopt.serialization.load import load
from ortopt.testing import parse
from ortopt.verification.draws import Draw
from ortopt.verification.inputs import Interface, Recorded
from ortopt.verification.verify import verify

pytestmark = pytest.mark.usefixtures("models_run_here")

SKELETONS = [name for name in zoo.names() if not name.startswith("light_")]
SMALL = ("llama_past__ts17", "lstm_tagger__ts13", "control_flow__script17")
"""Of each kind of symbols that the zoo has, images apart."""


def others(interface: Interface) -> list[tuple[str, int]]:
    """Symbols, and sizes that no input was recorded with."""
    return [(name, size) for name in interface.symbols for size in (1, 11 if name == "past_plus_seq" else 3)]


@pytest.mark.parametrize("name", SKELETONS)
def test_recorded_inputs_get_the_sizes_that_were_chosen(name: str) -> None:
    interface = Interface(load(zoo.cached(name)))
    for symbol, size in others(interface):
        recorded = zoo.inputs(name, sizes={symbol: size})
        interface.check(recorded, {symbol: size})
        shapes = {key: array.shape for key, array in recorded.items()}
        known = {key: array.shape for key, array in interface.draw(sizes=recorded_sizes(interface, shapes)).items()}
        assert shapes == known
        assert {key: array.dtype for key, array in recorded.items()} == {
            key: array.dtype for key, array in zoo.inputs(name).items()
        }


def recorded_sizes(interface: Interface, shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """The size of every symbol that is no sum of others, so that what is must follow."""
    sizes: dict[str, int] = {}
    for one in interface._inputs:
        for dim, size in zip(one.dims, shapes[one.name], strict=True):
            if not isinstance(dim, int):
                assert sizes.setdefault(str(dim), size) == size
    return {name: size for name, size in sizes.items() if name in interface.free_symbols}


@pytest.mark.parametrize("name", SMALL)
def test_a_model_that_runs_is_verified_at_any_size(name: str) -> None:
    path = zoo.cached(name)
    for symbol, size in others(Interface(load(path))):
        dims = {symbol: size}
        for inputs in (zoo.inputs(name, sizes=dims), None):
            found = optimize(path, level=0, dims=dims, inputs=inputs).verification
            assert found is not None
            assert (found.status, found.reason) == ("verified", "")


def test_the_command_line_draws_recorded_inputs_anew(tmp_path: Path) -> None:
    arguments = ["optimize", "zoo:lstm_tagger__ts13", "--dim", "batch=1", "--dim", "seq=8", "-O1"]
    done = CliRunner().invoke(commands, [*arguments, "-o", str(tmp_path / "out.onnx")])
    assert done.exit_code == 0, done.output
    assert "could not be verified" not in done.output
    both = ["verify", "zoo:lstm_tagger__ts13", str(tmp_path / "out.onnx"), "--dim", "batch=1", "--dim", "seq=8"]
    done = CliRunner().invoke(commands, both)
    assert done.exit_code == 0, done.output


def test_recorded_inputs_that_do_not_fit_are_replaced_by_drawn_ones() -> None:
    model = parse("main (float[N,4] x) => (float[N,4] y) { y = Relu (x) }")
    for unfit in (np.zeros((2, 5), np.float32), np.zeros((2, 4), np.float64), np.zeros(4, np.float32)):
        found = verify(model, model, inputs=Recorded(x=unfit))
        assert (found.status, found.attempts > 1) == ("verified", True)


def test_inputs_of_the_caller_that_do_not_run_are_named_as_the_reason() -> None:
    model = parse("main (float[N] x, int64[N] i) => (float[N] y) { y = Gather (x, i) }")
    found = verify(model, model, inputs={"x": np.zeros(2, np.float32), "i": np.array([0, 9])})
    assert found.status == "impossible"
    assert found.reason.startswith("the original does not run on the inputs that were given: ")


def test_inputs_of_the_caller_that_contradict_the_sizes_are_refused() -> None:
    model = parse("main (float[N,4] x) => (float[N,4] y) { y = Relu (x) }")
    given = {"x": np.zeros((2, 4), np.float32)}
    with pytest.raises(UsageError, match=r"input 'x' has the shape \[2, 4\], but where N=3 it is \[3, 4\]"):
        optimize(model, dims={"N": 3}, inputs=given)
    found = optimize(model, dims={"N": 2}, inputs=given)
    assert found.verified


PAST = "main (int64[b,seq] ids, int64[b,total_sequence_length] mask, float[b,past_len] kv) => (int64[b,seq] y)"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (8, 13, 5)),
        ({"past_len": 2}, (8, 10, 2)),
        ({"total_sequence_length": 20}, (8, 20, 12)),
        ({"total_sequence_length": 3}, (2, 3, 1)),
        ({"total_sequence_length": 1}, (1, 1, 0)),
        ({"total_sequence_length": 0}, (0, 0, 0)),
        ({"total_sequence_length": 9, "seq": 1}, (1, 9, 8)),
        ({"total_sequence_length": 9, "past_len": 9}, (0, 9, 9)),
    ],
)
def test_the_parts_of_a_sum_follow_it(given: dict[str, int], expected: tuple[int, ...]) -> None:
    drawn = Interface(parse(PAST + " { y = Identity (ids) }")).draw(sizes=given)
    assert (drawn["ids"].shape[1], drawn["mask"].shape[1], drawn["kv"].shape[1]) == expected


def test_a_denotation_names_a_size_too() -> None:
    model = parse("main (float[N,?] x, float[N] z) => (float[N,?] y) { y = Relu (x) }")
    shape = model.graph.inputs[0].shape
    assert shape is not None
    shape.set_denotation(0, "DATA_BATCH")
    shape.set_denotation(1, "DATA_WIDTH")
    interface = Interface(model)
    given = {"DATA_BATCH": 7, "DATA_WIDTH": 6}
    drawn = interface.draw(sizes=given)
    assert (drawn["x"].shape, drawn["z"].shape) == ((7, 6), (7,))
    assert interface.resized({"x": (2, 3), "z": (2,)}, given) == {"x": (7, 6), "z": (7,)}
    assert interface.draw(sizes=given, how=Draw(size=1))["x"].shape == (7, 6)
    assert optimize(model, dims=given).verified
