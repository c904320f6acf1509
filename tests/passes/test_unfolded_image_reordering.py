"""Pixels are regrouped with their channels last, which ONNX Runtime reorders without a Transpose of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import parse, run
from tests.passes import example_files
from tests.passes.sessions import check_second_run, loaded, passed

PASS = "unfolded_image_reordering"
BOTH = example_files.text(PASS, "both ways")


@pytest.mark.parametrize(
    ("title", "because"),
    [
        ("an image becomes rows", "the channels go last already"),
        ("rows become an image", "the channels come from the end already"),
    ],
)
def test_its_own_results(title: str, because: str) -> None:
    changed, context = run(PASS, passed(PASS, example_files.text(PASS, title)))
    assert not changed
    assert because in str(context.refusals)


def test_onnxruntime_reorders_without_a_transpose(tmp_path: Path) -> None:
    """The outer Transposes become part of the reorderings when the result is loaded."""
    ops = loaded(passed(PASS, BOTH), tmp_path)
    if "ReorderInput" not in ops:
        pytest.skip("this processor has no blocked kernels")
    assert ops.count("Transpose") == 2, ops
    assert ops.count("ReorderInput") == ops.count("ReorderOutput") == 2, ops


@pytest.mark.parametrize(
    ("batch", "shape"), [("1", "1, 4, 2, 2, 3, 2"), ("B", "0, 4, 2, 2, 3, 2"), ("2", "2, 4, 2, 2, 3, 2")]
)
def test_other_passes_make_no_single_transpose_of_both(batch: str, shape: str) -> None:
    """Where there may be several images, they would: then the images stay as they are."""
    text = f"""main (float[{batch},4,4,6] x) => (float[] y)
        <float[4,1,1,1] w = {{1, -2, 3, 4}}, int64[6] r = {{{shape}}}, int64[4] s = {{-1, 4, 6, 4}}> {{
        i = Conv <group = 4> (x, w) j = Reshape (i, r) k = Transpose <perm = [0, 3, 5, 2, 4, 1]> (j) n = Reshape (k, s)
        y = Softmax <axis = -1> (n) }}"""
    ops = figures(optimize(parse(text), level=3, verify=False).model).ops
    assert ops["Transpose"] == (2 if batch == "1" else 1)


def test_a_second_run_changes_nothing() -> None:
    check_second_run(BOTH, {"Conv": 2, "Reshape": 4, "Softmax": 1, "Transpose": 4})
