"""Ops that transposes pass let them pass at every opset; tests/passes/examples/transpose_optimizer.txt has all ops."""

from __future__ import annotations

import pytest

from ortopt.testing import check_rewrites
from tests.passes import example_files

PASS = "transpose_optimizer"
EXAMPLES = {example.title.removeprefix("passes / "): example.model for example in example_files.read(PASS)}


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18])
@pytest.mark.parametrize("name", ["unary", "itself", "scalar", "channel", "row", "full", "sum", "prelu"])
def test_passes_at_every_opset(name: str, opset: int) -> None:
    before_broadcasting = " before operands broadcast" if name == "sum" and opset < 8 else ""
    check_rewrites(PASS, EXAMPLES[name + before_broadcasting], ops={"Transpose": 0}, opset=opset)
