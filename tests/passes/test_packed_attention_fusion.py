"""An attention whose queries, keys and values are projections of one value becomes one with packed weights."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.testing import check_rewrites, parse
from tests.sessions import unoptimized

PASS = "packed_attention_fusion"


def numbers(*shape: int, shift: int = 0) -> str:
    count = int(np.prod(shape))
    values = ", ".join(str((7 * (index + shift)) % 11 / 10 - 0.5) for index in range(count))
    return f"float[{','.join(map(str, shape))}] {{name}} = {{{{{values}}}}}"


def weights(**shapes: tuple[int, ...]) -> str:
    return ", ".join(
        numbers(*shape, shift=place).format(name=name) for place, (name, shape) in enumerate(shapes.items())
    )


MATRICES = {"wq": (6, 8), "wk": (6, 8), "wv": (6, 8)}
ROWS = {"bq": (8,), "bk": (8,), "bv": (8,)}
PRODUCTS = "q0 = MatMul (x, wq) k0 = MatMul (x, wk) v0 = MatMul (x, wv)"
SUMS = "q = Add (q0, bq) k = Add (bk, k0) v = Add (v0, bv)"
ATTENTION = "y = com.microsoft.MultiHeadAttention <num_heads = 2, scale = 0.3> (q, k, v)"
BARE = ATTENTION.replace("(q, k, v", "(q0, k0, v0")


def model(
    body: str = f"{PRODUCTS} {SUMS} {ATTENTION}",
    constants: dict[str, tuple[int, ...]] = MATRICES | ROWS,
    *,
    inputs: str = "float[B,S,6] x",
    outputs: str = "float[B,S,8] y",
) -> str:
    return f"main ({inputs}) => ({outputs}) <{weights(**constants)}> {{ {body} }}"


def compare(text: str, result: ir.Model, feeds: dict[str, np.ndarray], opset: int = 17) -> None:
    outputs = []
    for one in (parse(text, opset), result):
        session = unoptimized(one)
        outputs.append(session.run(None, feeds)[0])
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


PACKED = {"com.microsoft::Attention": 1, "com.microsoft::MultiHeadAttention": 0, "MatMul": 0, "Add": 0}


def test_packs() -> None:
    text = model()
    result = check_rewrites(PASS, text, ops=PACKED)
    for batch, length in ((2, 3), (1, 1), (0, 3), (2, 0)):
        compare(text, result, {"x": drawn(batch, length, 6)})


def test_without_a_bias() -> None:
    text = model(f"{PRODUCTS} {BARE}", MATRICES)
    compare(text, check_rewrites(PASS, text, ops=PACKED), {"x": drawn(2, 3, 6)})


def test_a_bias_of_the_keys_is_left_out() -> None:
    attention = "y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k0, v)"
    body = f"{PRODUCTS} q = Add (q0, bq) v = Add (v0, bv) {attention}"
    text = model(body, MATRICES | {"bq": (1, 1, 8), "bv": (8,)})
    compare(text, check_rewrites(PASS, text, ops=PACKED), {"x": drawn(2, 3, 6)})


def test_the_bias_of_the_attention() -> None:
    text = model(f"{PRODUCTS} {SUMS} {ATTENTION.replace('v)', 'v, b)')}", MATRICES | ROWS | {"b": (24,)})
    compare(text, check_rewrites(PASS, text, ops=PACKED), {"x": drawn(2, 3, 6)})


def test_values_of_another_size() -> None:
    text = model(constants=MATRICES | ROWS | {"wv": (6, 12), "bv": (12,)}, outputs="float[B,S,12] y")
    result = check_rewrites(PASS, text, ops=PACKED)
    node = next(node for node in result.graph if node.op_type == "Attention")
    assert list(node.attributes["qkv_hidden_sizes"].as_ints()) == [8, 8, 12]
    compare(text, result, {"x": drawn(2, 3, 6)})


@pytest.mark.parametrize("shape", ["1,1,S,S", "B,1,S,S", "B,2,S,S"])
@pytest.mark.parametrize("fill", [-np.inf, np.finfo(np.float32).min, -1.0])
def test_a_mask(shape: str, fill: float) -> None:
    body = f"{PRODUCTS} {SUMS} {ATTENTION.replace('v)', 'v, , , m)')}"
    text = model(body, inputs=f"float[B,S,6] x, float[{shape}] m")
    result = check_rewrites(PASS, text, ops=PACKED)
    mask = np.zeros([int(size) for size in shape.replace("B", "2").replace("S", "3").split(",")], np.float32)
    mask[..., 1:] = fill
    mask[..., 1, :] = fill  # a row without any key: what it gives stays
    compare(text, result, {"x": drawn(2, 3, 6), "m": mask})


def test_causal_attention() -> None:
    text = model(f"{PRODUCTS} {SUMS} {ATTENTION.replace('scale', 'unidirectional = 1, scale')}")
    compare(text, check_rewrites(PASS, text, ops=PACKED), {"x": drawn(2, 4, 6)})


SPLIT = "a = MatMul (x, w) d = Add (a, b) q, k, v = Split <axis = -1> (d, s)"


def test_a_projection_that_is_packed_already() -> None:
    text = f"""main (float[B,S,6] x) => (float[B,S,8] y)
        <{weights(w=(6, 24), b=(24,))}, int64[3] s = {{8, 8, 8}}> {{ {SPLIT} {ATTENTION} }}"""
    result = check_rewrites(PASS, text, ops=PACKED | {"Split": 0})
    compare(text, result, {"x": drawn(2, 3, 6)})


def test_the_weights_only_move() -> None:
    weight = dict.fromkeys(MATRICES, (60, 80))
    text = model(constants=weight | dict.fromkeys(ROWS, (80,)), inputs="float[B,S,60] x", outputs="float[B,S,80] y")
    result = check_rewrites(PASS, text, ops=PACKED)
    assert sum(value.const_value.nbytes for value in result.graph.initializers.values()) == 4 * 3 * (60 * 80 + 80)
