"""Intermediate values of two models: which are joined, where they begin to differ, what is fetched at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortopt
from ortopt import zoo
from ortopt.graph.provenance import VALUES_KEY, Record, record_of, values_of
from ortopt.rule import Forwarded, Match, RewriteRule
from ortopt.serialization.load import load
from ortopt.serialization.save import save, to_bytes
from ortopt.system import memory
from ortopt.testing import parse
from ortopt.verification import layers as comparing
from ortopt.verification.joined_values import join
from ortopt.verification.layer_rows import Layers, layer_of
from ortopt.verification.verify import verify
from tests.rules import Swap
from tests.verification.wrong_passes import WrongTanh

MODEL = """<ir_version: 10, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y)
<float[4, 4] w = {0.5, 1, 0, 2, 1, 0, -1, 0.25, 0, 3, 1, 1, 2, -2, 0, 1}, float[4] b = {1, 2, 3, 4}> {
    [block_0_product] p = MatMul (x, w)
    [block_0_sum] s = Add (p, b)
    [block_0_relu] r = Relu (s)
    [block_1_tanh] t = Tanh (r)
    [block_1_double] d = Add (t, t)
    [block_1_sum] u = Add (d, r)
    y = Neg (u)
}"""


def fused(*transformers: ortopt.GraphTransformer, **more: Any) -> ortopt.OptimizeResult:
    """What a fusion, and perhaps a wrong pass, make of the model."""
    only = ["matmul_add_fusion", *(transformer.name for transformer in transformers)]
    return ortopt.optimize(parse(MODEL), level=2, transformers=transformers, only=only, verify=False, **more)


def layers_of(original: ir.Model | Path, result: ir.Model | Path, **more: Any) -> Layers:
    outcome = verify(original, result, layers=True, in_process=True, **more)
    assert outcome.layers is not None
    return outcome.layers


def test_the_first_value_that_a_wrong_rewrite_changes_is_named() -> None:
    result = fused(WrongTanh())
    outcome = ortopt.verify(parse(MODEL), result.model, layers=True, in_process=True)
    found = outcome.layers
    assert outcome.status == "differs"
    assert found is not None
    assert found.first is not None
    assert (found.first.value, found.first.op, found.first.result_op) == ("t", "Tanh", "Sin")
    assert (found.first.made_by, found.first.origins, found.first.joined_by) == (
        "wrong_tanh", ("block_1_tanh",), "origin",
    )  # fmt: skip
    assert found.first.error.worst > 1e-2
    assert found.agreeing == ("r",)
    assert [row.value for row in found.rows if row.begins] == ["t"]
    assert [row.value for row in found.rows if not row.error.agrees] == ["t", "d", "u", "y"]
    assert (found.rows[0].value, found.rows[0].result_op) == ("s", "Gemm")


def test_rounding_is_no_difference() -> None:
    result = fused().model
    found = layers_of(parse(MODEL), result)
    assert found.first is None
    assert all(row.error.agrees for row in found.rows)
    assert found.rows[-1].value == "y"
    assert len(found.rows) == found.by_name + found.by_origin
    assert (found.original_values, found.result_values) == (7, len(result.graph))


def test_it_is_not_asked_for_by_default() -> None:
    assert verify(parse(MODEL), parse(MODEL), in_process=True).layers is None
    broken = parse(
        '<ir_version: 10, opset_import: ["" : 17, "nobody" : 1]> g (float x) => (float y) { y = nobody.Op (x) }'
    )
    assert verify(broken, broken, layers=True, in_process=True).layers is None


class GemmSwap(Swap):
    """Gemm becomes a sum of its first operand, for once."""

    roots = ("Gemm",)

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Sum", [found.value])


def rename_values(proto: onnx.ModelProto) -> None:
    """Give every value another name, as other tools do; the interface stays."""
    kept = {value.name for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer)}
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [name if name in kept or not name else f"other_{name}" for name in names]


@pytest.mark.parametrize("provenance", [True, False])
def test_renamed_values_are_found_again(tmp_path: Path, provenance: bool) -> None:
    result = fused().model
    proto = onnx.load_from_string(to_bytes(result, provenance=provenance))
    rename_values(proto)
    onnx.save(proto, tmp_path / "renamed.onnx")
    joined = {
        pair.original.name: (pair.result.name, pair.by) for pair in join(parse(MODEL), tmp_path / "renamed.onnx").pairs
    }
    assert joined["r"] == ("other_r", "name")  # by the name of its node, which no pass has made
    assert joined.get("s") == (("other_s", "origin") if provenance else None)
    assert layers_of(parse(MODEL), tmp_path / "renamed.onnx").first is None


def test_a_new_value_of_an_old_name_is_not_taken_for_it(tmp_path: Path) -> None:
    """Where a file says what its new nodes are in place of, a name proves nothing."""
    result = fused().model
    proto = onnx.load_from_string(to_bytes(result, provenance=True))
    neg = next(node for node in proto.graph.node if node.op_type == "Tanh")
    neg.metadata_props.add(key="ortopt.pass", value="some_pass")
    onnx.save(proto, tmp_path / "m.onnx")
    names = [pair.original.name for pair in join(parse(MODEL), tmp_path / "m.onnx").pairs]
    assert "t" not in names
    assert "d" in names


def test_what_the_record_of_a_file_may_hold() -> None:
    node = parse(MODEL).graph[0]
    assert record_of(node) is None
    node.metadata_props["ortopt.pass"] = "fusion"
    assert record_of(node) == Record("fusion", (), ((),))
    node.metadata_props[VALUES_KEY] = '[["a", "b"], ["c"]]'
    assert record_of(node) == Record("fusion", (), (("a", "b"),))
    for broken in ("[", '["a"]', "3", '[["a"], [3]]'):
        node.metadata_props[VALUES_KEY] = broken
        assert record_of(node) == Record("fusion", (), ((),))


def test_an_earlier_run_says_nothing_of_the_nodes_of_a_later_one(tmp_path: Path) -> None:
    fused(provenance=True).save(tmp_path / "first.onnx")
    (gemm,) = (node for node in load(tmp_path / "first.onnx").graph if node.op_type == "Gemm")
    assert gemm.metadata_props[VALUES_KEY] == '[["s"]]'
    swap = GemmSwap()
    result = ortopt.optimize(tmp_path / "first.onnx", transformers=[swap], only=[swap.name], verify=False)
    result.save(tmp_path / "second.onnx")
    (other,) = (node for node in load(tmp_path / "second.onnx").graph if node.op_type == "Sum")
    assert VALUES_KEY not in other.metadata_props


def test_values_of_one_name_and_another_shape_are_not_compared() -> None:
    a = parse('<ir_version: 10, opset_import: ["" : 17]> g (float[2, 3] x) => (float[3, 2] y) '
              "{ t = Neg (x) y = Transpose <perm = [1, 0]> (t) }")  # fmt: skip
    b = parse('<ir_version: 10, opset_import: ["" : 17]> g (float[2, 3] x) => (float[3, 2] y) '
              "{ t = Transpose <perm = [1, 0]> (x) y = Neg (t) }")  # fmt: skip
    found = layers_of(a, b)
    assert ([row.value for row in found.rows], found.unlike, found.first) == (["y"], ("t",), None)


def test_a_value_that_others_make_up_for_is_not_the_first() -> None:
    a = parse('<ir_version: 10, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) <float b = {3}, float w = {2}> '
              "{ s = Add (x, b) p = Mul (s, w) y = Relu (p) }")  # fmt: skip
    b = parse('<ir_version: 10, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) <float b = {6}, float w = {2}> '
              "{ s = Identity (x) q = Mul (s, w) p = Add (q, b) y = Relu (p) }")  # fmt: skip
    found = layers_of(a, b)
    row = found.rows[0]
    assert (row.value, row.error.agrees, row.is_made_up_for, row.begins) == ("s", False, True, False)
    assert found.first is None
    (summary,) = found.by_layer
    assert (summary.values, summary.differing, summary.made_up_for) == (3, 0, 1)
    assert summary.worst < 1e-4


def test_floats_of_fewer_bits_are_compared_within_their_limits() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17]> g (float[8] x) => (float[8] y)
    { h = Cast <to = 10> (x) t = Tanh (h) z = Cast <to = 1> (t) y = Neg (z) }"""
    b = parse(text)
    a = parse(text.replace("Cast <to = 10> (x)", "Identity (x)").replace("Cast <to = 1> (t)", "Identity (t)"))
    found = layers_of(a, b)
    assert {row.value: row.error.agrees for row in found.rows} == {"h": True, "t": True, "z": True, "y": True}
    assert 1e-5 < found.rows[1].error.worst < 2e-3
    assert found.rows[0].error.tolerance == 2e-2
    given = layers_of(a, b, rtol=1e-6, atol=1e-6)
    assert given.first is not None
    assert given.first.value == "h"


