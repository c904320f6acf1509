"""Products of which ONNX Runtime rounds the first operand to 8 bits: what is said of them is what it does at load."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from ortopt.analysis import releases, weight_rounding
from ortopt.graph import scope
from ortopt.graph.match import is_op
from ortopt.options import Options
from ortopt.testing import parse
from tests.releases import since

WEIGHT = "[32,16] w = {" + ", ".join(str(number % 7) for number in range(512)) + "}, float s = {0.1}"
BLOCKS = WEIGHT.replace("float s = {0.1}", "float[2,16] s = {" + ", ".join(["0.1"] * 32) + "}")
X = "(float[2,32] x) => (float[A,B] y)"
DIRECT = "{ d = DequantizeLinear (w, s, z) y = MatMul (x, d) }"
TURNED = "{ d = DequantizeLinear (w, s, z) t = Transpose (d) y = MatMul (x, t) }"

MODELS = {
    "direct": (17, f"{X} <uint8{WEIGHT}, uint8 z = {{3}}> {DIRECT}", True),
    "Gemm": (17, f"{X} <uint8{WEIGHT}, uint8 z = {{3}}> {DIRECT.replace('MatMul', 'Gemm')}", True),
    "blocks": (21, f"{X} <uint8{BLOCKS}> {DIRECT.replace('(w, s, z)', '<axis = 0, block_size = 16> (w, s)')}", True),
    "16 bits": (21, f"{X} <uint16{WEIGHT}, uint16 z = {{3}}> {DIRECT}", False),
    "a weight that is given": (17, f"(uint8[32,16] w, {X[1:]} <float s = {{0.1}}, uint8 z = {{3}}> {DIRECT}", False),
    "both are dequantized": (
        17,
        f"(uint8[2,32] q) => (float[A,B] y) <uint8{WEIGHT}, uint8 z = {{3}}> {{ x = DequantizeLinear (q, s, z)"
        f" {DIRECT[2:]}",
        False,
    ),
    "turned, with a zero point": (17, f"{X} <int8{WEIGHT}, int8 z = {{3}}> {TURNED}", True),
    "turned, without one": (17, f"{X} <int8{WEIGHT}> {TURNED.replace(', z', '')}", False),
    "turned, without one, unsigned": (17, f"{X} <uint8{WEIGHT}> {TURNED.replace(', z', '')}", True),
    "turned, without one, opset 21": (21, f"{X} <int8{WEIGHT}> {TURNED.replace(', z', '')}", True),
    "turned by the Gemm": (
        17,
        f"{X} <uint8{WEIGHT}, uint8 z = {{3}}> {DIRECT.replace('MatMul', 'Gemm <transB = 1>')}",
        False,
    ),
    "reshaped": (
        17,
        f"{X} <uint8{WEIGHT}, uint8 z = {{3}}, int64[2] k = {{32, 16}}>"
        f" {TURNED.replace('Transpose (d)', 'Reshape (d, k)')}",
        False,
    ),
}


def model(name: str) -> ir.Model:
    opset, text, _ = MODELS[name]
    shape = "[16,32]" if "turned," in name or "turned by" in name else "[1,32,16]" if name == "reshaped" else "[32,16]"
    return parse(f"main {text}".replace("[32,16] w", f"{shape} w"), opset)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_rounded(name: str) -> None:
    given = model(name)
    scope.attach(given, Options())
    said = MODELS[name][2]
    assert weight_rounding.any_is_rounded(given.graph) == said
    assert weight_rounding.any_is_rounded([node for node in given.graph if is_op(node, "MatMul", "Gemm")]) == said
    assert weight_rounding.any_is_rounded(given.graph[-2:-1]) == said, "by who reads it"


@since(1, 28, "MatMulNBits in place of weights of 8 bits, turned ones too")
@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime_does_so(name: str, tmp_path: Path) -> None:
    given = model(name)
    given.ir_version = releases.needed_ir_version(given)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    ort.InferenceSession(ir.to_proto(given).SerializeToString(), options, ["CPUExecutionProvider"])
    loaded = onnx.load(options.optimized_model_filepath).graph
    assert any(node.op_type == "MatMulNBits" for node in loaded.node) == MODELS[name][2]
