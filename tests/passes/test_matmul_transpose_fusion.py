"""A product reads its matrices transposed, as far as ONNX Runtime's kernel can, and gives the same."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime as ort
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import parse


def model(a: str, b: str, result: str, nodes: str, dtype: str = "float", more: str = "") -> str:
    return f"main ({dtype}[{a}] a, {dtype}[{b}] b) => ({dtype}[{result}] y{more}) {{ {nodes} }}"


def fused(flags: str, operands: str = "a, b") -> str:
    return f"y = com.microsoft.FusedMatMul <{flags}> ({operands})"


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