def test_what_a_result_cannot_compute_is_named() -> None:
    """Only what a value needs is run: so what does not run is found as far as it is."""
    text = "d = MatMul (t, t)"  # three rows of four do not fit
    misfit = parse(MODEL.replace("[block_1_double] d = Add (t, t)", text))
    outcome = verify(parse(MODEL), misfit, layers=True, in_process=True, inputs={"x": np.ones((3, 4), np.float32)})
    assert outcome.status == "differs"
    found = outcome.layers
    assert found is not None
    assert found.first is not None
    assert found.first.value == "d"
    assert "the result cannot compute it" in found.first.error.detail
    assert [row.value for row in found.rows] == ["p", "s", "r", "t", "d"]
    assert found.not_run == ("u", "y")


def test_values_are_fetched_in_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = fused(WrongTanh()).model
    whole = layers_of(parse(MODEL), result)
    monkeypatch.setattr(comparing, "BATCH_BYTES", 1)
    parts = layers_of(parse(MODEL), result)
    assert (whole.batches, parts.batches) == (1, len(whole.rows))
    assert parts.rows == whole.rows
    assert parts.first == whole.first


def test_files_of_one_part_are_gone_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "BATCH_BYTES", 1)
    seen: list[set[str]] = []
    run = comparing.LayerComparison._run_original

    def look(self: comparing.LayerComparison, *arguments: object) -> object:
        outputs = run(self, *arguments)  # type: ignore[arg-type]
        seen.append({path.name.partition("-")[0] for path in self.runner.folder.glob("layers*")})
        return outputs

    monkeypatch.setattr(comparing.LayerComparison, "_run_original", look)
    outcome = verify(parse(MODEL), parse(MODEL), layers=True)
    assert outcome.layers is not None
    assert seen == [{f"layers{number}"} for number in range(1, 8)]


