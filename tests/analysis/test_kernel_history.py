"""Since which release of ONNX Runtime nodes are computed right."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from ortopt import optimize
from ortopt.analysis import kernel_history, releases
from ortopt.analysis.kernel_history import FACTS, Fact
from ortopt.testing import parse
from ortopt.verification.process import Worker
from tools import probe_kernels

SAID = {kernel_history.MASKED_ROWS, kernel_history.NO_QUERY, kernel_history.ROOT_OF_INFINITY}  # of these a node says it
SHOWN = [fact for fact in FACTS if fact.name not in SAID]


def node_of(text: str, opset: int = 17) -> ir.Node:
    return parse(text, opset).graph[-1]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_a_fact_is_what_its_probe_shows_here(fact: Fact, tmp_path: Path) -> None:
    with Worker(("CPUExecutionProvider",)) as worker:
        is_right = not probe_kernels.measure(fact, worker, tmp_path)
    assert is_right == (releases.installed() >= kernel_history.measured(fact.name))


@pytest.mark.parametrize("fact", SHOWN, ids=lambda fact: fact.name)
def test_a_probe_has_the_form_that_it_is_for(fact: Fact) -> None:
    model = ir.serde.deserialize_model(probe_kernels.model_of(fact))
    node = model.graph[-1]
    opset = model.opset_imports[node.domain]
    assert fact.holds(node, opset)
    release = kernel_history.first_release(node, opset)
    assert release >= kernel_history.measured(fact.name)


@pytest.mark.parametrize(
    ("statement", "release"),
    [
        ('y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x, "", "", b)', (1, 0)),
        ('y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x, "", "", c)', (1, 21)),
        ("y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x)", (1, 0)),
        ("y = com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = 1> (x, x, x)", (1, 0)),
    ],
)
def test_a_bias_that_is_shared_needs_a_later_release(statement: str, release: tuple[int, int]) -> None:
    node = node_of(f"main (float[2,3,4] x, float[2,2,3,3] b, float[2,1,3,3] c) => (float[2,3,4] y) {{ {statement} }}")
    assert kernel_history.first_release(node, 1) == release


def test_attributes_and_outputs_that_came_later() -> None:
    plain = "main (uint4[4,32] w, int64[2] i, float[4,1] s) => (float[2,32] y) { y = com.microsoft.GatherBlockQuantized"
    assert kernel_history.first_release(node_of(f"{plain} <block_size = 32> (w, i, s) }}", 21), 1) == (1, 20)
    assert kernel_history.first_release(node_of(f"{plain} <block_size = 32, bits = 4> (w, i, s) }}", 21), 1) == (1, 23)
    one = """main (float[1,1,8] q, int32[1] last, int32 total) => (float[1,1,8] y) {
        y = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (q, q, q, "", "", last, total) }"""
    assert kernel_history.first_release(node_of(one), 1) > (1, 20)


def test_kernels_for_types_that_came_later() -> None:
    text = "main (uint16[4] x, float s, uint16 z) => (float[4] y) { y = DequantizeLinear (x, s, z) }"
    assert kernel_history.first_release(node_of(text, 21), 21) == (1, 18)
    assert kernel_history.first_release(node_of("main (float[4] x) => (float[4] y) { y = Abs (x) }"), 17) == (1, 0)


def test_a_root_that_a_pass_makes_needs_1_21_and_a_models_own_does_not() -> None:
    power = "main (float[16] x) => (float[16] y) <float h = {0.5}> { a = Abs (x) y = Pow (a, h) }"
    root = "main (float[16] x) => (float[16] y) { a = Abs (x) y = Sqrt (a) }"
    for text, least, made in ((power, "1.20", "Pow"), (power, "1.21", "Sqrt"), (root, "1.17", "Sqrt")):
        result = optimize(parse(text, 17), level=1, min_onnxruntime=least, verify=False)
        assert [node.op_type for node in result.model.graph] == ["Abs", made]
        first = kernel_history.first_release(result.model.graph[-1], 17)
        assert first == ((1, 21) if (text, made) == (power, "Sqrt") else kernel_history.ANY)


def test_kernels_of_other_providers_are_no_question_of_the_cpus() -> None:
    node = node_of("main (uint16[4] x, float s, uint16 z) => (float[4] y) { y = DequantizeLinear (x, s, z) }", 21)
    assert kernel_history.first_release(node, 21, on_cpu=False) == kernel_history.ANY


def test_what_needs_a_later_release_is_refused_with_what_allows_it() -> None:
    text = """main (float[2,3,2,4] x, float[2,1,3,3] b) => (float[2,3,2,4] y) <float half = {0.5}> {
        q = Transpose <perm = [0, 2, 1, 3]> (x) k = Transpose <perm = [0, 2, 3, 1]> (x)
        s = MatMul (q, k) d = Mul (s, half) a = Add (d, b) p = Softmax <axis = -1> (a)
        h = MatMul (p, q) y = Transpose <perm = [0, 2, 1, 3]> (h) }"""
    for least, fused in (("1.20", False), ("1.21", True)):
        result = optimize(parse(text), level=3, fusions="all", min_onnxruntime=least, verify=False)
        assert ("com.microsoft::MultiHeadAttention" in result.summary.after.ops) == fused


def test_a_model_that_needs_a_release_says_so() -> None:
    text = """main (float[2,3,4] x, float[2,1,3,3] b) => (float[2,3,4] y) {
        y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x, "", "", b) }"""
    model = parse(text)
    model.ir_version = 8
    assert releases.requirement(model).onnxruntime == "1.21"


@pytest.mark.parametrize(
    ("text", "opset", "release"),
    [
        ("main (float[2,K] x, float[K,3] w) => (float[2,3] y) { y = Gemm (x, w) }", 17, (1, 20)),
        ("main (float[N,4] x, float[4,3] w) => (float[N,3] y) { y = Gemm (x, w) }", 17, (1, 0)),
        (
            """main (float[1,2,3,4] x, float[1,1,3,4] k, float[2,3,3] m) => (float[1,2,3,4] y) {
                y = Attention (x, k, k, m) }""",
            23,
            (1, 25),
        ),
    ],
    ids=["a sum that may be of nothing", "no sequences", "a mask of three dimensions"],
)
def test_what_a_node_may_have_counts(text: str, opset: int, release: tuple[int, int]) -> None:
    needed = kernel_history.first_release(node_of(text, opset), opset)
    assert needed >= release and (release != (1, 0) or needed == release)
