"""Equal constants become one, bit for bit and type for type; interfaces and annotations are kept."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from ortopt.manager import GraphTransformerManager
from ortopt.serialization.load import load
from ortopt.testing import check_keeps, check_rewrites, parse
from ortopt.transformers.cleanup.constant_sharing import ConstantSharing

PASS = "constant_sharing"


def with_constants(*arrays: np.ndarray, dtypes: tuple[ir.DataType, ...] = ()) -> ir.Model:
    """A model that returns an Identity of each constant."""
    model = parse("main (float[1] x) => (float[1] y) { y = Neg (x) }")
    graph = model.graph
    for position, array in enumerate(arrays):
        if array.dtype.kind == "U":
            tensor: ir.TensorProtocol = ir.StringTensor([text.encode() for text in array], shape=ir.Shape(array.shape))
        else:
            tensor = ir.Tensor(array, dtype=dtypes[position]) if dtypes else ir.tensor(array)
        value = ir.Value(name=f"c{position}", const_value=tensor, type=ir.TensorType(tensor.dtype))
        graph.initializers.add(value)
        node = ir.node("Identity", [value], name=f"n{position}")
        node.outputs[0].name = f"o{position}"
        node.outputs[0].type = ir.TensorType(tensor.dtype)
        node.outputs[0].shape = ir.Shape(tensor.shape)
        graph.append(node)
        graph.outputs.append(node.outputs[0])
    return model


EQUAL = {
    "scalars": np.float32(1.5),
    "vectors": np.arange(7, dtype=np.int64),
    "large": np.arange(100_000, dtype=np.float32),
    "empty": np.zeros((0, 3), np.float16),
    "strings": np.array(["a", "bc"]),
    "complex": np.array([1 + 2j], np.complex64),
    "nan": np.array([np.nan], np.float64),
    "booleans": np.array([True, False]),
}


@pytest.mark.parametrize("kind", EQUAL)
def test_shares(kind: str) -> None:
    array = EQUAL[kind]
    model = check_rewrites(PASS, with_constants(array, array.copy(), array.copy()), numbers=kind != "complex")
    assert list(model.graph.initializers) == ["c0"]


a_nan, another_nan = (np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0x7FC00001))
large, nearly = np.zeros(10_000, np.float32), np.zeros(10_000, np.float32)
nearly[1_000] = 1.0

DIFFERENT = {
    "zeros of both signs": (np.float32(0.0), np.float32(-0.0)),
    "payloads of NaN": (a_nan, another_nan),
    "shapes": (np.zeros((2, 1), np.float32), np.zeros((1, 2), np.float32)),
    "ranks": (np.zeros((), np.float32), np.zeros((1,), np.float32)),
    "types": (np.zeros(2, np.float32), np.zeros(2, np.int32)),
    "signs of types": (np.ones(2, np.uint8), np.ones(2, np.int8)),
    "bytes that no sample sees": (large, nearly),
    "strings": (np.array(["ab", "c"]), np.array(["a", "bc"])),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_what_differs_stays(kind: str) -> None:
    check_keeps(PASS, with_constants(*DIFFERENT[kind]))


def test_blocks_of_four_bits() -> None:
    codes = np.array([1, -8, 7], np.int8)
    int4, uint4 = ir.DataType.INT4, ir.DataType.UINT4
    model = with_constants(*(codes.astype(int4.numpy()) for _ in range(2)), dtypes=(int4, int4))
    model.opset_imports[""] = 21
    model = check_rewrites(PASS, model, numbers=False)
    assert list(model.graph.initializers) == ["c0"]
    positive = np.array([1, 2, 3], np.int8)
    model = with_constants(positive.astype(int4.numpy()), positive.astype(uint4.numpy()), dtypes=(int4, uint4))
    model.opset_imports[""] = 21
    check_keeps(PASS, model)


def test_every_group_of_equals_has_its_own() -> None:
    arrays = [large, nearly, large, nearly, large + 1, nearly]
    model = check_rewrites(PASS, with_constants(*arrays))
    assert list(model.graph.initializers) == ["c0", "c1", "c4"]


def test_inner_graphs_use_the_outer_constant_and_never_the_reverse() -> None:
    model = check_rewrites(
        PASS,
        """
        main (float[1] x, bool c) => (float[1] y) <float[1] a = {1.0}> {
            t = Add (x, a)
            y = If (c) <
                then_branch = t () => (float[1] p) <float[1] b = {1.0}, float[1] d = {2.0}> {
                    r = Add (t, b) p = Mul (r, d)
                },
                else_branch = e () => (float[1] q) <float[1] f = {2.0}> { q = Mul (t, f) }>
        }""",
    )
    branches = next(node for node in model.graph if node.op_type == "If").attributes
    assert list(branches["then_branch"].as_graph().initializers) == ["d"]
    assert list(branches["else_branch"].as_graph().initializers) == ["f"]


def test_inside_a_function_the_first_constant_serves_all() -> None:
    model = check_rewrites(
        PASS,
        """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
        main (float[1] x, bool c) => (float[1] y) { y = f.g (x, c) }
        <domain: "f", opset_import: ["" : 17]>
        g (x, c) => (y) {
            z = If (c) <
                then_branch = t () => (p) { k = Constant <value_floats = [1.0]> () p = Add (x, k) },
                else_branch = e () => (q) { q = Abs (x) }>
            a = Constant <value_floats = [1.0]> ()
            b = Constant <value = float[1] {1.0}> ()
            s = Add (z, a)
            w = If (c) <
                then_branch = t () => (p) { k = Constant <value_floats = [1.0]> () p = Add (s, k) },
                else_branch = e () => (q) { q = Abs (s) }>
            y = Mul (w, b)
        }""",
    )
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["If", "Constant", "Add", "If", "Mul"]
    assert [node.op_type for node in function[0].attributes["then_branch"].as_graph()] == ["Constant", "Add"]
    assert [node.op_type for node in function[3].attributes["then_branch"].as_graph()] == ["Add"]


def annotated(*names: str) -> ir.Model:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "a"], ["t"]), helper.make_node("Add", ["t", "b"], ["y"])],
        "main",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [])],
        [helper.make_tensor(name, onnx.TensorProto.FLOAT, [], [0.5]) for name in ("a", "b")],
    )
    for name in names:
        annotation = graph.quantization_annotation.add(tensor_name=name)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="x")
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))


def test_annotations_must_agree() -> None:
    check_keeps(PASS, annotated("a"), "are quantized differently")
    check_rewrites(PASS, annotated("a", "b"))


def test_what_an_annotation_names_stays() -> None:
    model = annotated()
    model.graph.inputs[0].meta["quant_parameter_tensor_names"] = {"SCALE_TENSOR": "b"}
    check_keeps(PASS, model, "a quantization annotation refers to b")


class Watched(ir.Tensor[np.ndarray]):
    reads = 0

    def numpy(self) -> np.ndarray:
        Watched.reads += 1
        return super().numpy()


def test_a_constant_without_a_rival_is_not_read() -> None:
    model = with_constants(*(np.zeros((n, 10_000), np.float32) for n in range(1, 6)))
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        value.const_value = Watched(value.const_value.numpy())
    manager = GraphTransformerManager()
    manager.register(ConstantSharing())
    Watched.reads = 0
    assert not manager.apply_transformers(model, 1)
    assert Watched.reads == 0


def test_lazy_constants_are_not_computed() -> None:
    def fail() -> ir.TensorProtocol:
        raise AssertionError("a lazy constant was computed")

    model = with_constants(np.zeros(4, np.float32), np.zeros(4, np.float32))
    for value in model.graph.initializers.values():
        value.const_value = ir.LazyTensor(fail, ir.DataType.FLOAT, ir.Shape([4]))
    manager = GraphTransformerManager()
    manager.register(ConstantSharing())
    assert not manager.apply_transformers(model, 1)


def test_bytes_of_shared_constants_are_freed() -> None:
    from ortopt.cancellation import CancellationToken
    from ortopt.framework.workspace import Workspace
    from ortopt.options import Options, TransformerLevel

    model = with_constants(large, large, large)
    manager = GraphTransformerManager()
    manager.register(ConstantSharing())
    workspace = Workspace(model, Options(), allowance=0)
    assert manager.run(workspace, TransformerLevel.LEVEL1, CancellationToken())
    assert workspace.edit.added_bytes == -2 * large.nbytes
