"""Quantized units stay whole: what quantizers write around an op is in the group of the op."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from ortopt import zoo
from ortopt.analysis.providers import CPU, CUDA
from ortopt.partition.partitioning import Partition, group, partition
from ortopt.partition.settings import PartitionOptions
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from tests.partition.quantized import image, mobile_net
from tests.runtime.models import Twice, session


def torn(found: Partition, color: str | None = None) -> list[str]:
    """The DequantizeLinear whose only reader is in another group, or in none though it could be."""
    home = {node: index for index, cluster in enumerate(found.clusters) for node in cluster.nodes}
    told = []
    for node in found.graph:
        if node.op_type != "DequantizeLinear":
            continue
        readers = list(dict.fromkeys(user for user, _ in node.outputs[0].uses()))
        if len(readers) != 1 or readers[0] not in home:
            continue
        if home.get(node, -1) != home[readers[0]]:
            told.append(node.outputs[0].name or "")
    for node in found.graph:  # and QuantizeLinear goes with what it reads
        maker = node.inputs[0].producer() if node.op_type == "QuantizeLinear" and node.inputs[0] is not None else None
        if maker in home and home.get(node, -1) != home[maker]:
            told.append(node.outputs[0].name or "")
    return told


@pytest.mark.parametrize(
    "between,options",
    [
        ("", {}),
        ("my.Twice", {}),
        ("Softplus", {"deny": ("Softplus",)}),
        ("Softplus", {"deny": ("Softplus",), "argument_limit": 3}),
        ("Softplus", {"deny": ("Softplus",), "horizontal": False}),
        ("Softplus", {"deny": ("Clip",)}),
        ("Softplus", {"deny": ("Add",)}),
    ],
)
def test_units_are_in_one_group_each(between: str, options: dict[str, Any]) -> None:
    found = partition(mobile_net(4, between=between), PartitionOptions(**options))[0]
    assert torn(found) == []
    outside = Counter(node.op_type for node in found.outside)
    assert "DequantizeLinear" not in outside, outside
    assert "Conv" not in outside


def test_units_whose_biases_a_device_cannot_dequantize() -> None:
    """CUDA has no DequantizeLinear of int32: the CPU provider has one, in a group for all, and the host none."""
    options = PartitionOptions(providers=(CUDA, CPU), deny=("Softplus",))
    found = partition(mobile_net(4, between="Softplus"), options)[0]
    assert {node.op_type for node in found.outside} == {"Softplus"}
    (biases,) = [cluster for cluster in found.clusters if cluster.provider == CPU]
    assert {node.outputs[0].name for node in biases.nodes} == {f"{kind}{i}_bd" for kind in "edp" for i in range(4)}
    assert set(torn(found)) == {node.outputs[0].name for node in biases.nodes}


def test_units_of_a_real_model_of_which_the_host_does_something() -> None:
    for denied in ("MaxPool", "Relu", "Add"):
        model = load(zoo.cached("resnet18_qdq__qdq"))
        found = partition(model, PartitionOptions(deny=(denied,)))[0]
        assert torn(found) == []
        assert {node.op_type for node in found.outside} <= {denied, "QuantizeLinear", "DequantizeLinear"}
        beside = [node for node in found.outside if node.op_type != denied]
        assert all(_is_beside(node, denied) for node in beside), beside


def _is_beside(node: ir.Node, denied: str) -> bool:
    """Whether a node has to do with what the host does."""
    makers = [value.producer() for value in node.inputs if value is not None]
    return any(one is not None and one.op_type == denied for one in (*makers, *node.outputs[0].consumers()))


@pytest.mark.parametrize("providers", [(CPU,), (CUDA, CPU)])
@pytest.mark.parametrize("name", ["mobile net", "resnet18_qdq__qdq", "bert_small_int8__dynamic_int8"])
def test_units_of_what_onnx_runtime_can_load_are_not_on_the_host(name: str, providers: tuple[str, ...]) -> None:
    model = mobile_net(4) if name == "mobile net" else load(zoo.cached(name))
    assert partition(model, PartitionOptions(providers=providers))[0].outside == ()


def test_units_make_no_circle_where_a_value_is_read_by_several() -> None:
    """The second reader of a dequantized value makes an operand of the first one's neighbour."""
    text = """<ir_version: 10, opset_import: ["" : 17]> main (uint8[N] a, uint8[N] b) => (uint8[N] y, uint8[N] z)
        <float s = {0.5}, uint8 o = {3}> {
        da = DequantizeLinear (a, s, o) db = DequantizeLinear (b, s, o)
        r = Relu (da) m = Mul (da, r) q = QuantizeLinear (m, s, o)
        t = Softplus (db) dq = DequantizeLinear (q, s, o) n = Mul (dq, t) y = QuantizeLinear (n, s, o)
        v = Add (db, m) z = QuantizeLinear (v, s, o) }"""
    for deny in ((), ("Softplus",), ("Relu",), ("Mul",)):
        for horizontal in (True, False):
            found = partition(parse(text), PartitionOptions(deny=deny, horizontal=horizontal))[0]
            assert sum(len(one.nodes) for one in found.clusters) + len(found.outside) == 11


def test_units_with_a_scale_that_the_unit_makes_are_none() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17]> main (uint8[N] a) => (uint8[N] y)
        <float s = {0.5}, uint8 o = {3}> {
        d = DequantizeLinear (a, s, o) n = Neg (d) m = ReduceMax <keepdims = 0> (n) l = my.Own (m)
        y = QuantizeLinear (n, l, o) }"""
    found = partition(parse(text.replace('"" : 17', '"" : 17, "my" : 1')))[0]
    assert [node.op_type for node in found.outside if node.op_type == "Own"]


def test_units_keep_the_numbers() -> None:
    model = mobile_net(3, between="Softplus")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    plain = onnxruntime.InferenceSession(to_bytes(model), options, providers=[CPU])
    (expected,) = plain.run(None, {"x": image()})
    grouped = mobile_net(3, between="Softplus")
    assert len(group(grouped, PartitionOptions(deny=("Softplus",)))) == 3
    (found,) = session(grouped).run(None, {"x": image()})
    assert_allclose(found, expected, atol=0.11)  # of one step of the last scale at most
    assert np.ptp(expected) > 0.5


def test_units_around_an_op_of_the_callers() -> None:
    mine = session(mobile_net(3, between="my.Twice"), host_ops=[Twice])
    assert mine.run(None, {"x": image()})[0].shape == (2, 4, 1, 1)
    on_host = [one for group in mine.groups if group.wanted_provider == "host" for one in group.spec.nodes]
    assert {node.op_type for node in on_host} == {"Twice"}
