import json
import subprocess
import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from ortopt.analysis import kernels
from ortopt.analysis.kernels import CPU, CUDA, Support, has_kernel, schema, support
from tests.sessions import unoptimized
from tests.texts import rows


def model_of(call: str, inputs: str, outputs: str, opset: int) -> onnx.ModelProto:
    taken = ", ".join(f"{type_}[2,2] x{i}" for i, type_ in enumerate(inputs.split()))
    given = ", ".join(type_ + ("" if "(" in type_ else "[2,2]") + f" y{i}" for i, type_ in enumerate(outputs.split()))
    names = ", ".join(f"y{i}" for i in range(len(outputs.split())))
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1, "ai.onnx.ml": 3]>'
        f" main ({taken}) => ({given}) {{ {names} = {call} }}"
    )
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return model


def single_node(call: str, inputs: str, outputs: str, opset: int) -> ir.Node:
    return ir.from_proto(model_of(call, inputs, outputs, opset)).graph[0]


def loads(model: onnx.ModelProto) -> bool:
    ort = pytest.importorskip("onnxruntime")
    try:
        unoptimized(model)
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return False
    return True


OPSETS = {"com.microsoft": 1, "ai.onnx.ml": 3}


@pytest.mark.parametrize(("_", "row"), rows(Path(__file__).parent / "cases" / "kernels.txt"))
def test_support_is_what_onnxruntime_does(_, row):
    opset, inputs, call, outputs, named = row
    opset, expected = int(opset), None if named == "no" else Support[named.upper()]
    model = model_of(call, inputs, outputs, opset)
    node = ir.from_proto(model).graph[0]
    assert support(CPU, node, OPSETS.get(node.domain, opset)) is expected
    assert loads(model) == (expected is not None)


@pytest.mark.parametrize("opset", [11, 13, 16, 19, 21, 25])
@pytest.mark.parametrize("dtype", ["float", "int64", "bool"])
def test_control_flow_is_asked_about_by_itself(opset, dtype):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}]> main (bool c, {dtype}[2] x) => ({dtype}[2] y) {{
            y = If (c) <then_branch = t () => ({dtype}[2] a) {{ a = Identity (x) }},
                        else_branch = e () => ({dtype}[2] b) {{ b = Identity (x) }}> }}"""
    )
    assert support(CPU, ir.from_proto(model).graph[0], opset) is Support.KERNEL
    assert loads(model)


def test_beyond_the_highest_opset_nothing_is_supported():
    assert support(CPU, single_node("Relu (x0)", "float", "float", 27), 27) is None


def test_an_op_of_an_unknown_domain_is_not_supported():
    node = ir.node("Relu", [ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))], domain="somewhere.else")
    assert support(CPU, node, 1) is None


def test_a_constant_is_always_supported():
    node = ir.node("Constant", [], {"value": ir.tensor([1.0], ir.DataType.BFLOAT16)})
    assert support(CPU, node, 20) is Support.KERNEL
    assert support(CUDA, node, 20) is Support.KERNEL


def test_an_unknown_type_is_not_supported_unless_it_cannot_matter():
    assert support(CPU, ir.node("Relu", [ir.Value(name="x")]), 17) is None
    assert support(CPU, ir.node("And", [ir.Value(name="x"), ir.Value(name="y")]), 17) is Support.KERNEL
    assert support(CPU, ir.node("Mish", [ir.Value(name="x")]), 18) is None


def test_cuda_has_its_own_table():
    half = single_node("Relu (x0)", "float16", "float16", 17)
    assert support(CUDA, half, 17) is Support.KERNEL
    assert support(CUDA, single_node("Det (x0)", "float", "float", 17), 17) is None
    assert support(CUDA, single_node("Det (x0)", "float16", "float16", 17), 17) is None  # casts are CPU's
    fused = single_node("com.microsoft.BiasGelu (x0, x1)", "float16 float16", "float16", 17)
    assert support(CUDA, fused, 1) is Support.KERNEL


def test_a_provider_without_a_table_supports_nothing():
    assert support("QNNExecutionProvider", single_node("Relu (x0)", "float", "float", 17), 17) is None
    assert not has_kernel("QNNExecutionProvider", "", "Relu", 17, {"T": "tensor(float)"})


def test_has_kernel_asks_about_the_constraints_that_are_named():
    assert has_kernel(CPU, "", "Relu", 17, {"T": "tensor(float)"})
    assert has_kernel(CPU, "", "Relu", 17, {})
    assert not has_kernel(CPU, "", "Relu", 17, {"T": "tensor(float16)"})
    assert not has_kernel(CPU, "", "Gelu", 17, {"T": "tensor(float)"})  # Gelu came with opset 20
    assert has_kernel(CPU, "com.microsoft", "SkipLayerNormalization", 1, {"T": "tensor(float16)"})
    assert not has_kernel(CPU, "com.microsoft", "SkipLayerNormalization", 1, {"T": "tensor(int32)"})


def test_schemas_of_contrib_ops():
    known = schema("com.microsoft", "MatMulNBits", 1)
    assert known is not None
    assert known.inputs[:4] == (("A", "T1"), ("B", "T2"), ("scales", "T1"), ("zero_points", "T3"))
    assert known.constraints["T2"] == {"tensor(uint8)"}
    assert schema("com.microsoft", "NoSuchOp", 1) is None
    assert schema("", "LayerNormalization", 16).since == 1
    assert schema("", "LayerNormalization", 17).since == 17


def test_only_the_table_that_is_asked_is_read():
    code = (
        "from ortopt.analysis import kernels as k; k.has_kernel(k.CPU, '', 'Relu', 17, {});"
        "print(k._kernels.cache_info().currsize)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_an_answer_is_found_once():
    node = single_node("Add (x0, x1)", "float float", "float", 17)
    support(CPU, node, 17)
    before = len(kernels._ANSWERS)
    assert support(CPU, single_node("Add (x0, x1)", "float float", "float", 17), 17) is Support.KERNEL
    assert len(kernels._ANSWERS) == before


def test_a_kernel_for_more_types_than_the_op_has_serves_none_of_them() -> None:
    call, three = "com.microsoft.SkipLayerNormalization (x0, x1, x2)", "{0} {0} {0}"
    assert has_kernel(CPU, "com.microsoft", "SkipLayerNormalization", 1, {"T": "tensor(double)"})
    assert support(CPU, single_node(call, three.format("double"), "double", 17), 1) is None
    assert support(CPU, single_node(call, three.format("float"), "float", 17), 1) is Support.KERNEL


def test_an_answer_does_not_hang_on_what_was_asked_before() -> None:
    """float16 LeakyRelu is expanded: what a function's caller says for its attribute is no reason against it."""

    def node(*attributes: ir.Attr) -> ir.Node:
        x, y = (ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT16)) for name in "xy")
        return ir.Node("", "LeakyRelu", [x], attributes, outputs=[y])

    alpha = ir.RefAttr("alpha", "slope", ir.AttributeType.FLOAT)
    for one in (node(alpha), node(), node(ir.AttrFloat32("alpha", 0.2)), node(alpha)):
        assert support(CPU, one, 19) is Support.EXPANDED


