"""Sparse initializers and constants: carried as they are, computed with where their zeros may be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ortopt.errors import InvalidModelError
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from tests.serialization import models
from tests.whole_models.unverified import check_levels, optimized, results

ADD = "main ({kind}[2,3] x) => ({kind}[2,3] y) {{ a = Identity (x) y = Add (a, w) }}"
IF = """main (bool c, float[2,3] x) => (float[2,3] y) {
    y = If (c) <then_branch = t () => (float[2,3] u) { u = Add (x, w) },
    else_branch = e () => (float[2,3] v) { v = Neg (x) }> }"""


def sparse(
    name: str = "w",
    dims: tuple[int, ...] = (2, 3),
    kind: type = np.float32,
    indices: object = (1, 4),
    index: type = np.int64,
) -> onnx.SparseTensorProto:
    made = onnx.SparseTensorProto(dims=dims)
    made.values.CopyFrom(numpy_helper.from_array(np.array([5, 6], kind), name))
    made.indices.CopyFrom(numpy_helper.from_array(np.array(indices, index), f"{name}_indices"))
    return made


def parsed(text: str, opset: int = 17, *, named: str = "w") -> onnx.ModelProto:
    """A model whose value w is yet to be defined."""
    made = models.text(text.replace(named, "x"), opset=opset)
    original = text.count("w")
    assert original
    for graph in (made.graph, *(attribute.g for node in made.graph.node for attribute in node.attribute)):
        for node in graph.node:
            if node.op_type == "Add":
                node.input[1] = named
    return made


def added(tensor: onnx.SparseTensorProto, kind: str = "float", opset: int = 17) -> onnx.ModelProto:
    made = parsed(ADD.format(kind=kind), opset)
    made.graph.sparse_initializer.append(tensor)
    return made


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("kind", "numpy"), [("float", np.float32), ("double", np.float64), ("int64", np.int64), ("float16", np.float16)]
)
@pytest.mark.parametrize("indices", [(1, 4), (4, 1), ((0, 1), (1, 1)), (1, 1)])
def test_sparse_initializers(kind: str, numpy: type, indices: object) -> None:
    made = check_levels(added(sparse(kind=numpy, indices=indices), kind), {"x": np.ones((2, 3), numpy)})
    assert len(made[0].graph.sparse_initializer) == 1  # as it came
    assert all(not one.graph.sparse_initializer and one.graph.initializer for one in made[1:4])


@pytest.mark.parametrize("index", [np.int8, np.int16, np.int32])
def test_indices_of_other_types(index: type) -> None:
    check_levels(added(sparse(index=index)), {"x": X})


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("growth", [None, 0])
def test_zeros_are_written_within_the_growth_limit(opset: int, growth: int | None) -> None:
    dims = (1, 3) if growth is None else (1000, 3)
    made = added(sparse(dims=dims, indices=(0, 2)), opset=opset)
    made.graph.output[0].type.tensor_type.shape.dim[0].dim_value = dims[0]
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    for one in check_levels(made, {"x": X[:1]}, max_growth=growth)[1:4]:
        assert bool(one.graph.sparse_initializer) is (growth == 0)
    round_trip = onnx.load_from_string(to_bytes(load(made)))
    assert round_trip.graph.sparse_initializer[0] == made.graph.sparse_initializer[0]


def test_they_fold_as_other_constants_do() -> None:
    made = added(sparse())
    made.graph.node.insert(0, helper.make_node("Neg", ["w"], ["v"]))
    made.graph.node[2].input[1] = "v"
    assert [node.op_type for node in check_levels(made, {"x": X})[1].graph.node] == ["Add"]


def test_a_few_bytes_that_stand_for_terabytes_are_not_looked_into() -> None:
    made = added(sparse(dims=(1 << 30, 1 << 12)))
    made.graph.node.append(helper.make_node("Shape", ["w"], ["s"]))
    made.graph.node.append(helper.make_node("Neg", ["w"], ["n"]))
    made.graph.output.extend(helper.make_tensor_value_info(name, kind, None) for name, kind in (("s", 7), ("n", 1)))
    for dim in made.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_value = 1
    written = optimized(made, 3)
    assert len(written.graph.sparse_initializer) == 1
    assert len(written.SerializeToString()) < 2000


@pytest.mark.parametrize("name", ["in a branch", "a default", "a constant", "and dense"])
def test_places(name: str) -> None:
    tensor = sparse()
    feeds = {"x": X}
    if name == "in a branch":
        made = parsed(IF)
        made.graph.node[0].attribute[0].g.sparse_initializer.append(tensor)
        feeds["c"] = np.array(True)
    else:
        made = added(tensor)
    if name == "a default":
        made.graph.input.append(helper.make_tensor_value_info("w", 1, [2, 3]))
        assert results(optimized(made, 3), feeds | {"w": X})[0].tolist() == (X + X).tolist()
    if name == "a constant":
        del made.graph.sparse_initializer[:]
        made.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=tensor))
    if name == "and dense":
        made.graph.initializer.append(numpy_helper.from_array(X, "w"))  # ONNX Runtime takes the sparse one
    check_levels(made, feeds)
    check_levels(made, feeds, max_growth=0)


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_a_constant_in_a_function(level: int) -> None:
    """ONNX Runtime 1.31 crashes now and then when it loads such a function: the result alone is run."""
    made = added(sparse())
    (expected,) = results(made, {"x": X})
    nodes = [helper.make_node("Constant", [], ["w"], sparse_value=sparse()), helper.make_node("Add", ["a", "w"], ["b"])]
    made.functions.append(helper.make_function("f", "F", ["a"], ["b"], nodes, [helper.make_opsetid("", 17)]))
    made.opset_import.append(helper.make_opsetid("f", 1))
    made.graph.node[1].CopyFrom(helper.make_node("F", ["a"], ["y"], domain="f"))
    del made.graph.sparse_initializer[:]
    written = optimized(made, level)
    assert not any(node.domain == "f" for node in written.graph.node)
    assert results(written, {"x": X})[0].tolist() == expected.tolist()


def test_values_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "v.bin").write_bytes(np.float32([5, 6]).tobytes())
    made = added(sparse())
    values = made.graph.sparse_initializer[0].values
    values.ClearField("raw_data")
    values.data_location = onnx.TensorProto.EXTERNAL
    for key, text in (("location", "v.bin"), ("offset", "0"), ("length", "8")):
        values.external_data.add(key=key, value=text)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    written = onnx.load_from_string(to_bytes(load(tmp_path / "m.onnx")))
    assert results(written, {"x": X})[0].tolist() == [[1, 6, 1], [1, 7, 1]]


BROKEN: dict[str, Callable[[onnx.SparseTensorProto], object]] = {
    "an index is outside of it": lambda one: one.indices.CopyFrom(numpy_helper.from_array(np.array([1, 6]))),
    "an index is outside": lambda one: one.indices.CopyFrom(numpy_helper.from_array(np.array([-1, 2]))),
    "its values have the shape [2], its indices [1]": lambda one: one.indices.CopyFrom(
        numpy_helper.from_array(np.array([1]))
    ),
    "its values have the shape [2, 1]": lambda one: one.values.dims.append(1),
    "its indices are no integers": lambda one: one.indices.CopyFrom(numpy_helper.from_array(np.float32([1, 4]))),
    "it has a negative dimension": lambda one: one.dims.append(-1),
}


@pytest.mark.parametrize("because", BROKEN)
def test_broken(because: str) -> None:
    tensor = sparse()
    BROKEN[because](tensor)
    with pytest.raises(InvalidModelError) as caught:
        load(added(tensor))
    assert "sparse initializer 'w': " in str(caught.value)
    assert because in str(caught.value)
