"""Where Casts go, what is typed, what is stored: graphs, nested graphs, functions, opsets."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.graph import scope
from ortopt.half_precision.formats import FLOAT16
from ortopt.half_precision.units import Units
from ortopt.serialization.mapped_tensors import ConvertedTensor
from tests.half_precision.converting import (
    CPU,
    CUDA,
    check_numbers,
    converted,
    dtypes,
    inner_casts,
    prepared,
    run,
)

EYE = "float[4,4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}"
HEAD = f"main (float[N,4] x) => (float[N,4] y) <{EYE}>"


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for graph in scope.graphs(model) for node in graph]


def test_inputs_and_outputs_stay_float32_and_keep_their_names() -> None:
    result = converted(f"{HEAD} {{ m = MatMul (x, w) y = Relu (m) }}")
    assert ops(result) == ["Cast", "MatMul", "Relu", "Cast"]
    assert [(value.name, value.dtype) for value in result.graph.inputs] == [("x", ir.DataType.FLOAT)]
    assert [(value.name, value.dtype) for value in result.graph.outputs] == [("y", ir.DataType.FLOAT)]
    assert result.graph.initializers["w"].dtype == ir.DataType.FLOAT16
    check_numbers(f"{HEAD} {{ m = MatMul (x, w) y = Relu (m) }}", result)


def test_inputs_and_outputs_become_float16_if_asked() -> None:
    result = converted(f"{HEAD} {{ m = MatMul (x, w) y = Relu (m) }}", interface_too=True)
    assert ops(result) == ["MatMul", "Relu"]
    assert {value.dtype for value in (*result.graph.inputs, *result.graph.outputs)} == {ir.DataType.FLOAT16}


def test_a_value_is_cast_once_however_many_read_it() -> None:
    text = f"""{HEAD} {{
        a = MatMul (x, w) b = MatMul (x, w) c = MatMul (x, w)
        e = Exp (a) f = Log (a) g = Sin (a)
        s = Sum (e, f, g) t = Sum (b, c, s) y = MatMul (t, w) }}"""
    result = converted(text)
    assert inner_casts(result).count("float16") == 2  # of x, and on the way back
    assert inner_casts(result).count("float") == 2  # of a, and of y


def test_casts_go_where_least_is_cast() -> None:
    """The Sin is of float32, the products of 16 bits: in between it is cast where the tensor is small."""
    text = f"""main (float[64,4] x) => (float[64,4] y) <{EYE}, int64[2] big = {{64, 4}}> {{
        m = MatMul (x, w) s = ReduceMax <axes = [0]> (m) e = Sin (s) n = Neg (e)
        g = Expand (n, big) r = MatMul (g, w) y = Add (r, m) }}"""
    result = converted(text)
    assert dtypes(result, "Expand") == ["float16"]
    check_numbers(text, result)


def test_a_light_node_between_nodes_of_float32_stays_there() -> None:
    text = f"{HEAD} {{ m = MatMul (x, w) e = Exp (m) n = Neg (e) s = Sin (n) y = MatMul (s, w) }}"
    result = converted(text)
    assert dtypes(result, "Neg") == ["float"]
    assert len(inner_casts(result)) == 4


def test_a_constant_of_both_precisions_is_stored_twice_and_not_cast() -> None:
    text = """main (float[N,4] x) => (float[N,4] y) <float[4] c = {1, 2, 3, 4}, float[4,4] w> {
        m = MatMul (x, w) a = Add (m, c) e = Exp (c) y = Mul (a, e) }"""
    text = text.replace("float[4,4] w", EYE)
    result = converted(text, keep=("Mul",))
    assert {value.dtype for name, value in result.graph.initializers.items() if name.startswith("c")} == {
        ir.DataType.FLOAT,
        ir.DataType.FLOAT16,
    }
    check_numbers(text, result)


def test_weights_are_converted_when_they_are_read() -> None:
    result = converted(f"{HEAD} {{ y = MatMul (x, w) }}")
    assert isinstance(result.graph.initializers["w"].const_value, ConvertedTensor)


def test_a_cast_to_float32_gives_16_bits_itself() -> None:
    text = f"main (int64[N,4] i) => (float[N,4] y) <{EYE}> {{ x = Cast <to = 1> (i) y = MatMul (x, w) }}"
    result = converted(text)
    assert ops(result) == ["Cast", "MatMul", "Cast"]
    check_numbers(text, result)


def test_an_output_that_is_a_constant_stays_float32() -> None:
    text = f"main (float[N,4] x) => (float[N,4] y, float[4,4] w) <{EYE}> {{ y = MatMul (x, w) }}"
    result = converted(text)
    assert result.graph.outputs[1].name == "w"
    assert result.graph.outputs[1].dtype == ir.DataType.FLOAT
    check_numbers(text, result)


def test_an_output_that_is_an_input_stays_one() -> None:
    text = f"main (float[N,4] x) => (float[N,4] y, float[N,4] x) <{EYE}> {{ y = MatMul (x, w) }}"
    result = converted(text)
    assert result.graph.outputs[1] is result.graph.inputs[0]
    check_numbers(text, result)


def test_the_output_keeps_its_name_where_it_is_read_inside_too() -> None:
    text = f"main (float[N,4] x) => (float[N,4] y, float[N,4] z) <{EYE}> {{ y = MatMul (x, w) z = MatMul (y, w) }}"
    result = converted(text)
    assert [value.name for value in result.graph.outputs] == ["y", "z"]
    assert inner_casts(result) == ["float16", "float", "float"]
    check_numbers(text, result)


IF = f"""main (bool c, float[2,4] x) => (float[2,4] y) <{EYE}> {{
    m = MatMul (x, w)
    r = If (c) <then_branch = yes () => (float[2,4] a) {{ a = MatMul (m, w) }},
                else_branch = no () => (float[2,4] b) {{ b = Relu (m) }}>
    y = MatMul (r, w) }}"""
LOOP = f"""main (int64 n, bool c, float[2,4] x) => (float[2,4] y, float[N,2,4] z) <{EYE}> {{
    m = MatMul (x, w)
    y, z = Loop (n, c, m) <body = one (int64 i, bool go, float[2,4] h) => (bool go2, float[2,4] k, float[2,4] s) {{
        go2 = Identity (go) k = MatMul (h, w) s = Relu (k) }}> }}"""
SCAN = f"""main (float[4] h, float[3,4] x) => (float[4] y, float[3,4] z) <{EYE}> {{
    y, z = Scan <num_scan_inputs = 1, body = one (float[4] a, float[4] b) => (float[4] s, float[4] t) {{
        s = Add (a, b) t = MatMul (s, w) }}> (h, x) }}"""
FUNCTION = f"""<ir_version: 8, opset_import: ["": 17, "local": 1]>
main (float[2,4] x) => (float[2,4] y) <{EYE}> {{
    a = local.block (x, w) y = local.block (a, w) }}
