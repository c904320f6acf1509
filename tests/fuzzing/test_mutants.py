"""Mutants of the passes' examples; `make mutants` runs thousands."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from fuzzing import oracle
from fuzzing.generator import Case
from fuzzing.mutants import nesting, spelling
from fuzzing.mutants.__main__ import examine
from fuzzing.mutants.draft import Draft
from fuzzing.mutants.examples import examples, names
from fuzzing.mutants.mutant import AT_ONCE, mutant
from fuzzing.oracle import Oracle, Way
from fuzzing.writer import Unsuitable

PASSES = ("matmul_add_fusion", "cast_elimination")


def test_examples_are_what_passes_rewrite_and_what_they_keep() -> None:
    assert set(PASSES) < set(names())
    found = examples("matmul_add_fusion")
    assert len(found) > 15  # with those of parametrized tests
    ops = [{node.op_type for node in one.model.graph.node} for one in found]
    assert {"MatMul", "Sum"} in ops
    assert {one.options["fusions"] for one in found} == {"all"}
    assert len({one.model.SerializeToString() for one in found}) == len(found)


def test_mutants_compute_the_same() -> None:
    done = [examine(seed, None, passes=PASSES) for seed in range(2 * AT_ONCE)]
    ran = [one for one in done if "rejected" not in one]
    assert len(ran) > AT_ONCE
    assert [text for one in ran for text in one["found"]] == []
    assert set(PASSES) <= {name for one in ran for name in one["rewrites"]}


def test_a_seed_gives_the_same_mutant_each_time_and_others_give_others() -> None:
    made = [[mutant(seed, PASSES).case for seed in range(4)] for _ in range(2)]
    contents = [[case.model.SerializeToString(deterministic=True) for case in cases] for cases in made]
    assert contents[0] == contents[1]
    assert len(set(contents[0])) > 2
    for one, other in zip(*made, strict=True):
        assert one.label == other.label
        for first, second in zip(one.feeds, other.feeds, strict=True):
            for name, array in first.items():
                np.testing.assert_array_equal(array, second[name])


def test_a_planted_bug_is_found_and_kept_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results in which each Add has become a Sub."""
    right = oracle.optimized

    def wrong(data: bytes, way: Way) -> tuple[bytes, list[oracle.PassTotal]]:
        made, passes = right(data, way)
        model = onnx.load_from_string(made)
        for node in model.graph.node:
            node.op_type = "Sub" if node.op_type == "Add" else node.op_type
        return model.SerializeToString(), passes

    monkeypatch.setattr(oracle, "optimized", wrong)
    seeds = range(AT_ONCE)
    done = [examine(seed, tmp_path, passes=("matmul_add_fusion",)) for seed in seeds]
    assert any(text.startswith("differs") for one in done for text in one.get("found", ()))
    texts = [path.read_text(encoding="utf-8") for path in tmp_path.glob("differs-*/finding.txt")]
    assert any("an example of matmul_add_fusion, changed by" in text for text in texts)
    assert list(tmp_path.glob("differs-*/small.onnx"))


def test_unknown_passes_give_no_mutant() -> None:
    with pytest.raises(Unsuitable):
        mutant(0, ("opset_conversion",))


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> {text}')


def test_a_branch_that_never_runs_and_that_onnxruntime_refuses_once_it_folds_is_no_failure() -> None:
    text = """main (bool c, int64 i) => (int64[N] y) <int64[3] all = {0, 1, 2}, int64[1] zero = {0}> {
        s = Shape (i)
        y = If (c) <then_branch = p () => (int64[M] o) { o = Slice (all, zero, s) },
                    else_branch = q () => (int64[K] r) { r = Identity (all) }> }"""
    judge = Oracle(Case(parsed(text), [{"c": np.array(False), "i": np.array(1)}]))
    assert judge.check(Way(1, "onnx")) is None
    assert judge.rewrites


def test_memory_that_nobody_wrote_is_no_failure() -> None:
    judge = Oracle(Case(parsed("main (float[2] x) => (float[2] y) { y = Neg (x) }"), [{"x": np.ones(2, np.float32)}]))
    ((feeds, expected, _),) = judge.sets
    assert not judge._is_unsteady(feeds, expected)
    assert judge._is_unsteady(feeds, [expected[0] + 1])


