"""What depends on constants alone becomes a constant, unless it is random, impure, too large or quantized."""

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

import ortopt
from ortopt.cancellation import CancellationToken
from ortopt.framework.workspace import Workspace
from ortopt.instrumentation.explanation import Explanation
from ortopt.manager import GraphTransformerManager
from ortopt.optimization.replay import RewriteLimit
from ortopt.options import MEGABYTE, Options, TransformerLevel
from ortopt.semantics import constant_tensor
from ortopt.serialization.load import load
from ortopt.testing import check_keeps, check_rewrites, parse, run
from ortopt.transformers.cleanup.constant_folding import ConstantFolding

PASS = "constant_folding"


def content(model: ir.Model, name: str) -> np.ndarray:
    for value in model.graph.initializers.values():
        if value.name == name:
            assert value.const_value is not None
            return np.asarray(value.const_value.numpy())
    raise AssertionError(f"{name} is no initializer, but one of {list(model.graph.initializers)}")


def test_a_constant_has_the_name_of_the_last_value() -> None:
    model = parse("main (float[2] x) => (float[2] y) <float[2] a = {1, 2}> { s = Neg (a) m = Exp (s) y = Add (x, m) }")
    assert run(PASS, model)[0]
    assert list(model.graph.initializers) == ["m"]


EXPAND = """
    main (float[1024,1024] x) => (float[1024,1024] y) <float one = {1.0}, int64[2] s = {1024, 1024}> {
        t = Neg (one)
        big = Expand (t, s)
        y = Add (x, big)
    }"""


def test_the_users_limit_decides() -> None:
    check_rewrites(ConstantFolding(max_growth=1 << 23), EXPAND, ops={"Expand": 0}, options=Options(max_growth=1 << 23))


def test_who_lets_the_file_grow_lets_a_result() -> None:
    check_rewrites(ConstantFolding(), EXPAND, ops={"Expand": 0}, options=Options(max_growth=1 << 23))
    check_rewrites(ConstantFolding(), EXPAND, ops={"Expand": 1, "Neg": 0}, options=Options(max_growth=1 << 20))


def test_the_budget_of_the_file_decides_too() -> None:
    model = parse(EXPAND)
    manager = GraphTransformerManager(observers=[explanation := Explanation()])
    manager.register(ConstantFolding(max_growth=1 << 23))
    workspace = Workspace(model, Options(), allowance=MEGABYTE)
    assert manager.run(workspace, TransformerLevel.LEVEL1, CancellationToken())
    assert [node.op_type for node in model.graph] == ["Expand", "Add"]
    assert any("grow by more than it may" in refusal.reason for refusal in explanation.refusals)


PARTS = """
    main (float[4] x) => (float[4] y) <float[2,4] w = {1, 2, 3, 4, 5, 6, 7, 8}, int64 i = {0}, int64 j = {1}> {
        a = Gather (w, i)
        b = Gather (w, j)
        s = Add (x, a)
        y = Sub (s, b)
    }"""


def within(allowance: int, text: str) -> tuple[ir.Model, Explanation]:
    """The model folded, where the file may grow by so many bytes; and what was refused."""
    manager = GraphTransformerManager(observers=[explanation := Explanation()])
    manager.register(ConstantFolding())
    workspace = Workspace(model := parse(text), Options(), allowance=allowance)
    manager.run(workspace, TransformerLevel.LEVEL1, CancellationToken())
    return model, explanation


def test_all_parts_of_a_weight_are_stored_together_where_none_may_be_alone() -> None:
    model, explanation = within(0, PARTS)
    assert [node.op_type for node in model.graph] == ["Add", "Sub"]
    assert explanation.rewrites[-1].nodes == (("a", "Gather"), ("b", "Gather"))
    assert content(model, "a").tolist() == [1.0, 2.0, 3.0, 4.0]
    assert content(model, "b").tolist() == [5.0, 6.0, 7.0, 8.0]
    assert "w" not in model.graph.initializers


def test_what_was_too_large_alone_is_not_reported() -> None:
    result = ortopt.optimize(parse(PARTS), level=1, max_growth=0, verify=False)
    assert result.summary.after.nodes == 2
    assert result.summary.too_large == ()


