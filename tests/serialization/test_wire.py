"""The walk over the wire format leaves large tensors out, wherever they are, and parses back to the same model."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper, numpy_helper

from ortopt.errors import InvalidModelError
from ortopt.serialization.wire import CUT_FROM, field, integer, strip, tag, varint
from tests.serialization import models


def test_every_large_tensor_is_cut_wherever_it_is() -> None:
    data = models.weights().SerializeToString()
    stripped = strip(data)
    assert len(stripped.cuts) == 5
    assert {cut.length for cut in stripped.cuts} == {models.WEIGHT.nbytes}
    assert len(stripped.model) < len(data) - 5 * models.WEIGHT.nbytes + 1000


def test_what_was_cut_put_back_is_the_model() -> None:
    proto = models.weights()
    data = proto.SerializeToString()
    stripped = strip(memoryview(data))
    again = onnx.load_from_string(stripped.model)
    tensors = [
        again.graph.initializer[0],
        again.graph.node[1].attribute[0].t,
        again.functions[0].node[0].attribute[0].t,
    ]
    tensors += [attribute.g.initializer[0] for attribute in again.graph.node[4].attribute]
    for tensor in tensors:
        cut = stripped.cut(tensor.raw_data)
        assert cut is not None
        tensor.raw_data = data[cut.offset : cut.offset + cut.length]
    assert again == proto


def test_small_models_stay_as_they_are() -> None:
    data = models.text("g (float[2] x) => (float[2] y) { y = Neg(x) }").SerializeToString()
    stripped = strip(data)
    assert stripped.model == data
    assert not stripped.cuts


@pytest.mark.parametrize("size", [CUT_FROM - 4, CUT_FROM])
def test_the_threshold(size: int) -> None:
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.UINT8, dims=[size], raw_data=bytes(size))
    data = models.model([helper.make_node("Identity", ["x"], ["y"])], initializer=[tensor]).SerializeToString()
    assert len(strip(data).cuts) == (size >= CUT_FROM)


@pytest.mark.parametrize(("dtype", "name", "cut"), [(1, "float_data", 1), (11, "double_data", 1), (7, "int64_data", 0)])
def test_packed_numbers_are_cut_if_they_are_stored_as_raw_data_are(dtype: int, name: str, cut: int) -> None:
    tensor = onnx.TensorProto(name="w", data_type=dtype, dims=[2000])
    getattr(tensor, name).extend(range(2000))
    data = models.model([helper.make_node("Identity", ["x"], ["y"])], initializer=[tensor]).SerializeToString()
    stripped = strip(data)
    assert len(stripped.cuts) == cut
    for found in stripped.cuts:
        tensor.ClearField(name)
        tensor.raw_data = data[found.offset : found.offset + found.length]
        assert numpy_helper.to_array(tensor).tolist() == list(range(2000))


def test_a_file_cannot_hold_a_marker() -> None:
    stripped = strip(models.weights().SerializeToString())
    assert stripped.cut(b"x" * 24) is None
    assert strip(models.weights().SerializeToString()).token != stripped.token


def test_truncated_files_are_refused_at_every_length() -> None:
    data = models.weights().SerializeToString()
    for length in [*range(1, 200), *range(200, len(data), 997)]:
        try:
            strip(data[:length])
        except InvalidModelError as error:
            assert "\n" not in str(error)
            continue
        onnx.ModelProto().ParseFromString(data[:length])  # the cut fell between two fields


def test_lengths_beyond_the_end_are_refused() -> None:
    with pytest.raises(InvalidModelError, match="longer than its message"):
        strip(tag(7) + varint(1 << 60))
    with pytest.raises(InvalidModelError, match="64 bits"):
        strip(tag(7) + b"\xff" * 11)


def test_depth_is_bounded() -> None:
    message = b"\0" * CUT_FROM
    for _ in range(200):
        message = field(6, field(1, field(5, message)))
    with pytest.raises(InvalidModelError, match="nested"):
        strip(field(7, field(1, field(5, message))))


def test_numbers_are_written_as_protobuf_writes_them() -> None:
    for number in (0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)):
        assert integer(5, number) == onnx.ModelProto(model_version=number).SerializeToString()