def test_a_small_bound_of_memory_makes_more_parts() -> None:
    """Three values of 24 MiB: under 1 GiB they are not fetched together."""
    one = parse("""g (float[N, 1024] x) => (float y) { u = Neg (x) v = Neg (u) w = Neg (v)
        i = Constant <value = int64[1] {0}> () r = Gather <axis = 0> (w, i) y = ReduceSum <keepdims = 0> (r) }""")
    inputs = {"x": np.ones((6144, 1024), np.float32)}
    taken = memory.of_process()["VmData"]  # by the tests before
    with memory.bounded(taken + (1 << 30)):
        found = layers_of(one, one, inputs=inputs)
    assert found.batches > 1
    assert found.first is None
    assert len(found.rows) == 5


def test_subgraphs_are_counted() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17]> g (bool c, float[2] x) => (float[2] y) {
        n = Neg (x)
        y = If (c) <then_branch = a () => (float[2] t) { s = Abs (n) t = Exp (s) }, else_branch = b () => (float[2] e) { e = Abs (n) }>
    }"""  # noqa: E501
    found = layers_of(parse(text), parse(text))
    assert ([row.value for row in found.rows], found.nested) == (["n", "y"], 3)


def test_random_values_are_compared_as_copies() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17]> g (float[4] x) => (float[4] y)
    { r = RandomNormalLike (x) s = Add (x, r) y = Neg (s) }"""
    found = layers_of(parse(text), parse(text.replace("Neg (s)", "Abs (s)")))
    assert found.first is not None
    assert found.first.value == "y"


