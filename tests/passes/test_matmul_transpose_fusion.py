"""A product reads its matrices transposed, as far as ONNX Runtime's kernel can, and gives the same."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime as ort
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse

PASS = "matmul_transpose_fusion"


def model(a: str, b: str, result: str, nodes: str, dtype: str = "float", more: str = "") -> str:
    return f"main ({dtype}[{a}] a, {dtype}[{b}] b) => ({dtype}[{result}] y{more}) {{ {nodes} }}"


def fused(flags: str, operands: str = "a, b") -> str:
    return f"y = com.microsoft.FusedMatMul <{flags}> ({operands})"


REWRITTEN = {
    "a matrix, left": (
        model("K,M", "K,N", "M,N", "t = Transpose <perm = [1, 0]> (a) y = MatMul (t, b)"), fused("transA = 1"),
    ),
    "a matrix, right": (
        model("M,K", "N,K", "M,N", "t = Transpose (b) y = MatMul (a, t)"), fused("transB = 1"),
    ),
    "both": (
        model("K,M", "N,K", "M,N", "s = Transpose (a) t = Transpose (b) y = MatMul (s, t)"),
        fused("transA = 1, transB = 1"),
    ),
    "keys of attention": (
        model("B,2,S,8", "B,2,4,8", "B,2,S,4", "t = Transpose <perm = [0, 1, 3, 2]> (b) y = MatMul (a, t)"),
        fused("transB = 1"),
    ),
    "rows of a batch by one matrix": (
        model("B,S,8", "N,8", "B,S,N", "t = Transpose (b) y = MatMul (a, t)"), fused("transB = 1"),
    ),
    "a batch, left": (
        model("2,8,3", "2,8,4", "2,3,4", "t = Transpose <perm = [0, 2, 1]> (a) y = MatMul (t, b)"),
        fused("transA = 1"),
    ),
    "a batch that is moved, left": (
        model("3,2,8", "2,8,4", "2,3,4", "t = Transpose <perm = [1, 0, 2]> (a) y = MatMul (t, b)"),
        fused("transBatchA = 1"),
    ),
    "a batch that is moved, and turned": (
        model("2,3,8", "4,2,8", "2,3,4", "t = Transpose <perm = [1, 2, 0]> (b) y = MatMul (a, t)"),
        fused("transB = 1, transBatchB = 1"),
    ),
    "two dimensions of a batch that are moved": (
        model("4,2,3,8", "2,3,8,5", "2,3,4,5", "t = Transpose <perm = [1, 2, 0, 3]> (a) y = MatMul (t, b)"),
        fused("transBatchA = 1"),
    ),
    "a product that is fused": (
        model("8,M", "8,N", "M,N", "s = Transpose (a) t = Transpose (b)"
              " y = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (s, t)"),
        fused("alpha = 0.5, transA = 1"),
    ),
    "a Transpose for two products": (
        model("M,K", "N,K", "M,N", "t = Transpose (b) p = MatMul (a, t) q = MatMul (a, t) y = Add (p, q)"),
        "p = com.microsoft.FusedMatMul <transB = 1> (a, b) q = com.microsoft.FusedMatMul <transB = 1> (a, b)"
        " y = Add (p, q)",
    ),
    "one operand, twice": (
        "main (float[N,8] a) => (float[N,N] y) { t = Transpose (a) y = MatMul (a, t) }", fused("transB = 1", "a, a"),
    ),
    "double": (
        model("M,K", "N,K", "M,N", "t = Transpose (b) y = MatMul (a, t)", dtype="double"), fused("transB = 1"),
    ),
    "a Cast between": (
        """main (float[2,8] a, float16[4,8] b) => (float[2,4] y) {
            t = Transpose (b) c = Cast <to = 1> (t) y = MatMul (a, c) }""",
        "c = Cast <to = 1> (b) y = com.microsoft.FusedMatMul <transB = 1> (a, c)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REWRITTEN)
def test_rewrites(case: str) -> None:
    check_rewrites(PASS, *REWRITTEN[case])


def test_an_inner_dimension_of_none_leaves_a_batch_uncleared() -> None:
    """What the condition is for: should ONNX Runtime clear all of it one day, the condition can go."""
    text = model("B,3,K", "B,4,K", "B,3,4", fused("transB = 1"))
    ones = np.ones((4096, 3, 4), np.float32)
    session = ort.InferenceSession(to_bytes(parse(text)), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name in "ab":
        empty = np.zeros((4096, 3 if name == "a" else 4, 0), np.float32)
        binding.bind_cpu_input(name, empty)
    value = ort.OrtValue.ortvalue_from_numpy(ones)
    binding.bind_ortvalue_output("y", value)
    session.run_with_iobinding(binding)
    result = value.numpy()
    assert not result[0].any()
    assert result[1:].all()


LAYOUTS = [
    (rank, flags)
    for rank in (2, 3, 4)
    for flags in itertools.product((0, 1), repeat=4)
    if rank > 2 or not flags[2] + flags[3]
]


@pytest.mark.parametrize(("rank", "flags"), LAYOUTS)
def test_each_order_of_axes(rank: int, flags: tuple[int, int, int, int]) -> None:
    """The orders that the pass believes in are those of the kernel."""
    batch = (2, 3)[: rank - 2]
    names = ("transA", "transB", "transBatchA", "transBatchB")
    text = ", ".join(f"{name} = {flag}" for name, flag in zip(names, flags, strict=True))
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((*batch, *size)).astype(np.float32) for size in ((4, 5), (5, 6)))
    stored = []
    for matrices, turned, moved in ((left, flags[0], flags[2]), (right, flags[1], flags[3])):
        moves = np.swapaxes(matrices, -1, -2) if turned else matrices
        stored.append(np.ascontiguousarray(np.moveaxis(moves, -2, 0) if moved else moves))
    shapes = [",".join(map(str, each.shape)) for each in stored]
    result = ",".join(map(str, (*batch, 4, 6)))
    session = ort.InferenceSession(
        to_bytes(parse(model(*shapes, result, fused(text)))), providers=["CPUExecutionProvider"]
    )
    (product,) = session.run(None, dict(zip("ab", stored, strict=True)))
    np.testing.assert_allclose(product, left @ right, rtol=1e-4, atol=1e-5)
