"""When two constants are the same; tests/all_passes/test_semantics.py asks the passes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.semantics import same_constant, strings_of


def strings(*texts: bytes) -> ir.StringTensor:
    return ir.StringTensor(list(texts), shape=ir.Shape([len(texts)]))


def test_strings_are_read_to_their_last_byte() -> None:
    read = strings_of(strings(b"a\0\0", b"", b"\xff"))
    assert (read.shape, read.tolist()) == ((3,), [b"a\0\0", b"", b"\xff"])
    assert strings_of(ir.StringTensor(np.array([["a", "é"]], object), shape=ir.Shape([1, 2]))).tolist() == [
        [b"a", "é".encode()]
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (strings(b"a"), strings(b"a\0")),
        (ir.tensor(np.float32([0.0])), ir.tensor(np.float32([-0.0]))),
        (ir.tensor(np.uint32([0x7FC00001]).view("f4")), ir.tensor(np.uint32([0x7FC00002]).view("f4"))),
        (ir.tensor(np.float32([0.0])), ir.tensor(np.int32([0]))),
        (ir.tensor(np.float32([1.0])), ir.tensor(np.float32(1.0))),
        (ir.tensor(np.zeros((0, 2), np.float32)), ir.tensor(np.zeros((2, 0), np.float32))),
    ],
)
def test_constants_are_the_same_only_bit_for_bit(one: ir.TensorProtocol, other: ir.TensorProtocol) -> None:
    assert not same_constant(one, other)
    assert same_constant(one, one)
    assert same_constant(other, ir.from_proto(ir.to_proto(other)))
