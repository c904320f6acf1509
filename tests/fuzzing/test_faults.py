"""Runs that are killed, cancelled, or in which a pass raises; and broken files. `fuzzing` does it at scale."""

from __future__ import annotations

import os
import random
from pathlib import Path

import onnx
import pytest
from onnx import helper

from fuzzing import faults, kills, loader
from fuzzing.campaign import case_of
from fuzzing.generator import generate
from ortopt.errors import InvalidModelError
from ortopt.serialization.load import load

FOUND = (
    ("value_int", "a string", "is of type STRING, not INT"),
    ("value", [1, 2], "is of type INTS, not TENSOR"),
    ("value_floats", [1, 2], "is of type INTS, not FLOATS"),
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_killed_run_leaves_the_old_or_the_new_model_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    done = kills.kill(8, 1, tmp_path, layers=4)
    assert done.wrong == []
    assert done.killed == 8
    assert done.old


def test_a_cancelled_run_holds_exactly_the_rewrites_that_had_completed() -> None:
    for seed in (1, 3, 5):
        done = faults.cancel(generate(seed).model.SerializeToString(), 8, seed, threads=False)
        assert done.wrong == []
        assert done.cancelled > 4


def test_a_pass_that_raises_in_mid_edit_is_taken_back_to_the_byte() -> None:
    passes = set()
    for seed in (1, 3, 5, 11, 18):
        done = faults.let_raise(generate(seed).model.SerializeToString(), 2, seed)
        assert done.wrong == []
        passes |= done.raised.keys()
    assert len(passes) > 15
    for seed in (7, 117):  # whose Constants have no names inside, and functions with Constants are inlined
        assert faults.let_raise(case_of(seed).model.SerializeToString(), 1, seed).wrong == []


def test_broken_models_raise_nothing_but_that_they_are_broken(tmp_path: Path) -> None:
    draw, seeds = random.Random(0), list(loader.seeds())
    for data in seeds:
        assert loader.examine(data, tmp_path) is None
    for _ in range(400):
        data = draw.choice(seeds)
        for _ in range(draw.randint(1, 4)):
            data = loader.mutated(data, loader.LARGEST, draw)
        assert loader.examine(data, tmp_path) is None


@pytest.mark.parametrize(("name", "content", "reason"), FOUND)
def test_a_constant_of_another_type_than_it_says_is_refused(name: str, content: object, reason: str) -> None:
    model = _with_constant(helper.make_node("Constant", [], ["c"], **{name: content}))
    with pytest.raises(InvalidModelError, match=reason):
        load(model)


def test_a_constant_without_a_result_is_refused() -> None:
    with pytest.raises(InvalidModelError, match="has not the one result that it must have"):
        load(_with_constant(helper.make_node("Constant", [], [], value_int=1)))


def test_a_device_configuration_that_the_model_does_not_have_is_refused() -> None:
    model = _with_constant(helper.make_node("Constant", [], ["c"], value_int=1))
    model.ir_version = 11
    model.graph.node[0].device_configurations.add(configuration_id="")
    with pytest.raises(InvalidModelError, match="refers to none of the model"):
        load(model)


def test_a_device_configuration_without_a_name_is_refused() -> None:
    model = _with_constant(helper.make_node("Constant", [], ["c"], value_int=1))
    model.ir_version = 11
    model.configuration.add(name="", num_devices=1, device=["a"])
    model.graph.node[0].device_configurations.add(configuration_id="")
    with pytest.raises(InvalidModelError, match="a device configuration without a name"):
        load(model)


def _with_constant(node: onnx.NodeProto) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, 1, [1]) for name in "xy")
    graph = helper.make_graph([node, helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
