"""Attention as exporters spell it: one node, whatever the reshapes, transposes and products."""

from pathlib import Path

import onnx_ir as ir
import pytest

from ortopt.graph.match import Refusal
from ortopt.patterns.attention.contraction import contraction
from tests.passes import example_files

PASS = "attention_fusion"
EXAMPLES = example_files.read_file(Path(__file__).with_name("attention_spellings.txt"))


def test_a_product_that_transposes_the_batch() -> None:
    operands = [ir.Value(name=name, shape=ir.Shape((2, 2, 4, 4))) for name in "qk"]
    node = ir.node("FusedMatMul", operands, {"transBatchB": 1}, domain="com.microsoft")
    with pytest.raises(Refusal, match="the batch is transposed"):
        contraction(node)


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.title for example in EXAMPLES])
def test_examples(example: example_files.Example) -> None:
    example.check(PASS)
