"""Loading: every source, every field of onnx.proto carried or refused by name, external data confined."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from ortopt import extract, optimize, semantics
from ortopt.errors import InvalidModelError
from ortopt.serialization.load import SOURCE_KEY, load
from ortopt.serialization.mapped_tensors import MappedTensor
from ortopt.serialization.save import to_bytes
from tests.serialization import models

SMALL = "g (float[2] x) => (float[2] y) { y = Neg(x) }"


def external(path: Path, **entries: str) -> Path:
    """A model whose initializer w (1,000 floats) is in a file."""
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[1000], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    proto = models.model([helper.make_node("Add", ["x", "w"], ["y"])], initializer=[tensor])
    path.write_bytes(proto.SerializeToString())
    return path


def test_every_source_gives_the_same_model(tmp_path: Path) -> None:
    proto = models.weights()
    data = proto.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    sources = [tmp_path / "m.onnx", str(tmp_path / "m.onnx"), data, io.BytesIO(data), proto, ir.from_proto(proto)]
    assert {to_bytes(load(source)) for source in sources} == {to_bytes(load(data))}
    assert load(tmp_path / "m.onnx").meta[SOURCE_KEY].nbytes == len(data)


def test_large_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(models.weights().SerializeToString())
    loaded = load(tmp_path / "m.onnx")
    tensor = loaded.graph.initializers["w"].const_value
    assert isinstance(tensor, MappedTensor)
    assert np.array_equal(tensor.numpy(), models.WEIGHT)
    constant = loaded.graph[1].attributes["value"].as_tensor()
    assert constant.raw.source is tensor.raw.source
    branch = loaded.graph[4].attributes["else_branch"].as_graph()
    assert np.array_equal(branch.initializers["v"].const_value.numpy(), models.WEIGHT + 1)


@pytest.mark.parametrize(
    "holding",
    [
        lambda model: SimpleNamespace(model=model),  # torch.onnx.ONNXProgram has it, too
        lambda model: optimize(model, level=0, verify=False),
        lambda model: extract(model, outputs=[output.name for output in model.graph.outputs]),
    ],
    ids=["any object", "a result", "a part"],
)
def test_what_holds_a_model_is_one_whose_weights_are_shared(holding: Callable[[ir.Model], Any]) -> None:
    model = load(models.weights())
    before, weights = to_bytes(model), {id(value.const_value) for value in model.graph.initializers.values()}
    loaded = load(holding(model))
    assert to_bytes(loaded) == before == to_bytes(model)
    assert {id(value.const_value) for value in loaded.graph.initializers.values()} == weights


def test_what_holds_protobuf_alone_is_a_model_and_what_holds_anything_else_is_none() -> None:
    proto = models.weights()
    assert to_bytes(load(SimpleNamespace(model_proto=proto))) == to_bytes(load(proto))  # type: ignore[arg-type]
    for holder in (SimpleNamespace(model="text"), SimpleNamespace(model_proto=b""), None):
        kind = type(holder).__name__
        with pytest.raises(InvalidModelError, match=f"an object of type {kind} is none; models are paths, .*export"):
            load(holder)  # type: ignore[arg-type]


def test_a_model_in_memory_is_copied_and_shares_its_tensors() -> None:
    source = ir.from_proto(models.weights())
    before = ir.to_proto(source)
    loaded = load(source)
    assert loaded is not source
    assert loaded.graph.initializers["w"].const_value is source.graph.initializers["w"].const_value
    loaded.graph[0].op_type = "Gemm"
    loaded.graph[0].outputs[0].name = "other"
    assert ir.to_proto(source) == before


def everything() -> onnx.ModelProto:  # noqa: PLR0915 -- there are this many fields
    """A model that fills every field of onnx.proto that ortopt carries."""
    proto = models.weights()
    proto.ir_version = 11
    proto.producer_name, proto.producer_version, proto.domain, proto.doc_string = "p", "1", "d", "doc"
    proto.model_version = -3
    proto.metadata_props.add(key="a", value="b")
    proto.configuration.add(name="two", num_devices=2, device=["g0", "g1"])
    graph = proto.graph
    graph.doc_string = "graph"
    graph.metadata_props.add(key="g", value="h")
    graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, ["N", 64, None], "input", ["BATCH", "C", "D"]))
    graph.input[0].type.denotation = "IMAGE"
    graph.input[0].metadata_props.add(key="i", value="j")
    graph.input.append(helper.make_tensor_sequence_value_info("seq", 7, ["S"]))
    graph.input.append(helper.make_sparse_tensor_value_info("sparse", 1, [3]))
    optional = helper.make_optional_type_proto(helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [2])))
    graph.input.append(helper.make_value_info("opt", optional))
    mapping = helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, []))
    graph.input.append(helper.make_value_info("map", mapping, "a map"))
    graph.input.append(helper.make_value_info("maps", helper.make_sequence_type_proto(mapping)))
    opaque = graph.input.add(name="opaque")
    opaque.type.opaque_type.domain, opaque.type.opaque_type.name = "o", "q"
    graph.value_info.append(helper.make_tensor_value_info("s", 1, ["N", 64, 64], "a value"))
    graph.value_info[0].metadata_props.add(key="k", value="l")
    graph.initializer[0].doc_string = "weights"
    graph.initializer[0].metadata_props.add(key="m", value="n")
    for index, dtype in enumerate(sorted(set(onnx.TensorProto.DataType.values()) - {0, 8})):
        bits = ir.DataType(dtype).bitwidth
        graph.initializer.add(name=f"t{index}", data_type=dtype, dims=[8], raw_data=bytes(bits))
    graph.initializer.add(name="strings", data_type=8, dims=[2], string_data=[b"\xff", b"b"])
    graph.initializer.add(name="f", data_type=1, dims=[2], float_data=[1, 2]).metadata_props.add(key="x", value="y")
    graph.initializer.add(name="i", data_type=5, dims=[2], int32_data=[-1, 2])
    graph.initializer.add(name="l", data_type=7, dims=[2000], int64_data=[-1] * 2000)
    graph.initializer.add(name="uint", data_type=13, dims=[1], uint64_data=[2**64 - 1])
    graph.initializer.add(name="cc", data_type=15, dims=[1], double_data=[1, -0.0])
    graph.initializer.add(name="int4", data_type=22, dims=[3], int32_data=[0x21, 3])
    note = graph.quantization_annotation.add(tensor_name="w")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="f")
    node = graph.node[0]
    node.name, node.doc_string = "first", "a node"
    node.metadata_props.add(key="o", value="p")
    device = node.device_configurations.add(configuration_id="two", pipeline_stage=1)
    spec = device.sharding_spec.add(tensor_name="w", device=[0, 1])
    spec.index_to_device_group_map.add(key=-1, value=[0, 1])
    sharded = spec.sharded_dim.add(axis=-1)
    sharded.simple_sharding.add(dim_value=4, num_shards=2)
    sharded.simple_sharding.add(dim_param="N", num_shards=2)
    custom = graph.node.add(op_type="Custom", domain="local", overload="v2", output=["", "extra"], input=["", "x"])
    custom.attribute.extend(
        [
            helper.make_attribute("f", 0.1, doc_string="an attribute"),
            helper.make_attribute("i", -(2**63)),
            helper.make_attribute("s", "text"),
            helper.make_attribute("binary", b"\xff\xfe"),
            helper.make_attribute("t", numpy_helper.from_array(np.float32([1]), "one")),
            helper.make_attribute("floats", [0.1, float("inf")]),
            helper.make_attribute("ints", [1, -1]),
            helper.make_attribute("strings", ["a", "é"]),
            helper.make_attribute("tensors", [numpy_helper.from_array(models.WEIGHT, "large")]),
            helper.make_attribute("type", helper.make_tensor_type_proto(1, ["N", 2])),
            helper.make_attribute("types", [helper.make_tensor_type_proto(7, None), optional]),
            helper.make_attribute("graphs", [graph.node[4].attribute[0].g]),
        ]
    )
    empty = custom.attribute.add(name="none", type=onnx.AttributeProto.INTS)
    assert not empty.ints
    function = proto.functions[0]
    function.doc_string, function.overload = "a function", "w"
    graph.node[5].overload = "w"
    function.metadata_props.add(key="q", value="r")
    function.attribute.append("alpha")
    function.attribute_proto.append(helper.make_attribute("beta", 2.0))
    function.node[1].op_type = "Gemm"
    reference = function.node[1].attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    reference.doc_string = "a reference"
    function.value_info.append(helper.make_tensor_value_info("a", 1, ["N"]))
    function.value_info.append(helper.make_tensor_value_info("k", 1, [64, 64]))
    return proto


def test_every_field_makes_the_round_trip() -> None:
    proto = everything()
    assert onnx.load_from_string(to_bytes(load(proto))) == models.canonical(proto)


def test_a_copy_in_memory_makes_it_too() -> None:
    proto = everything()
    assert onnx.load_from_string(to_bytes(load(load(proto)))) == models.canonical(proto)


def test_types_of_functions_before_ir_10_make_the_round_trip() -> None:
    proto = models.weights()
    proto.ir_version = 9
    proto.graph.value_info.append(helper.make_tensor_value_info("local::F/a", 1, ["N"]))
    assert onnx.load_from_string(to_bytes(load(proto))) == models.canonical(proto)


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"hello", b"\x0a" * 100, os.urandom(5000), b"\x08\x08", b"PK\x03\x04" * 9]
)
def test_what_is_no_model_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidModelError) as caught:
        load(data)
    assert str(caught.value).isprintable()


def test_random_damage_ends_in_a_model_or_in_one_line() -> None:
    data = everything().SerializeToString()
    random = np.random.default_rng(1)
    for _ in range(100):
        damaged = bytearray(data)
        for position in random.integers(0, len(data), 3):
            damaged[position] = random.integers(0, 256)
        start = int(random.integers(0, 3000))
        damaged[start] ^= 1 << int(random.integers(0, 8))
        try:
            load(bytes(damaged))
        except InvalidModelError as error:
            assert str(error).isprintable()


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match="No such file"):
        load(tmp_path / "none.onnx")
    with pytest.raises(InvalidModelError, match="not a regular file"):
        load(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InvalidModelError, match="not a regular file"):
            load(tmp_path / "pipe")


def test_a_stream_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortopt.serialization.load._MAX_BYTES", 1 << 20)

    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return bytes(size)

    with pytest.raises(InvalidModelError, match="beyond 2 GB"):
        load(Endless())  # type: ignore[arg-type]


def test_external_data(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    data = np.arange(1500, dtype=np.float32)
    data.tofile(tmp_path / "sub" / "w.bin")
    loaded = load(external(tmp_path / "m.onnx", location="sub/w.bin", offset="2000", length="4000"))
    tensor = loaded.graph.initializers["w"].const_value
    assert isinstance(tensor, MappedTensor)
    assert tensor.external
    assert np.array_equal(tensor.numpy(), data[500:])
    assert loaded.meta[SOURCE_KEY].external
    without_length = load(external(tmp_path / "m.onnx", location="./sub/../sub/w.bin"))
    assert np.array_equal(without_length.graph.initializers["w"].const_value.numpy(), data[:1000])


@pytest.mark.parametrize(
    ("entries", "because"),
    [
        ({"location": "../w.bin"}, "outside of the model's folder"),
        ({"location": "sub/../../w.bin"}, "outside of the model's folder"),
        ({"location": "/etc/passwd"}, "outside of the model's folder"),
        ({"location": "link.bin"}, "outside of the model's folder"),
        ({"location": "folder/w.bin"}, "outside of the model's folder"),
        ({"location": "none.bin"}, "No such file"),
        ({"location": "."}, "not a regular file"),
        ({"location": ""}, "no location"),
        ({}, "no location"),
        ({"location": "a\0b"}, "no location"),
        ({"location": "w.bin", "offset": "4"}, "beyond the end of the file"),
        ({"location": "w.bin", "offset": "-4"}, "the offset of its external data"),
        ({"location": "w.bin", "offset": "9" * 5000}, "the offset of its external data"),
        ({"location": "w.bin", "length": "40"}, "40 bytes of data where"),
        ({"location": "w.bin", "length": "x"}, "the length of its external data"),
    ],
)
def test_external_data_that_are_refused(tmp_path: Path, entries: dict[str, str], because: str) -> None:
    outside, inside = tmp_path / "w.bin", tmp_path / "models"
    inside.mkdir()
    for path in (outside, inside / "w.bin"):
        path.write_bytes(bytes(4000))
    (inside / "link.bin").symlink_to(outside)
    (inside / "folder").symlink_to(tmp_path)
    with pytest.raises(InvalidModelError, match=because) as caught:
        load(external(inside / "m.onnx", **entries))
    assert "initializer 'w'" in str(caught.value)
    assert len(str(caught.value)) < 700


def test_external_data_without_a_folder_are_refused(tmp_path: Path) -> None:
    path = external(tmp_path / "m.onnx", location="w.bin")
    with pytest.raises(InvalidModelError, match="has no folder to look in"):
        load(path.read_bytes())


def test_pointers_of_onnx_ir_become_files(tmp_path: Path) -> None:
    np.arange(1000, dtype=np.float32).tofile(tmp_path / "w.bin")
    source = ir.load(external(tmp_path / "m.onnx", location="w.bin"))
    loaded = load(source)
    assert isinstance(loaded.graph.initializers["w"].const_value, MappedTensor)
    assert isinstance(source.graph.initializers["w"].const_value, ir.ExternalTensor)
    assert loaded.meta[SOURCE_KEY].external


def test_unknown_dimensions_written_as_minus_one_are_unknown() -> None:
    proto = models.text(SMALL)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    shape = load(proto).graph.inputs[0].shape
    assert shape is not None
    assert shape[0] == ir.SymbolicDim(None)


def test_before_ir_4_initializers_are_no_inputs() -> None:
    text = "g (float[2] w, float[2] x, float[2] v) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, v) }"
    for version, inputs in ((3, ["x", "v"]), (4, ["w", "x", "v"])):
        proto = models.text(text, ir_version=version, opset=8)
        for loaded in (load(proto), load(ir.serde.deserialize_model(proto))):
            assert [value.name for value in loaded.graph.inputs] == inputs
            assert not any(value.is_graph_input() for value in loaded.graph.initializers.values()) or version == 4
            written = onnx.load_from_string(to_bytes(loaded))
            onnx.checker.check_model(written)
            assert {value.name for value in written.graph.input} == {"w", "x", "v"}


def test_models_before_opsets_have_opset_1() -> None:
    proto = models.text(SMALL, ir_version=2)
    del proto.opset_import[:]
    assert load(proto).opset_imports == {"": 1}


HIDING = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[N] x, float[N] s, bool go, int64 n) => (float[N] y, float[N] t, float[N] z) <float[1] w = {1}> {
        y = If <then_branch = a () => (float[N] t) { t = Neg (x) },
                else_branch = b () => (float[N] q) <float[1] q2 = {2}> { r = Mul (x, q2) q = Add (r, w) }> (go)
        z = Loop <body = c (int64 i, bool go, float[N] s) => (bool d, float[N] r) {
            d = Identity (go) r = Mul (s, w) }> (n, go, s)
        t = Relu (x) q2 = Abs (x) }"""