<domain: "local", opset_import: ["": 17]> block (x, w) => (y) {{ m = MatMul (x, w) y = Relu (m) }}"""


@pytest.mark.parametrize(
    ("text", "between"),
    [(IF, ["float16", "float"]), (LOOP, ["float16", "float", "float"]), (FUNCTION, ["float16", "float"])],
    ids=["If", "Loop", "function"],
)
def test_values_pass_into_graphs_and_out_of_them_in_16_bits(text: str, between: list[str]) -> None:
    result = converted(text)
    assert sorted(inner_casts(result)) == sorted(between)
    assert set(dtypes(result, "MatMul")) == {"float16"}
    check_numbers(text, result)


def test_a_scan_goes_through_rows_of_16_bits() -> None:
    result = converted(SCAN, interface_too=True)
    assert inner_casts(result) == []
    check_numbers(SCAN, result)


@pytest.mark.parametrize("text", [IF, LOOP, SCAN, FUNCTION], ids=["If", "Loop", "Scan", "function"])
def test_what_passes_stays_float32_where_all_is_kept(text: str) -> None:
    result = converted(text, keep=("*",))
    assert inner_casts(result) == []
    assert set(dtypes(result, "MatMul")) == {"float"}


def test_a_loop_that_adds_up_in_float32_carries_float32() -> None:
    text = LOOP.replace("k = MatMul (h, w)", "e = Exp (h) k = Log (e)").replace("s = Relu (k)", "s = Sin (k)")
    result = converted(text)
    loop = next(node for node in result.graph if node.op_type == "Loop")
    assert loop.outputs[0].dtype == ir.DataType.FLOAT
    check_numbers(text, result)


def test_a_function_that_is_called_with_several_types_stays() -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17, "local": 1]>
    main (float[2,4] x, int32[2,4] i) => (float[2,4] y, int32[2,4] j) <{EYE}> {{
        a = local.twice (x) y = MatMul (a, w) j = local.twice (i) }}
    <domain: "local", opset_import: ["": 17]> twice (x) => (y) {{ y = Add (x, x) }}"""
    result = converted(text)
    assert next(iter(result.functions.values()))[0].op_type == "Add"
    check_numbers(text, result)


