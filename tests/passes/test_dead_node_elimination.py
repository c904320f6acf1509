"""What nothing needs goes; inputs, what has effects, and what quantization annotations name stay."""

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from ortopt.manager import GraphTransformerManager
from ortopt.serialization.load import load
from ortopt.testing import check_keeps, check_rewrites, parse
from ortopt.transformers.cleanup.unused_parts import DeadNodeElimination

PASS = "dead_node_elimination"


def test_functions_and_their_imports_go() -> None:
    model = check_rewrites(
        PASS,
        """<ir_version: 10, opset_import: ["" : 17, "f" : 1, "g" : 1, "com.microsoft" : 1]>
        main (float[2] x) => (float[2] y) { y = f.used (x) }
        <domain: "f", opset_import: ["" : 17, "f" : 1, "com.microsoft" : 1]>
        used (x) => (y) { y = f.inner (x) }
        <domain: "f", opset_import: ["" : 17, "com.microsoft" : 1]>
        inner (x) => (y) { dead = Exp (x) y = Neg (x) }
        <domain: "g", opset_import: ["" : 17, "f" : 1]>
        unused (x) => (y) { y = f.only (x) }
        <domain: "f", opset_import: ["" : 17]>
        only (x) => (y) { y = Neg (x) }""",
        ops={"Exp": 0},
    )
    assert [function.name for function in model.functions.values()] == ["used", "inner"]
    assert model.opset_imports == {"": 17, "f": 1}
    assert [dict(f.opset_imports) for f in model.functions.values()] == [{"": 17, "f": 1}, {"": 17}]


def test_scales_that_annotations_name_stay() -> None:
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "main",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
        [helper.make_tensor("x_scale", onnx.TensorProto.FLOAT, [], [0.5])],
    )
    annotation = graph.quantization_annotation.add(tensor_name="x")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="x_scale")
    check_keeps(PASS, load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)))


@pytest.mark.parametrize("nodes", [1_000, 20_000])
def test_every_dead_node_is_visited_a_bounded_number_of_times(nodes: int) -> None:
    body = "\n".join(f"d{i} = Neg ({f'd{i - 1}' if i else 'x'})" for i in range(nodes))
    model = parse(f"main (float[2] x) => (float[2] y) {{ {body} y = Exp (x) }}")
    manager = GraphTransformerManager()
    manager.register(DeadNodeElimination())
    manager.apply_transformers(model, 1)
    assert len(model.graph) == 1
    assert sum(entry.rewrites for entry in manager.history) == 1  # one dead end, and what stands behind it


def test_weights_are_never_read() -> None:
    def fail() -> ir.TensorProtocol:
        raise AssertionError("a weight was read")

    model = parse("main (float[2] x) => (float[2] y) { y = Neg (x) }")
    value = ir.Value(name="w", const_value=ir.LazyTensor(fail, ir.DataType.FLOAT, ir.Shape([1 << 28])))
    model.graph.initializers.add(value)
    manager = GraphTransformerManager()
    manager.register(DeadNodeElimination())
    assert manager.apply_transformers(model, 1)
    assert not model.graph.initializers
