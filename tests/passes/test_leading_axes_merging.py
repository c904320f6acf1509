"""Blocks of linear layers and of what treats each row by itself work on two axes, and their biases are Gemms'."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from ortopt import testing
from ortopt.options import Options, Target
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites, parse
from ortopt.transformers.lowering.onnxruntime_cpu import leading_axes_merging

PASS = "leading_axes_merging"
W = "float[4,4] w = {1, 2, 0, 1, 0.5, 0, 1, 1, 0, 1, 1, 0, 2, 0, 0, 1}, float[4] b = {1, -2, 3, 0.5}"
V = "float[4,8] v = {1, 0, 2, 0, 1, 0, 1, 0, 1, 1, 0, 2, 0, 1, 0, 1, 0, 1, 0, 0, 1, 2, 1, 0, 1, 0, 1, 0, 2, 0, 0, 1}"
BIASES = f"{W}, {V}, float[8] e = {{1, 2, 3, 4, 5, 6, 7, 8}}"
LAYERS = "m = MatMul (x, w) a = Add (b, m) r = Gelu (a) n = MatMul (r, v)"


def model(nodes: str, x: str = "float[N,3,4]", y: str = "float[N,3,8]", constants: str = BIASES) -> str:
    return f"main ({x} x) => ({y} y) <{constants}> {{ {nodes} }}"


def test_two_layers() -> None:
    check_rewrites(
        PASS,
        model(f"{LAYERS} y = Sum (n, e)"),
        f"""main (float[N,3,4] x) => (float[N,3,8] y)
            <{BIASES}, int64[2] two = {{-1, 4}}, int64[3] three = {{-1, 3, 8}}> {{
            x2 = Reshape (x, two) a = Gemm (x2, w, b) r = Gelu (a) n = Gemm (r, v, e) y = Reshape (n, three) }}""",
        opset=20,
    )


@pytest.mark.parametrize(("x", "y"), [("float[2,3,4]", "float[2,3,8]"), ("float[2,N,3,4]", "float[2,N,3,8]")])
def test_other_axes(x: str, y: str) -> None:
    check_rewrites(PASS, model(f"{LAYERS} y = Add (n, e)", x, y), ops={"Gemm": 2, "Reshape": 2, "Shape": 0}, opset=20)


@pytest.mark.parametrize("rows", ["2,3", "N,3", "N,S"])
def test_a_block_that_is_cut_before_a_normalization(rows: str) -> None:
    layer = "l{0} = LayerNormalization (x{0}, b) m{0} = MatMul (l{0}, w) a{0} = Add (m{0}, b) x{1} = Gelu (a{0})"
    nodes = " ".join(layer.format(i, i + 1) for i in range(17)).replace("x0", "x").replace("x17", "y")
    ops = {"Gemm": 17, "Add": 0, "Reshape": 4}  # two of them undo each other
    check_rewrites(PASS, model(nodes, f"float[{rows},4]", f"float[{rows},4]", W), ops=ops, opset=20)


GEMMS = """two = Constant<value_ints = [-1, 4]> () f = Reshape (x, two) g = Gemm (f, w, b) s = Shape (x)
    u = Reshape <allowzero = 1> (g, s) r = Relu (u) h = Reshape (r, two) y = Gemm (h, w, b)"""


def test_reshapes_around_what_stands_between_gemms() -> None:
    text = model(GEMMS, "float[N,S,4]", "float[M,4]", W)
    after = check_rewrites(PASS, text, ops={"Reshape": 5, "Relu": 1, "MatMul": 0}, opset=20)
    (relu,) = (node for node in after.graph if node.op_type == "Relu")
    assert len(relu.outputs[0].shape or ()) == 2  # the Reshapes around it undo each other


def test_reshapes_that_something_else_needs() -> None:
    text = model(f"{GEMMS} z = Softmax <axis = 1> (r)", "float[N,S,4]", "float[M,4] y, float[N,S,4]", W)
    text = text.replace("y, float[N,S,4] y", "y, float[N,S,4] z")
    check_keeps(PASS, text, "the Reshapes around would cost more than the biases", opset=20)


BLOCK = """l = LayerNormalization <axis = -1> (x, b, b) m = MatMul (l, w) a = Add (m, b) r = Gelu (a) n = MatMul (r, w)
    c = Add (n, b) s = Add (c, x) k = LayerNormalization <axis = 2> (s, b) o = MatMul (k, w) q = Add (o, b)
    g = Mul (q, q) t = Sub (g, b) y = Add (t, k)"""


def test_one_layer_of_few_columns() -> None:
    ops = {"Gemm": 1, "Reshape": 2, "MatMul": 0, "Add": 0}
    text = model("m = MatMul (x, w) y = Add (m, b)", y="float[N,3,4]", constants=W)
    check_rewrites(PASS, text, ops=ops, opset=20)


def one_layer(rows: int) -> str:
    numbers = ", ".join(str(((7 * place) % 11 - 5) / 8) for place in range(2 * 17))
    constants = f"float[2,17] w = {{{numbers}}}, float[17] b = {{{', '.join(map(str, range(17)))}}}"
    return f"main (float[N,{rows},2] x) => (float[] y) <{constants}> {{ m = MatMul (x, w) y = Add (m, b) }}"


def test_one_layer_of_many_rows() -> None:
    check_rewrites(PASS, one_layer(964), ops={"Gemm": 1, "Reshape": 2, "MatMul": 0, "Add": 0})


def test_one_layer_of_few_rows() -> None:
    check_keeps(PASS, one_layer(963), "the Reshapes around would cost more than the biases")


def test_a_block_behind_a_product_of_unknown_rows() -> None:
    """The product is not in the block, so the Add behind it is none that adds a bias."""
    nodes = "m = MatMul (x, u) a = Add (m, b) n = MatMul (a, w) c = Add (n, b) o = MatMul (c, w) y = Add (o, b)"
    text = f"main (float[N,3,K] x, float[K,4] u) => (float[N,3,4] y) <{W}> {{ {nodes} }}"
    check_rewrites(PASS, text, ops={"Gemm": 2, "MatMul": 1, "Add": 1, "Reshape": 2}, opset=20)


def test_a_block_with_residuals() -> None:
    """Normalizations, residuals and activations are on the way; the size is computed, for it is not known."""
    check_rewrites(
        PASS,
        model(BLOCK, "float[N,S,4]", "float[N,S,4]", W),
        ops={"Gemm": 3, "MatMul": 0, "Reshape": 2, "Shape": 1, "Concat": 1, "LayerNormalization": 2},
        opset=20,
    )


@pytest.mark.parametrize("most", (4, 5, 6, 7))
def test_a_block_in_parts(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has become of a part is read by the next one, also where a product and its bias are in two parts."""
    monkeypatch.setattr(leading_axes_merging, "MAX_NODES", most)
    check_rewrites(PASS, model(BLOCK, y="float[N,3,4]", constants=W), opset=20)