@pytest.mark.parametrize("opset", [13, 15, 17, 18, 19, 20, 21, 22, 23])
def test_opsets(opset: int) -> None:
    text = f"{HEAD} {{ m = MatMul (x, w) r = Relu (m) s = Softmax (r) y = Add (s, m) }}"
    result = converted(text, opset)
    assert inner_casts(result) == ["float16", "float"]
    check_numbers(text, result, opset)


def test_what_resize_reads_as_float32_stays_so() -> None:
    text = """main (float[1,1,2,2] x, float[4] s) => (float[1,1,N,M] y) <float[8] roi = {0, 0, 0, 0, 1, 1, 1, 1}> {
        y = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, roi, s) }"""
    result = converted(text, interface_too=True)
    node = next(node for node in result.graph if node.op_type == "Resize")
    assert [value.dtype for value in node.inputs] == [ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.FLOAT]


def test_a_kernel_of_the_gpu_decides_where_that_is_the_provider() -> None:
    text = "main (float[2,4] x) => (float[2,4] y) { a = Mish (x) y = Relu (a) }"
    for providers in (CPU, CUDA):
        result = converted(text, 18, providers=providers, interface_too=True)
        assert dtypes(result, "Relu") == ["float16"]


def test_random_ops_stay_float32() -> None:
    text = (
        f"main (float[2,4] x) => (float[2,4] y) <{EYE}> {{ r = RandomNormalLike (x) a = MatMul (r, w) y = Add (a, x) }}"
    )
    assert dtypes(converted(text), "RandomNormalLike") == ["float"]


def test_what_is_of_other_types_is_left_alone() -> None:
    text = "main (double[2,4] x) => (double[2,4] y) { y = Relu (x) }"
    assert ops(converted(text)) == ["Relu"]


def test_sequences_stay_float32() -> None:
    text = f"""main (float[2,4] x) => (float[4,4] y) <{EYE}> {{
        m = MatMul (x, w) s = SequenceConstruct (m, m) y = ConcatFromSequence <axis = 0> (s) }}"""
    result = converted(text)
    assert dtypes(result, "MatMul") == ["float16"]
    assert dtypes(result, "ConcatFromSequence") == ["float"]
    check_numbers(text, result)


def test_quantized_units_stay_together() -> None:
    text = f"""main (uint8[2,4] q, float[2,4] x) => (float[2,4] y) <{EYE}, float s = {{0.1}}, uint8 z = {{3}}> {{
        d = DequantizeLinear (q, s, z) m = MatMul (d, w) n = MatMul (x, w) y = Add (m, n) }}"""
    result = converted(text)
    assert dtypes(result, "MatMul") == ["float", "float16"]
    check_numbers(text, result)


def test_a_model_without_floats_is_as_it_was() -> None:
    assert ops(converted("main (int64[2] x) => (int64[2] y) { y = Add (x, x) }")) == ["Add"]


def test_an_initializer_that_a_caller_may_override_is_an_input() -> None:
    text = """main (float[2,4] x, float[4,4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}) => (float[2,4] y) {
        y = MatMul (x, w) }"""
    plain, half = converted(text), converted(text, interface_too=True)
    assert plain.graph.inputs[1].dtype == ir.DataType.FLOAT
    assert half.graph.inputs[1].dtype == ir.DataType.FLOAT16
    (y,) = run(half, {"x": np.ones((2, 4), np.float16)})
    assert y.dtype == np.float16


def test_units_have_words_for_what_stays() -> None:
    units = Units(prepared(f"{HEAD} {{ e = Exp (x) m = MatMul (e, w) y = Hardmax (m) }}"), FLOAT16, CPU)
    assert {unit.node.op_type: unit.why for unit in units.all if unit.node is not None and unit.why} == {
        "Exp": "its numbers may leave the range",
        "Hardmax": "no provider that is meant has a kernel of 16 bits for it",
    }