def test_the_layer_of_a_node() -> None:
    assert layer_of(("m", "encoder", "layer.3", "attention", "self")) == "m/encoder/layer.3"
    assert layer_of(("layer1", "layer1.0", "conv1")) == "layer1"
    assert layer_of(("m", "pooler", "dense")) == "m/pooler"
    assert layer_of(()) == ""


def test_a_record_is_taken_back_with_its_rewrite() -> None:
    whole = parse(MODEL)
    before = to_bytes(whole, provenance=True)
    result = ortopt.optimize(whole, level=2, verify=False, limit=0).model
    assert not any(VALUES_KEY in value.meta for node in result.graph for value in node.outputs)
    assert to_bytes(whole, provenance=True) == before


def test_files(tmp_path: Path) -> None:
    save(parse(MODEL), tmp_path / "a.onnx")
    save(parse(MODEL.replace("Relu (s)", "Abs (s)")), tmp_path / "b.onnx")
    outcome = verify(tmp_path / "a.onnx", tmp_path / "b.onnx", layers=True)
    assert outcome.layers is not None
    assert outcome.layers.first is not None
    assert outcome.layers.first.value == "r"


class Refused(RewriteRule[Match]):
    """A value is called changed by a rewrite that is taken back."""

    roots = ("Tanh",)

    def match(self, root: ir.Node) -> Match:
        def build() -> ir.Node:
            return ir.node("Shape", list(root.inputs))  # of another type

        return Match((root,), build, changed=(root.outputs[0],))


def test_what_is_taken_back_has_changed_nothing() -> None:
    result = ortopt.optimize(parse(MODEL), transformers=[Refused()], only=["refused"], verify=False).model
    (tanh,) = (node for node in result.graph if node.op_type == "Tanh")
    assert values_of(tanh.outputs[0]) == ("t",)
    assert VALUES_KEY not in tanh.outputs[0].meta


class Moved(RewriteRule[Match]):
    """A factor of 2 is moved past Relu."""

    roots = ("Neg",)

    def match(self, root: ir.Node) -> Match:
        total = root.inputs[0].producer()
        double = total.inputs[0].producer()
        t = double.inputs[0]
        replaced = (double.outputs[0], root.outputs[0])

        def build() -> dict[ir.Value, ir.Value]:
            other = ir.node("Identity", [t]).outputs[0]
            rest = ir.node("Add", [total.outputs[0], t]).outputs[0]
            return {replaced[0]: other, replaced[1]: ir.node("Neg", [rest]).outputs[0]}

        return Match((double, root), build, replaced, (double.outputs[0], total.outputs[0]))


def test_what_a_rewrite_calls_changed_is_not_compared(tmp_path: Path) -> None:
    """In memory and in a file; the node that stays is not taken for what it was, either."""
    result = ortopt.optimize(parse(MODEL), transformers=[Moved()], only=["moved"], limit=1, provenance=True)
    result.save(tmp_path / "moved.onnx")
    for source in (result.model, tmp_path / "moved.onnx"):
        found = layers_of(parse(MODEL), source)
        assert [row.value for row in found.rows] == ["p", "s", "r", "t", "y"]
        assert found.first is None


def test_a_network_by_its_layers(tmp_path: Path) -> None:
    """Biases move past some values of this one: these are no longer what they were, and are recorded so."""
    path = zoo.cached("bert_small__ts17")
    result = ortopt.optimize(path, verify=False, provenance=True)
    result.save(tmp_path / "result.onnx")
    found = layers_of(path, tmp_path / "result.onnx", inputs=zoo.inputs("bert_small__ts17"))
    assert found.first is None
    assert len(found.rows) > len(result.model.graph) / 3
    assert [row.layer for row in found.by_layer] == [
        "m/bert", *(f"m/bert/encoder/layer.{number}" for number in range(4)), "m/classifier",
    ]  # fmt: skip
    assert not any(row.is_made_up_for for row in found.rows)
    assert max(row.worst for row in found.by_layer) < 1e-4
