"""Mutants of the passes' examples; `make mutants` runs thousands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from fuzzing import oracle
from fuzzing.generator import Case
from fuzzing.mutants.__main__ import examine
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