def test_two_blocks_share_a_shape() -> None:
    """What looks at the axes stands between them."""
    half = """m{0} = MatMul ({1}, w) a{0} = Add (m{0}, b) n{0} = MatMul (a{0}, w) c{0} = Add (n{0}, b)
        o{0} = MatMul (c{0}, w)"""
    between = "d1 = Add (o1, b) z = Softmax <axis = 1> (d1)"
    text = f"{half.format(1, 'x')} {between} {half.format(2, 'z')} y = Add (o2, b)"
    check_rewrites(
        PASS,
        model(text, "float[N,S,4]", "float[N,S,4]", W),
        ops={"Gemm": 6, "Reshape": 4, "Shape": 1, "Concat": 1},
    )


def test_a_matrix_that_is_no_constant() -> None:
    text = "main (float[N,3,4] x, float[4,8] v) => (float[N,3,8] y) <" + W + ", float[8] e = {1, 2, 3, 4, 5, 6, 7, 8}>"
    check_rewrites(PASS, f"{text} {{ {LAYERS} y = Add (n, e) }}", ops={"Gemm": 2}, opset=20)


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_no_rows(batch: int) -> None:
    """An empty batch gives an empty result, of the same shape."""
    numbers = {"x": np.ones((batch, 0 if batch == 2 else 3, 4), np.float32)}
    results = []
    for after in (False, True):
        read = parse(model(BLOCK, "float[N,S,4]", "float[N,S,4]", W), opset=20)
        if after:
            assert testing.run(PASS, read)[0]
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(to_bytes(read), options, ["CPUExecutionProvider"])
        results.append(session.run(None, numbers)[0])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)


