"""A Fourier transform of a fixed length is a product."""

from __future__ import annotations

from ortopt.testing import check_rewrites

PASS = "dft_matmul_conversion"


def test_layers_share_a_matrix() -> None:
    text = """main (float[B,6,2] x) => (float[B,6,2] y) {
        a = DFT <axis = 1> (x) b = Abs (a) y = DFT <axis = 1> (b) }"""
    after = check_rewrites(PASS, text, ops={"DFT": 0, "MatMul": 2}, opset=17)
    matrices = {node.inputs[1] for node in after.graph if node.op_type == "MatMul"}
    assert len(matrices) == 1