def test_parts_of_a_weight_that_stays_are_not_stored() -> None:
    stays = PARTS.replace("(float[4] y)", "(float[4] y, float[2,4] z)").replace("s = Add", "z = Add (w, x) s = Add")
    model, explanation = within(0, stays)
    assert [node.op_type for node in model.graph].count("Gather") == 2
    assert any("grow by more than it may" in refusal.reason for refusal in explanation.refusals)


def test_large_moved_weights_stay_lazy() -> None:
    weight = helper.make_tensor(
        "w", onnx.TensorProto.FLOAT, [600, 1024], np.arange(600 * 1024, dtype=np.float32).tobytes(), raw=True
    )
    proto = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
                helper.make_node("MatMul", ["x", "t"], ["y"]),
            ],
            "main",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 1024])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 600])],
            [weight],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    model = check_rewrites(PASS, load(proto), ops={"Transpose": 0})
    tensor = model.graph.initializers["t"].const_value
    assert isinstance(tensor, ir.LazyTensor)
    assert np.array_equal(tensor.numpy(), np.arange(600 * 1024, dtype=np.float32).reshape(600, 1024).T)


def test_blocks_of_four_bits_stay() -> None:
    proto = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Cast", ["w"], ["t"], to=onnx.TensorProto.FLOAT),
                helper.make_node("Mul", ["x", "t"], ["y"]),
            ],
            "main",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])],
            [helper.make_tensor("w", onnx.TensorProto.INT4, [4], [1, 2, 3, -4])],
        ),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    check_keeps(PASS, load(proto), "a dequantized weight would be stored")


def test_inside_a_function_constants_are_nodes() -> None:
    model = check_rewrites(
        PASS,
        before="""
            <ir_version: 10, opset_import: ["" : 17, "f" : 1]>
            main (float[2] x) => (float[2] y) { y = f.scaled (x) }
            <domain: "f", opset_import: ["" : 17]>
            scaled (x) => (y) {
                a = Constant <value_floats = [1.0, 2.0]> ()
                b = Neg (a)
                c = Exp (b)
                y = Mul (x, c)
            }""",
    )
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Constant", "Mul"]
    tensor = constant_tensor(function[1].inputs[1])
    assert tensor is not None
    np.testing.assert_allclose(tensor.numpy(), np.exp([-1.0, -2.0]), rtol=1e-6)


def test_shapes_behind_a_folded_target_become_known() -> None:
    model = check_rewrites(
        PASS,
        before="""
            main (float[2,3] x) => (float[a,b] y) <float[2] f = {6.0, 1.0}> {
                target = Cast <to = 7> (f)
                t = Reshape (x, target)
                y = Exp (t)
            }""",
        ops={"Cast": 0},
    )
    reshape = next(node for node in model.graph if node.op_type == "Reshape")
    assert reshape.outputs[0].shape == ir.Shape([6, 1])


def test_moving_a_constant_costs_nothing() -> None:
    values = ", ".join(["1.0"] * 2000)
    body = f"c = Constant <value_floats = [{values}]> () y = Add (x, c)"
    model = parse(f"main (float[2000] x) => (float[2000] y) {{ {body} }}")
    manager = GraphTransformerManager()
    manager.register(ConstantFolding())
    workspace = Workspace(model, Options(), allowance=0)
    assert manager.run(workspace, TransformerLevel.LEVEL1, CancellationToken())
    assert workspace.edit.added_bytes == 0
    assert "c" in model.graph.initializers


def test_each_node_is_one_rewrite_and_can_be_left_out() -> None:
    text = """
        main (float[2] x) => (float[2] y) <float[2] a = {1.0, 2.0}> {
            s = Neg (a)
            m = Exp (s)
            y = Add (x, m)
        }"""
    for first, expected in ((1, ["Neg", "Exp", "Add"]), (2, ["Exp", "Add"])):
        model = parse(text)
        manager = GraphTransformerManager(1, observers=[RewriteLimit(without=frozenset(range(first, 9)))])
        manager.register(ConstantFolding())
        manager.apply_transformers(model, 1)
        assert manager.is_graph_modified is (first > 1)
        assert [node.op_type for node in model.graph] == expected
