"""A few seeds of the fuzzer, at every level; `make fuzz` runs thousands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from fuzzing import groups, mutations
from fuzzing.contradictions import tamed
from fuzzing.generator import Case, generate
from fuzzing.oracle import Oracle, Rejected, Way, failures, run, session
from fuzzing.writer import Unsuitable

ROOT = Path(__file__).parents[2]
SEEDS = 60
BYTES = """
import hashlib
from fuzzing.generator import generate
from fuzzing.oracle import Way, optimized
for seed in (0, 1, 2, 4, 5, 6):
    for level in (1, 3):
        made, _ = optimized(generate(seed).model.SerializeToString(), Way(level))
        print(seed, level, hashlib.sha256(made).hexdigest())
"""


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_random_models_compute_the_same_at_every_level(first: int) -> None:
    ran = 0
    for seed in range(first, first + 20):
        try:
            _, found = failures(generate(seed), seed)
        except (Rejected, Unsuitable):
            continue
        ran += 1
        assert not found, f"seed {seed}: {found[0]}"
    assert ran > 12


def test_random_models_with_oddities_compute_the_same_in_groups() -> None:
    done = [groups.examine(seed, None) for seed in range(12)]
    ran = [one for one in done if "rejected" not in one]
    assert len(ran) > 8
    assert [text for one in ran for text in one["found"]] == []
    assert len({name for one in ran for name in one["rewrites"]}) > 5


def test_random_models_give_the_same_bytes_with_any_hash_seed() -> None:
    printed = set()
    for seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", BYTES], capture_output=True, text=True, env=environment, check=True
        )
        printed.add(done.stdout)
    (lines,) = printed
    assert len(lines.splitlines()) == 12


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


BESIDE_NAN = """main (float[5,6] x) => (float[6] y) {
    t = Transpose <perm = [1, 0]> (x) y = ReduceMax <axes = [1], keepdims = 0> (t) }"""
NEGATIVE_ZERO = """main (bool[2] c, float[2] a, float[2] b) => (float[2] y) {
    n = Not (c) w = Where (n, a, b) y = Reciprocal (w) }"""


@pytest.mark.parametrize("text", [BESIDE_NAN, NEGATIVE_ZERO])
def test_what_onnxruntime_contradicts_itself_at_is_no_failure(text: str) -> None:
    x = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)
    x[::2, ::2] = x[1, 1:4] = np.nan
    zeros = np.full(2, -0.0, np.float32)
    model = parsed(text)
    feeds = {"x": x} if text is BESIDE_NAN else {"c": np.array([True, False]), "a": zeros, "b": zeros}
    oracle = Oracle(Case(model, [feeds]))
    assert oracle.check(Way(1, "onnx")) is None
    assert oracle.rewrites


def test_onnxruntime_contradicts_itself_at_empty_reductions() -> None:
    text = """main (float[3,N] x) => (float[1,3] y) <int64[1] a = {%d}> {
        s = ReduceSum (x, a) t = Transpose <perm = [1, 0]> (s) y = Abs (t) }"""
    empty = {"x": np.zeros((3, 0), np.float32)}
    first, last = (run(session(parsed(text % axis).SerializeToString()), empty)[0] for axis in (1, -1))
    assert (first.shape, last.shape) == ((1, 3), (0, 3)), "ONNX Runtime has become better: the excuse can go"
    oracle = Oracle(Case(parsed(text % -1), [{"x": np.ones((3, 2), np.float32)}]))
    right = parsed(text % 1).SerializeToString()
    assert oracle._is_contradiction(right, empty, True)
    wrong = parsed((text % 1).replace("Abs (t)", "Concat <axis = 0> (t, t)")).SerializeToString()
    assert not oracle._is_contradiction(wrong, empty, True)


def test_onnxruntime_does_not_round_float16_between_some_nodes() -> None:
    nested = """main (float16[2,4] x) => (float16[4] y) <bool c = {1}> {
        r = ReduceProd <axes = [0], keepdims = 0> (x)
        v = If (c) <then_branch = t () => (float16[4] p) { p = HardSwish (r) },
            else_branch = e () => (float16[4] q) { q = Neg (r) }>
        y = Sign (v) }"""
    flat = """main (float16[2,4] x) => (float16[4] y) {
        r = ReduceProd <axes = [0], keepdims = 0> (x) v = HardSwish (r) y = Sign (v) }"""
    feeds = {"x": np.float16([[6e-4, 2e-4, 1, 0], [1e-4, -2e-4, 2, 1]])}
    one, other = (run(session(parsed(each).SerializeToString()), feeds)[0] for each in (nested, flat))
    assert one.tolist() != other.tolist(), "ONNX Runtime has become better: the excuse can go"
    oracle = Oracle(Case(parsed(nested), [feeds]))
    assert oracle.check(Way(1, "onnx")) is None
    assert "if_inlining" in oracle.rewrites
    wrong = parsed(flat.replace("HardSwish (r)", "Neg (r)")).SerializeToString()
    assert not oracle._is_contradiction(wrong, feeds, False)


def test_which_infinity_a_sum_in_another_order_gives_is_no_failure() -> None:
    text = """main (float[1,2] x) => (float[1,2] y) <float[2,2] v = {1.0, 2.0, 2.0, 5.0}, float[2,2] w = {%s}> {
        l = Log (x) m = MatMul (l, v) y = MatMul (m, w) }"""
    oracle = Oracle(Case(parsed(text % "3.0, -1.0, -1.0, 1.0"), [{"x": np.float32([[0, 2]])}]))
    ((_, (expected,), _),) = oracle.sets
    assert np.isnan(expected).all()
    assert oracle.check(Way(1, "onnx")) is None
    assert "matmul_reassociation" in oracle.rewrites
    infinite, finite = np.float32([[-np.inf, np.inf]]), np.float32([[1, np.inf]])
    assert not oracle.difference({}, [expected], [infinite], False)
    assert oracle.difference({}, [expected], [infinite], True)
    assert oracle.difference({}, [expected], [finite], False)


def test_which_infinity_a_zero_in_another_order_gives_is_no_failure() -> None:
    text = """main (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[1,1,1,1] w = {3.0}, float c = {-0.1},
        float one = {1}> { v = Conv (x, w) d = Div (v, c) y = Div (one, d) }"""
    feeds = {"x": np.float32([[[[0, 1], [2, 0]]]])}
    oracle = Oracle(Case(parsed(text), [feeds]))
    assert oracle.check(Way(1, "onnx")) is None
    assert "conv_mul_fusion" in oracle.rewrites
    folded = parsed(text.replace("{3.0}", "{-30.0}").replace("d = Div (v, c) y = Div (one, d)", "y = Div (one, v)"))
    assert oracle._is_contradiction(folded.SerializeToString(), feeds, False)
    assert not oracle._is_contradiction(folded.SerializeToString(), feeds, True)
    wrong = parsed(text.replace("y = Div (one, d)", "y = Div (d, one)")).SerializeToString()
    assert not oracle._is_contradiction(wrong, feeds, False)


def test_a_quotient_whose_reciprocal_is_infinite_is_no_failure() -> None:
    text = """main (float[3] x) => (float[3] y) <float one = {1}> { r = Div (one, x) p = Mul (x, r) y = Tanh (p) }"""
    oracle = Oracle(Case(parsed(text), [{"x": np.float32([1e-40, -1e-40, 2])}]))
    assert oracle.check(Way(1, "onnx")) is None
    assert "div_mul_fusion" in oracle.rewrites


def test_a_contradiction_that_a_pass_leaves_out_beside_another_is_no_failure() -> None:
    """The reduction is of one element; NaN passes through the result, and not through the original without it."""
    text = """main (float[1,4] x, bool[1,4] c) => (float[1,4] y) <int64[1] axes = {0}> {
        m = ReduceMax <keepdims = 1> (x, axes) n = Not (c) y = Where (n, m, x) }"""
    x = np.float32([[-0.0, np.nan, 1, -0.0]])
    model = parsed(text)
    model.opset_import[0].version = 20
    oracle = Oracle(Case(model, [{"x": x, "c": np.array([[True, False, True, False]])}]))
    assert oracle.check(Way(1, "onnx")) is None
    assert oracle.rewrites


def test_what_is_not_that_contradiction_is_still_found() -> None:
    right, wrong = parsed(NEGATIVE_ZERO), parsed(NEGATIVE_ZERO.replace("(n, a, b)", "(n, b, a)"))
    feeds = {"c": np.array([True, False]), "a": np.float32([-0.0, 1]), "b": np.float32([2, -0.0])}
    first, second = (tamed(model) for model in (right, wrong))
    assert first is not None
    assert second is not None
    one, other = (run(session(model.SerializeToString()), feeds)[0] for model in (first, second))
    assert not np.array_equal(one, other)
    oracle = Oracle(Case(right, [feeds]))
    assert not oracle._is_contradiction(wrong.SerializeToString(), feeds, True)


def test_strings_that_onnxruntime_gathers_wrongly_are_no_case() -> None:
    text = "main (string[3,2] x) => (string[2,2] y) <int64[2] i = {0, 2}> { y = Gather (x, i) }"
    with pytest.raises(Rejected, match="strings"):
        Oracle(Case(parsed(text), [{"x": np.array([list("ab")] * 3, object)}]))


def test_a_computed_size_of_0_that_copies_is_no_case() -> None:
    text = """main (float[S,2,N] x) => (int64[2] y) <int64[1] minus = {-1}> {
        n = Shape <start = 2> (x) t = Concat <axis = 0> (minus, n) z = Reshape (x, t) y = Shape (z) }"""
    full, empty = ({"x": np.ones((3, 2, n), np.float32)} for n in (4, 0))
    oracle = Oracle(Case(parsed(text), [full, empty]))
    assert [feeds["x"].shape for feeds, _, _ in oracle.sets] == [(3, 2, 4)]
    allowed = parsed(text.replace("n = Shape <start = 2> (x)", "n = Shape <start = 1, end = 2> (x)"))
    assert len(Oracle(Case(allowed, [full, {"x": np.ones((0, 2, 4), np.float32)}])).sets) == 2


def test_sums_in_another_order_may_be_nan_where_they_were_infinite() -> None:
    oracle = Oracle(Case(parsed("main (float[3] x) => (float[3] y) { y = Neg (x) }"), [{"x": np.zeros(3, np.float32)}]))
    infinite, lost, turned, finite = (np.float32([1, one, 2]) for one in (np.inf, np.nan, -np.inf, 3))
    assert not oracle.difference({}, [infinite], [lost], exact=False)
    assert oracle.difference({}, [infinite], [lost], exact=True)
    assert oracle.difference({}, [infinite], [turned], exact=False)
    assert oracle.difference({}, [finite], [lost], exact=False)


def test_a_disturbed_model_still_runs_where_a_node_has_several_results() -> None:
    from fuzzing.disturbance import disturbed

    model = parsed("main (float[4] x) => (float[2] y, float[2] z) { y, z = Split <axis = 0> (x) }")
    x = np.arange(1, 5, dtype=np.float32)
    for one, other in zip(
        *(run(session(m.SerializeToString()), {"x": x}) for m in (model, disturbed(model, 0))), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("name", ["control_flow__script17", "lstm_tagger__ts13"])
def test_pieces_of_the_zoo_compute_the_same(name: str) -> None:
    ran = 0
    for seed in range(3, 43, 4):
        try:
            _, found = failures(mutations.mutated(seed, (name,)), seed)
        except (Rejected, Unsuitable):
            continue
        ran += 1
        assert not found, f"seed {seed}: {found[0]}"
    assert ran > 5