def test_names_inside_that_values_around_have_too_are_told_apart() -> None:
    """Else one would hide the other as soon as a node moves."""
    proto = onnx.parser.parse_model(HIDING)
    model = load(proto)
    graph = model.graph
    assert [value.name for value in (*graph.inputs, *graph.outputs)] == ["x", "s", "go", "n", "y", "t", "z"]
    outer = {value.name for value in graph.inputs} | {value.name for node in graph for value in node.outputs}
    inner = [below for node in graph for below in semantics.subgraphs(node)]
    found = [value.name for one in inner for value in (*one.inputs, *one.initializers.values(), *node_outputs(one))]
    assert outer.isdisjoint(found)
    assert found == ["t_2", "q2_2", "r", "q", "i", "go_2", "s_2", "d", "r"]  # two branches may use one name
    graph.sort()
    relu = next(node for node in graph if node.op_type == "Relu")
    graph.remove(relu)
    graph.insert_before(graph[0], relu)
    feeds = {"x": np.array([-1, 2], np.float32), "s": np.array([3, 4], np.float32), "n": np.array(2)}
    for go in (True, False):
        given = {**feeds, "go": np.array(go)}
        one, other = (
            onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, given)
            for data in (proto.SerializeToString(), to_bytes(model))
        )
        assert all(np.array_equal(*both) for both in zip(one, other, strict=True))


def node_outputs(graph: ir.Graph) -> list[ir.Value]:
    return [value for node in graph for value in node.outputs]


def test_names_of_tensors_of_the_callers_model_stay() -> None:
    model = load(onnx.parser.parse_model(HIDING))
    branch = next(node for node in model.graph if node.op_type == "If").attributes["else_branch"].as_graph()
    weight = branch.initializers["q2_2"]
    weight.name = "q2"
    before = weight.const_value
    assert before is not None
    load(model)
    assert before.name == "q2"
    assert weight.name == "q2"