CHAIN = """main (float[B,4,6] x) => (float[A,C] y) <int64[1] a = {1}> {
    t = Transpose <perm = [0, 2, 1]> (x) r = Softmax <axis = -1> (t) y = ReduceSum <keepdims = 0> (r, a) }"""
CONVOLVED = "main (float[1,1,5,5] x) => (float[A,B,C,D] y) <float[1,1,3,3] w = {1,2,3,4,5,6,7,8,9}> { y = Conv (x, w) }"


@pytest.mark.parametrize("change", [nesting.captured, nesting.looped, nesting.doubled, spelling.from_the_end])
def test_a_model_that_is_nested_or_spelled_otherwise_computes_the_same(change: Callable[[Draft], None]) -> None:
    model = parsed(CHAIN)
    x = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)
    (expected,) = oracle.run(oracle.session(model.SerializeToString()), {"x": x})
    for seed in range(6):
        draft = Draft(random.Random(seed), parsed(CHAIN))
        draft.forget_computed()
        with contextlib.suppress(Unsuitable):
            change(draft)
        runs = oracle.session(draft.model.SerializeToString())
        given = {name: np.array(1 if kind == "tensor(int64)" else True) for name, kind in names_and_types(runs)}
        got = dict(zip([one.name for one in runs.get_outputs()], oracle.run(runs, {**given, "x": x}), strict=True))
        np.testing.assert_array_equal(got["y"], expected)


def names_and_types(runs: onnxruntime.InferenceSession) -> list[tuple[str, str]]:
    """The further inputs of a changed model."""
    return [(one.name, one.type) for one in runs.get_inputs() if one.name != "x"]


def test_nodes_move_into_a_function_that_may_have_another_opset() -> None:
    versions = set()
    for seed in range(12):
        draft = Draft(random.Random(seed), parsed(CHAIN))
        nesting.moved(draft)
        (function,) = draft.model.functions
        versions |= {one.version for one in function.opset_import if not one.domain}
        assert any(node.domain == function.domain for node in draft.graph.node)
    assert 17 in versions
    assert len(versions) > 1


def test_attributes_of_a_convolution_are_written_out_or_left_to_it() -> None:
    model = parsed(CONVOLVED)
    spelling.told(Draft(random.Random(0), model))
    assert {one.name for one in model.graph.node[0].attribute} == {"kernel_shape", "strides", "dilations", "pads"}
    spelling.left_to_the_op(Draft(random.Random(0), model))
    assert {one.name for one in model.graph.node[0].attribute} == {"kernel_shape", "strides", "dilations", "auto_pad"}
    plain = parsed(CONVOLVED)
    spelling.defaults(Draft(random.Random(0), plain))
    assert len(plain.graph.node[0].attribute) == 1


def test_a_concat_that_skips_what_is_empty_gives_memory_that_nobody_wrote() -> None:
    model = parsed("main (float[A,2] x, float[B,C] z) => (float[D,E] y) { y = Concat <axis = 1> (x, z) }")
    x, fits, empty = np.ones((3, 2), np.float32), np.ones((3, 1), np.float32), np.ones((0, 1), np.float32)
    assert not oracle.joins_what_does_not_fit(model, {"x": x, "z": fits})
    assert oracle.joins_what_does_not_fit(model, {"x": x, "z": empty})


def test_one_step_of_a_quantized_result_is_no_failure_where_a_pass_may_make_it() -> None:
    near, far = np.array([3, 4, 9], np.uint8), np.array([3, 7, 9], np.uint8)
    got = np.array([3, 5, 8], np.uint8)
    np.testing.assert_array_equal(oracle._with_steps(near, got), got)
    np.testing.assert_array_equal(oracle._with_steps(far, got), [3, 7, 8])
    wide = near.astype(np.int64)
    np.testing.assert_array_equal(oracle._with_steps(wide, got.astype(np.int64)), wide)
