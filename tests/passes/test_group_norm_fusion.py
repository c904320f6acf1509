"""A group normalization that is spelled out becomes one op."""

import re

import pytest

from ortopt.options import Fusions, Options
from ortopt.testing import check_rewrites

PASS = "group_norm_fusion"
HEAD = "main (float[N,6,4,5] x) => (float[N,6,4,5] y)"
CUDA = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"), fusions=Fusions.ALL)
NUMBERS = {
    "one": "float[3] one = {1.0, 1.0, 1.0}",
    "nul": "float[3] nul = {0.0, 0.0, 0.0}",
    "s": "int64[3] s = {0, 3, -1}",
    "u": "int64[3] u = {-1, 3, 20}",
    "v": "int64[4] v = {0, 6, 4, 5}",
    "g": "float[6,1,1] g = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}",
    "b": "float[1,6,1,1] b = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}",
    "c": "float[6] c = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}",
    "ones": "float[40] ones = {" + ", ".join(["1.0"] * 40) + "}",
    "eps": "float eps = {0.001}",
    "two": "float two = {2.0}",
    "axes": "int64[1] axes = {2}",
}


def model(nodes: str, head: str = HEAD, **numbers: str) -> str:
    """A graph of some nodes, with the constants that they use."""
    used = [numbers.get(name, text) for name, text in NUMBERS.items() if re.search(rf"\b{name}\b", nodes)]
    return f"{head} <{', '.join(used)}> {{ {nodes} }}"


BELOW = "q = Reshape (n, v) m = Mul (q, g) y = Add (m, b)"
INSTANCE = f"r = Reshape (x, s) n = InstanceNormalization <epsilon = 0.001> (r, one, nul) {BELOW}"
LAYER = f"r = Reshape (x, s) n = LayerNormalization <axis = -1, epsilon = 0.001> (r, ones) {BELOW}"
SPELLED = f"""r = Reshape (x, s) a = ReduceMean (r, axes) d = Sub (r, a) p = Mul (d, d) w = ReduceMean (p, axes)
    e = Add (w, eps) k = Sqrt (e) n = Div (d, k) {BELOW}"""
GONE = {"Reshape": 0, "InstanceNormalization": 0, "LayerNormalization": 0, "Mul": 0, "Add": 0}


@pytest.mark.parametrize("nodes", [INSTANCE, LAYER, SPELLED])
def test_the_standard_op(nodes: str) -> None:
    result = check_rewrites(PASS, model(nodes), ops={"GroupNormalization": 1, **GONE}, opset=21, target="onnx")
    attributes = result.graph[0].attributes
    assert attributes.get_int("num_groups") == 3
    assert attributes.get_float("epsilon") == pytest.approx(0.001)


@pytest.mark.parametrize("nodes", [INSTANCE, LAYER])
def test_on_cuda(nodes: str) -> None:
    fixed = HEAD.replace("N", "2")
    ops = {"com.microsoft::GroupNorm": 1, "Transpose": 2, **GONE}
    result = check_rewrites(PASS, model(nodes, fixed), ops=ops, opset=17, options=CUDA, numbers=False)
    (norm,) = (node for node in result.graph if node.op_type == "GroupNorm")
    assert norm.attributes.get_int("groups") == 3
    assert norm.attributes.get_int("activation") == 0


@pytest.mark.parametrize(
    "silu",
    [
        "h = Sigmoid (z) y = Mul (z, h)",
        "h = Sigmoid (z) y = Mul (h, z)",
        "y = com.microsoft.QuickGelu <alpha = 1.0> (z)",
    ],
)
def test_with_silu_on_cuda(silu: str) -> None:
    nodes = INSTANCE.replace("y = Add", "z = Add") + " " + silu
    ops = {"com.microsoft::GroupNorm": 1, "Sigmoid": 0, "com.microsoft::QuickGelu": 0, **GONE}
    result = check_rewrites(PASS, model(nodes, HEAD.replace("N", "2")), ops=ops, opset=17, options=CUDA, numbers=False)
    (norm,) = (node for node in result.graph if node.op_type == "GroupNorm")
    assert norm.attributes.get_int("activation") == 1
