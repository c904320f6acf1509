"""Signed weights become unsigned where the processor saturates sums of products, and nowhere else."""

from collections.abc import Iterator

import numpy as np
import pytest

from ortopt.options import Fusions, March, Options
from ortopt.system import processor
from ortopt.testing import check_keeps, check_rewrites
from tests.processors import pretended

PASS = "unsigned_weight_conversion"
NATIVE = Options(march=March.NATIVE, fusions=Fusions.ALL)
MS = "com.microsoft"
HEAD = f'<ir_version: 8, opset_import: ["" : 17, "{MS}" : 1]>'
MATRIX = "int8[4,2] w = {-128, 127, 65, -64, 5, 0, -1, 100}"
SCALES = "float s = {0.1}, uint8 z = {3}, int8 o = {-2}"

MODELS = {
    "QLinearConv": """main (uint8[1,1,3,3] x) => (uint8[1,2,2,2] y)
        <int8[2,1,2,2] w = {-128, 127, 65, -64, 5, 0, -1, 100}, float s = {0.1}, uint8 z = {3}, int8 o = {0}> {
        y = QLinearConv (x, s, z, w, s, o, s, z) }""",
    "QLinearMatMul": f"""main (uint8[3,4] x) => (uint8[3,2] y) <{MATRIX}, {SCALES}> {{
        y = QLinearMatMul (x, s, z, w, s, o, s, z) }}""",
    "MatMulInteger": f"""main (uint8[3,4] x) => (int32[3,2] y) <{MATRIX}, uint8 z = {{3}}> {{
        y = MatMulInteger (x, w, z) }}""",
    "MatMulIntegerToFloat": f"""main (uint8[3,4] x) => (float[3,2] y) <{MATRIX}, {SCALES}> {{
        y = {MS}.MatMulIntegerToFloat (x, w, s, s, z, o) }}""",
    "DynamicQuantizeMatMul": f"""main (float[3,4] x) => (float[3,2] y) <{MATRIX}, float s = {{0.1}}> {{
        y = {MS}.DynamicQuantizeMatMul (x, w, s) }}""",
    "QGemm": f"""main (uint8[3,4] x) => (float[3,2] y) <{MATRIX}, {SCALES}> {{
        y = {MS}.QGemm (x, s, z, w, s, o) }}""",
}


@pytest.fixture
def saturating() -> Iterator[None]:
    with pretended():
        yield


@pytest.mark.usefixtures("saturating")
@pytest.mark.parametrize("name", MODELS)
def test_kernels(name: str) -> None:
    result = check_rewrites(PASS, HEAD + MODELS[name], options=NATIVE)
    (node,) = result.graph
    weights = [value for value in node.inputs if value is not None and value.name and value.is_initializer()]
    assert not any(value.dtype is not None and value.dtype.name == "INT8" for value in weights)


@pytest.mark.parametrize("more", ["avx_vnni", "avx512_vnni"])
def test_keeps_where_the_processor_is_exact(monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    monkeypatch.setattr(processor, "features", lambda: frozenset({"avx2", more}))
    check_keeps(PASS, HEAD + MODELS["QGemm"], "without saturation", options=NATIVE)


def test_numbers_stay(saturating: None) -> None:
    feeds = {"x": np.arange(12, dtype=np.uint8).reshape(3, 4) * 20}
    check_rewrites(PASS, HEAD + MODELS["MatMulInteger"], options=NATIVE, inputs=feeds)