def test_attributes_decide_what_an_op_is_expanded_into() -> None:
    def node(stash: int) -> ir.Node:
        types = ir.TensorType(ir.DataType.FLOAT)
        values = [ir.Value(name=name, type=types) for name in "xsby"]
        attributes = [ir.AttrInt64("num_groups", 2), ir.AttrInt64("stash_type", stash)]
        return ir.Node("", "GroupNormalization", values[:3], attributes, outputs=values[3:])

    for stash, expected in ((1, Support.EXPANDED), (16, None), (1, Support.EXPANDED), (16, None)):
        assert support(CPU, node(stash), 21) is expected


def test_each_table_says_which_release_it_is_of():
    """CUDA's cannot be asked without a GPU: what the documentation of another release says will do, and is said."""
    assert kernels.release(CPU).count(".") == 2
    assert kernels.release(CUDA) == "1.30"
    assert kernels.release("CoreMLExecutionProvider") == ""


def test_what_a_live_registry_answers_becomes_a_table(monkeypatch):
    from tools import refresh_kernels

    rows = [
        [CUDA, "", "Abs", 13, 2**31 - 1, {"T": ["tensor(float)"]}],
        [CUDA, "", "Abs", 13, 2**31 - 1, {"T": ["tensor(double)"]}],
        [CUDA, "", "Abs", 6, 12, {"T": ["tensor(float)"]}],
        [CPU, "", "Abs", 13, 2**31 - 1, {"T": ["tensor(float)"]}],
    ]
    asked = []

    def run(command, **options):
        asked.append((command, options))
        return subprocess.CompletedProcess(command, 0, f"a library speaks\n{json.dumps(rows)}", "")

    monkeypatch.setattr(refresh_kernels.subprocess, "run", run)
    found = [one for one in refresh_kernels.live_kernels() if one.provider == CUDA]
    table = refresh_kernels.pack(found, "1.31.1", 26)
    assert table["kernels"] == {"": {"Abs": [[6, 12, {"T": 0}], [13, None, {"T": 1}]]}}
    assert {table["types"][i] for i in table["sets"][1]} == {"tensor(float)", "tensor(double)"}
    ((command, options),) = asked
    compile(command[-1], "ask", "exec")
    assert (options["cwd"] / "ortopt").is_dir()  # the child imports ortopt, which finds CUDA's libraries
