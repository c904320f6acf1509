"""The table against ONNX's schemas: which attribute became an input, and when."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.defs
import pytest
from onnx.reference import ReferenceEvaluator

from ortopt.semantics import op_traits, opset_changes

MOVED: dict[str, Mapping[str, int]] = {
    "axes": opset_changes.AXES_ARE_AN_INPUT_FROM,
    "pads": opset_changes.PADS_ARE_AN_INPUT_FROM,
    "scales": opset_changes.SCALES_ARE_AN_INPUT_FROM,
    "split": opset_changes.SIZES_ARE_AN_INPUT_FROM,
    "starts": {"Slice": opset_changes.BOUNDS_ARE_INPUTS_FROM["Slice"]},
    "min": {"Clip": opset_changes.BOUNDS_ARE_INPUTS_FROM["Clip"]},
}
CASES = [(name, op, since) for name, table in MOVED.items() for op, since in table.items()]


def inputs_of(op: str, opset: int) -> list[str]:
    return [formal.name for formal in onnx.defs.get_schema(op, opset).inputs]


@pytest.mark.parametrize(("name", "op", "since"), CASES)
def test_an_attribute_became_an_input(name: str, op: str, since: int) -> None:
    assert name in onnx.defs.get_schema(op, since - 1).attributes
    assert name not in onnx.defs.get_schema(op, since).attributes
    assert name not in inputs_of(op, since - 1)
    assert name in inputs_of(op, since)


def test_axes_are_the_second_input_of_all_that_have_them() -> None:
    for op, since in opset_changes.AXES_ARE_AN_INPUT_FROM.items():
        assert inputs_of(op, since)[1] == "axes"
    assert opset_changes.AXES_ARE_AN_INPUT_FROM.keys() > op_traits.REDUCTIONS


def test_the_second_input_of_resize_became_a_region() -> None:
    since = opset_changes.REGION_IS_AN_INPUT_FROM["Resize"]
    assert inputs_of("Resize", since - 1)[1:] == ["scales"]
    assert inputs_of("Resize", since)[1:] == ["roi", "scales", "sizes"]


@pytest.mark.parametrize("op", sorted(op_traits.BROADCASTING))
def test_attributes_said_how_operands_broadcast(op: str) -> None:
    versions = {schema.since_version for schema in onnx.defs.get_all_schemas_with_history() if schema.name == op}
    for version in versions:
        schema = onnx.defs.get_schema(op, version)
        assert "broadcast" not in schema.attributes or version < opset_changes.BROADCASTS_FROM


@pytest.mark.parametrize(("op", "since"), opset_changes.ONE_AXIS_FROM.items())
def test_the_default_axis_changed(op: str, since: int) -> None:
    for opset, axis in ((since - 1, 1), (since, -1)):
        assert onnx.defs.get_schema(op, opset).attributes["axis"].default_value.i == axis


@pytest.mark.parametrize(("op", "since"), opset_changes.ONE_AXIS_FROM.items())
def test_one_axis_is_another_function(op: str, since: int) -> None:
    """The newer form is along the axis alone: rows of a matrix do not see one another."""
    node = onnx.helper.make_node(op, ["x"], ["y"], axis=0)
    info = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 2]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", info[:1], info[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", since)])
    x = np.array([[0, 3], [1, 1]], np.float32)
    (y,) = ReferenceEvaluator(model).run(None, {"x": x})
    (first,) = ReferenceEvaluator(model).run(None, {"x": x[:, :1]})
    assert np.allclose(y[:, :1], first)


def test_a_scan_lost_its_batch() -> None:
    since = opset_changes.SCAN_HAS_NO_BATCH_FROM
    assert onnx.defs.get_schema("Scan", since).since_version == since
    assert "sequence_lens" in inputs_of("Scan", since - 1)
    assert "sequence_lens" not in inputs_of("Scan", since)
