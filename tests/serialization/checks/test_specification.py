"""What nothing can run is refused, by node and fault; what ONNX Runtime runs is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortopt
from ortopt.errors import InvalidModelError
from ortopt.serialization.checks.signatures import signature
from ortopt.serialization.load import load
from tests.whole_models.unverified import LEVELS, check_levels, loads, session

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "f": 1]> '
UNARY = "main (float[2,3] x) => (float[a,b] y) {{ {} }}"
TWO = "main (float{} x, float{} w) => (float[] y) {{ y = {} }}"
IF = "main (bool c, float[2] x) => (float[2] y) {{ y = If (c) <then_branch = {}, else_branch = {}> }}"
PLAIN = "b () => (float[2] u) { u = Abs (x) }"
LOOP = """main (int64 n, bool c, float[2] x) => (float[2] y) {
    y = Loop (n, c, x) <body = b (int64 i, bool ci, float[2] v)
    => (bool co, float[2] vo) { co = Identity (ci) vo = Neg (v) }> }"""
SCAN = """main (float[2] s, float[3,2] x) => (float[2] y, float[p,q] z) { y, z = Scan <num_scan_inputs = 1, body =
    b (float[2] a, float[2] e) => (float[2] so, float[2] k) { so = Add (a, e) k = Neg (so) }> (s, x) }"""
CALL = (
    'main (float[2] x) => (float[2] y) {{ y = f.F (x{}) }} <domain: "f", opset_import: ["": 17]> F (x) => (y) {{ {} }}'
)


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def changed(text: str, change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    made = parsed(text)
    change(made)
    return made


def unary(**fields: object) -> onnx.ModelProto:
    """A Relu with other fields."""

    def change(made: onnx.ModelProto) -> None:
        for name, value in fields.items():
            if isinstance(value, list):
                del getattr(made.graph.node[0], name)[:]
                getattr(made.graph.node[0], name).extend(value)
            else:
                setattr(made.graph.node[0], name, value)

    return changed(UNARY.format("y = Relu (x)"), change)


def without_attribute(text: str, name: str) -> onnx.ModelProto:
    made = parsed(text)
    node = made.graph.node[0]
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    return made


def default(array: np.ndarray) -> onnx.ModelProto:
    """A model with a default of input w."""
    text = "main (float[2,3] x, float[3] w) => (float[2,3] y) { y = Add (x, w) }"
    return changed(text, lambda made: made.graph.initializer.append(numpy_helper.from_array(array, "w")))


def untyped(made: onnx.ModelProto) -> None:
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.UNDEFINED


REFUSED: dict[str, onnx.ModelProto] = {
    # Operands, results, attributes
    "a node '' has no op type": unary(op_type=""),
    "a node 'Relu' has no inputs where Relu takes 1": unary(input=[]),
    "a node 'Relu' has 2 inputs where Relu takes 1": unary(input=["x", "x"]),
    "a node 'Relu' has no input 0 ('X'), which Relu requires": unary(input=[""]),
    "a node 'Relu' has 2 outputs where Relu takes 1": unary(output=["y", "z"]),
    "a node 'Relu' has no outputs where Relu takes 1": changed(
        UNARY.format("y = Neg (x)"), lambda made: made.graph.node.append(helper.make_node("Relu", ["x"], []))
    ),
    "a node 'Relu' has no named output": changed(
        UNARY.format("y = Neg (x)"), lambda made: made.graph.node.append(helper.make_node("Relu", ["x"], [""]))
    ),
    "'Relu' node 'r' has no inputs where": unary(input=[], name="r"),
    "a node 'Sum' has no inputs where Sum takes at least 1": unary(op_type="Sum", input=[]),
    "a node 'Clip' has 4 inputs where Clip takes 1 to 3": unary(op_type="Clip", input=["x", "", "", ""]),
    "a node 'Concat' has no attribute 'axis', which Concat requires": parsed(UNARY.format("y = Concat (x, x)")),
    "a node 'Softmax' has an attribute 'axes', which Softmax does not have": parsed(
        UNARY.format("y = Softmax <axes = 1> (x)")
    ),
    "a node 'Softmax' has an attribute 'axis' of type FLOAT where Softmax takes INT": parsed(
        UNARY.format("y = Softmax <axis = 1.0> (x)")
    ),
    "a node 'Constant' has no value": parsed(UNARY.format("w = Constant () y = Add (x, w)")),
    "a node 'If' has no attribute 'else_branch', which If requires": without_attribute(
        IF.format(PLAIN, PLAIN), "else_branch"
    ),
    # Types
    "a node 'Relu' gives 'y' as FLOAT, which is declared as INT64": parsed(
        "main (float[2] x) => (int64[2] y) { y = Relu (x) }"
    ),
    "a node 'Add' gives 'y' as FLOAT, which is declared as INT64": parsed(
        "main (float[2] x) => (int64[2] y) { a = Relu (x) y = Add (a, a) }"
    ),
    "a node 'Cast' gives 'y' as INT64, which is declared as FLOAT": parsed(
        "main (float[2] x) => (float[2] y) { y = Cast <to = 7> (x) }"
    ),
    "a node 'Shape' gives 'y' as INT64, which is declared as FLOAT": parsed(
        "main (float[2] x) => (float[1] y) { y = Shape (x) }"
    ),
    "a node 'Relu' gives 'y' as FLOAT, which is declared as SequenceType": parsed(
        "main (float[2] x) => (seq(float[2]) y) { y = Relu (x) }"
    ),
    "a node 'Abs' gives 'a' as FLOAT, which is declared as INT64": changed(
        UNARY.format("a = Abs (x) y = Neg (a)"),
        lambda made: made.graph.value_info.append(helper.make_tensor_value_info("a", 7, [2, 3])),
    ),
    "a node 'Cast' casts to the data type 99, which does not exist": parsed(UNARY.format("y = Cast <to = 99> (x)")),
    "a node 'Add' has inputs of types FLOAT and INT64, which must be the same": parsed(
        "main (float[2] x, int64[2] w) => (float[2] y) { y = Add (x, w) }"
    ),
    "a node 'Relu' has input 0 of type BOOL, which Relu does not take": parsed(
        "main (bool[2] x) => (bool[2] y) { y = Relu (x) }"
    ),
    "a node 'Reshape' has input 1 of type INT32, which Reshape does not take": parsed(
        "main (float[2] x, int32[1] s) => (float[2] y) { y = Reshape (x, s) }"
    ),
    "graph input 'x' has no data type": changed(UNARY.format("y = Relu (x)"), untyped),
    "graph input 'w' is of type FLOAT, its default of INT64": default(np.array([1, 2, 3])),
    "graph input 'w' and its default have different shapes": default(np.ones(2, np.float32)),
    # Shapes
    "a node 'MatMul' cannot multiply shapes [2, 3] and [4, 5]": parsed(TWO.format("[2,3]", "[4,5]", "MatMul (x, w)")),
    "a node 'MatMul' cannot multiply shapes [?, 3] and [4, 5]": parsed(TWO.format("[N,3]", "[4,5]", "MatMul (x, w)")),
    "a node 'MatMul' cannot multiply shapes [] and [4, 5]": parsed(TWO.format("", "[4,5]", "MatMul (x, w)")),
    "a node 'MatMul' cannot multiply shapes [2, 3, 4] and [3, 4, 5]": parsed(
        TWO.format("[2,3,4]", "[3,4,5]", "MatMul (x, w)")
    ),
    "a node 'MatMul' cannot multiply shapes [2, 1] and [4, 5]": parsed(
        "main (float[2,1] x, float[4,5] w) => (float[] y) { a = Relu (x) b = Sigmoid (a) y = MatMul (b, w) }"
    ),
    "a node 'Add' cannot combine shapes [2] and [3]": parsed(TWO.format("[2]", "[3]", "Add (x, w)")),
    "a node 'Mod' cannot combine shapes [2] and [3]": parsed(TWO.format("[2]", "[3]", "Mod <fmod = 1> (x, w)")),
    "a node 'Sub' cannot combine shapes [2, 4] and [5]": parsed(
        "main (float[2,4] x, float[5] w) => (float[] y) { a = HardSwish (x) y = Sub (a, w) }"
    ),
    "a node 'Sub' cannot combine shapes [2, 4] and [6]": parsed(
        "main (float[2,4] x, float[6] w, int64 k) => (float[] y) { a = CumSum (x, k) y = Sub (a, w) }"
    ),
    "a node 'Sub' cannot combine shapes [2, 4] and [7]": parsed(
        "main (float[2,4] x, float[7] w, float[4] s) => (float[] y) { a = PRelu (x, s) y = Sub (a, w) }"
    ),
    "a node 'Sub' cannot combine shapes [2, 4] and [8]": parsed(
        "main (float[2,4] x, float[8] w, int64[1,2] k, float[1] u) => (float[] y) {"
        " a = ScatterND (x, k, u) y = Sub (a, w) }"
    ),
    "a node 'Gemm' cannot multiply shapes [3, 2] and [4, 3]": parsed(
        TWO.format("[3,2]", "[4,3]", "Gemm <transA = 1> (x, w)")
    ),
    "a node 'Conv' cannot convolve shapes [1, 3, 8] and [4, 3, 3, 3]": parsed(
        TWO.format("[1,3,8]", "[4,3,3,3]", "Conv (x, w)")
    ),
    "a node 'Concat' cannot concatenate shapes [1, 3] and [1, 4]": parsed(
        TWO.format("[1,3]", "[1,4]", "Concat <axis = 0> (x, w)")
    ),
    "cannot concatenate along axis 5": parsed(UNARY.format("y = Concat <axis = 5> (x, x)")),
    # Graphs below nodes, functions
    "a node 'If' has 1 output and a branch that gives 2 values": parsed(
        IF.format("b () => (float[2] u, float[2] v) { u = Abs (x) v = Neg (x) }", PLAIN)
    ),
    "a node 'If' has a branch with inputs": parsed(IF.format("b (float[2] q) => (float[2] u) { u = Abs (q) }", PLAIN)),
    "a node 'If' has branches that give 'y' in different types": parsed(
        IF.format("b () => (int64[2] u) { u = Cast <to = 7> (x) }", PLAIN)
    ),
    "a node 'Abs' gives 'u' as FLOAT": parsed(IF.format("b () => (int64[2] u) { u = Abs (x) }", PLAIN)),
    "a node 'Neg' has 2 inputs": parsed(IF.format("b () => (float[2] u) { u = Neg (x, x) }", PLAIN)),
    "a node 'Loop' has 4 inputs and a body with 3": parsed(LOOP.replace("(n, c, x)", "(n, c, x, x)")),
    "a node 'Loop' has 2 outputs and a body that gives 2 values": parsed(LOOP.replace("y = Loop", "y, z = Loop")),
    "a node 'Loop' gives 'x' as FLOAT to its body, where 'v' is declared as INT64": parsed(
        LOOP.replace("float[2] v)", "int64[2] v)")
    ),
    "a node 'Scan' has 2 inputs and a body with 3": parsed(SCAN.replace("float[2] e)", "float[2] e, float[2] f)")),
    "function 'F': a node 'Neg' has 2 inputs where Neg takes 1": parsed(CALL.format("", "y = Neg (x, x)")),
    "function 'F': a node 'Relu' has an attribute 'alpha', which Relu does not have": parsed(
        CALL.format("", "y = Relu <alpha = 1> (x)")
    ),
    "a node 'F' has 2 inputs where its function has 1": parsed(CALL.format(", x", "y = Neg (x)")),
}


@pytest.mark.parametrize("because", REFUSED)
def test_refused(because: str) -> None:
    model = REFUSED[because]
    assert not loads(model)
    with pytest.raises(InvalidModelError) as caught:
        load(model)
    assert because in str(caught.value)
    assert "\n" not in str(caught.value)
    for level in LEVELS:
        with pytest.raises(InvalidModelError):
            ortopt.optimize(model, level=level)


RUN: dict[str, onnx.ModelProto] = {
    "optional operands left out": unary(op_type="Clip", input=["x", "", ""]),
    "a note of a tool": changed(
        UNARY.format("y = Softmax <axis = 1> (x)"), lambda made: setattr(made.graph.node[0].attribute[0], "name", "__a")
    ),
    "a Constant with a note": parsed(UNARY.format("w = Constant <value_float = 1.0, note = 1> () y = Add (x, w)")),
    "a Constant of two values": parsed(
        UNARY.format("w = Constant <value_float = 1.0, value_int = 1> () y = Add (x, w)")
    ),
    "a Constant declared otherwise": parsed(
        "main (float[2] x) => (float[2] y, int64[1] w) { w = Constant <value_floats = [1.0]> () y = Add (x, w) }"
    ),
    "an input returned as another type": changed(
        "main (float[2] x) => (float[2] x) { }",
        lambda made: setattr(made.graph.output[0].type.tensor_type, "elem_type", 7),
    ),
    "an output declared in another shape": parsed("main (float[2,3] x) => (float[7] y) { y = Relu (x) }"),
    "an output without a type": changed(
        UNARY.format("y = Relu (x)"), lambda made: made.graph.output[0].ClearField("type")
    ),
    "an initializer declared otherwise": changed(
        "main (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }",
        lambda made: made.graph.value_info.append(helper.make_tensor_value_info("w", 7, [2])),
    ),
    "branches of different ranks": parsed(
        IF.format("b () => (float[2,1] u) { k = Constant <value_ints = [2, 1]> () u = Reshape (x, k) }", PLAIN)
    ),
    "a dimension that is named": parsed("main (float[2,N] x) => (float[] y) { a = Transpose (x) y = MatMul (x, a) }"),
    "a call with an attribute that the function does not have": changed(
        CALL.format("", "y = Neg (x)"), lambda made: made.graph.node[0].attribute.add(name="k", i=1, type=2)
    ),
    "attributes of the model's opset in a function": changed(
        CALL.format("", "y = ReduceSum <axes = [0]> (x)").replace('"": 17, "com', '"": 12, "com'),
        lambda made: setattr(made.opset_import[0], "version", 12),
    ),
    "an op before its opset": changed(
        "main (float[2,3] x, float[3] w) => (float[a,b] y) { y = LayerNormalization (x, w) }",
        lambda made: setattr(made.opset_import[0], "version", 16),
    ),
    "powers of other types": parsed("main (float[2] x, int64[2] w) => (float[2] y) { y = Pow (x, w) }"),
}
FEEDS = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}


@pytest.mark.parametrize("name", RUN)
def test_what_runs_is_accepted(name: str) -> None:
    model = RUN[name]
    feeds = {
        one.name: np.ones([size if isinstance(size, int) else 2 for size in one.shape], FEEDS[one.type])
        for one in session(model).get_inputs()
    }
    check_levels(model, feeds)


UNKNOWN = (
    "main (float[2] x) => (float[2] y) { y = NoSuchOperator <a = 1> (x, x) }",
    "main (float[2] x) => (float[2] y) { y = com.microsoft.NoSuchOperator (x, x) }",
    "main (float[2] x) => (int64[2] y) { y = f.Unknown (x) }",
)


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_not_known_is_welcome(text: str) -> None:
    assert load(parsed(text))


def test_opsets_of_the_future_are_welcome() -> None:
    made = unary(input=["x", "x"])
    made.opset_import[0].version = 1000
    assert load(made)
    assert signature("", "Relu", 1000) is None


def test_an_old_scan_has_lengths_before_its_states() -> None:
    text = SCAN.replace("(float[2] s, float[3,2] x)", "(float[1,2] s, float[1,3,2] x)").replace(
        "> (s, x)", "> (, s, x)"
    )
    made = parsed(text)
    made.opset_import[0].version = 8
    assert load(made)
