"""Ops that only move values change places with DequantizeLinear before them and with QuantizeLinear behind them."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites

PASS = "qdq_propagation"
ONE = "float s = {0.1}, uint8 z = {3}"
EVERY = {"q": np.arange(256, dtype=np.uint8).reshape(1, 4, 8, 8)}
DEQUANTIZE = "x = DequantizeLinear (q, s, z)"

MOVING = {
    "Transpose": ("Transpose <perm = [0, 2, 3, 1]> ({})", ""),
    "Transpose of all": ("Transpose ({})", ""),
    "Reshape": ("Reshape ({}, k)", ", int64[2] k = {8, -1}"),
    "Reshape that copies": ("Reshape ({}, k)", ", int64[3] k = {0, 0, -1}"),
    "Flatten": ("Flatten <axis = 2> ({})", ""),
    "Squeeze": ("Squeeze ({}, k)", ", int64[1] k = {0}"),
    "Unsqueeze": ("Unsqueeze ({}, k)", ", int64[2] k = {0, -1}"),
    "DepthToSpace": ("DepthToSpace <blocksize = 2> ({})", ""),
    "ReverseSequence": ("ReverseSequence <batch_axis = 0, time_axis = 1> ({}, k)", ", int64[1] k = {3}"),
}
SELECTING = {
    "Slice": ("Slice ({}, k, l, m)", ", int64[1] k = {1}, int64[1] l = {6}, int64[1] m = {2}"),
    "Gather": ("Gather <axis = 1> ({}, k)", ", int64[2,2] k = {3, -4, 0, 1}"),
    "GatherElements": ("GatherElements <axis = 3> ({}, k)", ", int64[1,1,1,2] k = {3, -4}"),
    "GatherND": ("GatherND ({}, k)", ", int64[2,2] k = {0, 3, 0, 1}"),
    "Compress": ("Compress <axis = 1> ({}, k)", ", bool[4] k = {1, 0, 1, 1}"),
    "MaxPool": ("MaxPool <kernel_shape = [2, 3]> ({})", ""),
    "MaxPool with strides": ("MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> ({})", ""),
    "MaxPool of VALID": ('MaxPool <kernel_shape = [3, 3], auto_pad = "VALID"> ({})', ""),
}


@pytest.mark.parametrize("name", [*MOVING, *SELECTING])
def test_behind_dequantizing(name: str) -> None:
    op, constants = (MOVING | SELECTING)[name]
    dims = ",".join("ABCDEF"[: {"Flatten": 2, "Reshape": 2, "Reshape that copies": 3, "Squeeze": 3, "Unsqueeze": 6,
                                "Gather": 5, "GatherND": 3}.get(name, 4)])  # fmt: skip
    check_rewrites(
        PASS,
        f"main (uint8[1,4,8,8] q) => (float[{dims}] y) <{ONE}{constants}> {{ {DEQUANTIZE} y = {op.format('x')} }}",
        after=f"t = {op.format('q')} y = DequantizeLinear (t, s, z)",
        inputs=EVERY,
    )