KEPT = {
    "the Reshapes around would cost": "main (float[N,3,4] x, float[4,20] w, float[20] b) => (float[N,3,20] y) { m = MatMul (x, w) y = Add (m, b) }",  # noqa: E501
    "joins it with the DequantizeLinear": model("s = Constant <value_float = 0.5> () u = QuantizeLinear (w, s) d = DequantizeLinear (u, s) m = MatMul (x, d) y = Add (m, b)", "float[N,3,4]", "float[N,3,4]", W),  # noqa: E501
    "rows are mixed": model("z = Softmax (x) m = MatMul (x, z) y = Add (m, b)", "float[N,4,4]", "float[N,4,4]", W),
    "the size of a row is not fixed": "main (float[N,3,K] x, float[K,4] w, float[4] b) => (float[N,3,4] y) { m = MatMul (x, w) y = Add (m, b) }",  # noqa: E501
    "fewer than three axes": model("m = MatMul (x, w) y = Add (m, b)", "float[N,4]", "float[N,4]"),
    "single precision only": "main (double[N,3,4] x, double[4,4] w, double[4] b) => (double[N,3,4] y) { m = MatMul (x, w) y = Add (m, b) }",  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    check_keeps(PASS, KEPT[because], None if because == "rows are mixed" else because, opset=20)


def test_axes_that_mean_something() -> None:
    """A bias that differs from position to position is none, and what adds it stays, with three axes."""
    constants = f"{BIASES}, float[3,1] p = {{1, 2, 3}}"
    check_rewrites(
        PASS,
        model(f"{LAYERS} c = Add (n, e) y = Add (c, p)", constants=constants),
        ops={"Gemm": 2, "Reshape": 2, "Add": 1},
        opset=20,
    )


def test_projections_that_an_attention_may_take_in_stay() -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>
        main (float[N,S,4] x) => (float[N,S,4] y) <{W}> {{
        mq = MatMul (x, w) q = Add (mq, b) mk = MatMul (x, w) k = Add (mk, b) mv = MatMul (x, w) v = Add (mv, b)
        y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) }}"""
    check_keeps(PASS, text, "com.microsoft.Attention takes it in")


def test_what_an_attention_must_know_when_it_is_loaded() -> None:
    """A shape that is computed at run time would be unknown to it; one with a single free axis is a constant."""
    text = """<ir_version: 10, opset_import: ["" : 23]> main (float[N,S,4] x) => (float[N,S,4] y) <WEIGHTS> {
        mq = MatMul (x, w) q = Add (mq, b) mk = MatMul (x, w) k = Add (mk, b) mv = MatMul (x, w) v = Add (mv, b)
        y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v) }""".replace("WEIGHTS", W)
    check_keeps(PASS, text, "when the model is loaded")
    check_rewrites(PASS, text.replace("N,S,4", "N,3,4"), ops={"Gemm": 3, "Reshape": 4})


def test_axes_that_depend_on_data() -> None:
    block = BLOCK.replace("(x,", "(z,").replace(", x)", ", z)")
    text = model(f"z = Compress <axis = 0> (x, h) {block}", "float[N,S,4]", "float[A,B,4]", W)
    check_keeps(PASS, text.replace("x) =>", "x, bool[N] h) =>"), "depends on data", opset=20)


def test_another_target() -> None:
    check_keeps(PASS, model(f"{LAYERS} y = Add (n, e)"), "--target onnx", opset=20, options=Options(target=Target.ONNX))
