"""A Transpose of several axes is one of a matrix and one of blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites, parse, run

PASS = "transpose_decomposition"
BOTH, ALONE = {"Transpose": 2, "Reshape": 3}, {"Transpose": 1, "Reshape": 2}


def model(sizes: str, perm: str, dtype: str = "float") -> str:
    """A Transpose, of a value that something computes."""
    rank = len(sizes.split(","))
    result = ",".join("ABCDEFG"[:rank])
    return f"""main ({dtype}[{sizes}] x) => ({dtype}[{result}] y) {{
        n = Neg (x) t = Transpose <perm = [{perm}]> (n) y = Neg (t) }}"""


@pytest.mark.parametrize(
    ("sizes", "perm", "ops"),
    [
        ("1,4,4,5,5,16", "0, 5, 1, 3, 2, 4", BOTH),  # windows of tokens
        ("1,16,4,5,4,5", "0, 2, 4, 3, 5, 1", BOTH),  # and tokens of windows
        ("4,32,40", "2, 1, 0", BOTH),
        ("40,32,4", "2, 1, 0", BOTH),
        ("2,40,30,4", "0, 3, 2, 1", BOTH),
        ("N,40,30,4", "0, 3, 2, 1", BOTH),
        ("40,N,30,4", "3, 2, 1, 0", BOTH),
        ("8,N,128,6", "2, 3, 1, 0", BOTH),
        ("N,40,4,30", "3, 2, 1, 0", BOTH),
        ("N,49,3,4,32", "2, 0, 3, 4, 1", BOTH),
        ("64,6,12,4", "3, 2, 1, 0", BOTH),
        ("1,72,1,1,96", "2, 0, 4, 3, 1", ALONE),
        ("2,72,1,48", "0, 3, 2, 1", ALONE),
        ("8,9,10,11", "2, 3, 0, 1", ALONE),
        ("N,9,50,11", "2, 3, 0, 1", ALONE),
    ],
)
def test_blocks_move(sizes: str, perm: str, ops: dict[str, int]) -> None:
    check_rewrites(PASS, model(sizes, perm), ops=ops)


def test_an_empty_batch() -> None:
    empty = {"x": np.zeros((0, 40, 30, 4), np.float32)}
    check_rewrites(PASS, model("N,40,30,4", "0, 3, 2, 1"), ops=BOTH, inputs=empty)


KEPT = {
    "the end stays": ("4,32,40", "1, 0, 2", "the Transpose is fast"),
    "one axis moves": ("4,32,40", "0, 2, 1", "the Transpose is fast"),
    "a few elements": ("4,5,6", "2, 1, 0", "it has few elements"),
    "a few elements of each item": ("N,4,5,6", "0, 3, 2, 1", "it has few elements"),
    "nothing of any size": ("4,N,M", "2, 1, 0", "several dimensions are not fixed"),
    "nothing at all": ("4,0,40", "2, 1, 0", "it has no elements"),
    "small blocks": ("3,2000,3", "2, 1, 0", "nothing that is copied together is large"),
    "units that come last": ("16,17,16,1", "1, 0, 3, 2", "blocks are copied"),
}


@pytest.mark.parametrize("name", KEPT)
def test_keeps(name: str) -> None:
    sizes, perm, because = KEPT[name]
    check_keeps(PASS, model(sizes, perm), because)


def test_other_types_stay() -> None:
    check_keeps(PASS, model("4,32,40", "2, 1, 0", "double"), "single precision only")


def test_what_is_split_stays() -> None:
    text = """main (float[40,32,4] x) => (float[A,B,C] y, float[D,E,F] z) {
        t = Transpose <perm = [2, 1, 0]> (x) y, z = Split <axis = 0> (t) }"""
    check_keeps(PASS, text, "split")


def test_other_runtimes_keep_it() -> None:
    check_keeps(PASS, model("4,32,40", "2, 1, 0"), "it serves ONNX Runtime", target="onnx")


WINDOWS, TOKENS = ("1,4,4,5,5,16", "0, 5, 1, 3, 2, 4"), ("1,16,4,5,4,5", "0, 2, 4, 3, 5, 1")


@pytest.mark.parametrize(("sizes", "perm"), [WINDOWS, TOKENS])
def test_onnx_runtime_does_not_make_one_of_both(sizes: str, perm: str, tmp_path: Path) -> None:
    turned = parse(model(sizes, perm))
    run(PASS, turned)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    ort.InferenceSession(to_bytes(turned), options, providers=["CPUExecutionProvider"])
    loaded = onnx.load(tmp_path / "loaded.onnx")
    assert [node.op_type for node in loaded.graph.node].count("Transpose") == 2


def test_a_second_run_changes_nothing() -> None:
    result = optimize(parse(model(*WINDOWS)), level=3, verify=False)
    assert figures(result.model).ops["Transpose"] == 2
    assert figures(optimize(result.model, level=3, verify=False).model).ops == figures(result.model).ops
