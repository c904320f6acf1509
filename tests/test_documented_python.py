"""The Python blocks of the cookbook, and of the pages about other tools, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ortopt.serialization.save import save
from ortopt.testing import parse

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / "cookbook.md", DOCS / "integrations.md", *sorted((DOCS / "coming_from").glob("*.md"))]
MODEL = "main (float[batch,8] x) => (float[batch,8] y) { a = Identity (x) y = Relu (a) }"
DECODER = """main (int64[batch,seq] input_ids, int64[batch,total] attention_mask, float[batch,2,past,4] past_key)
    => (float[batch,seq,5] logits, float[batch,2,total,4] present_key)
    <int64[4] split = {0, 0, 2, 4}, int64[2] parts = {2, 8}, int64 five = {5}, float[2] values = {0, 1}> {
        hot = OneHot (input_ids, five, values)
        logits = Softmax (hot)
        eight = Concat <axis = 2> (logits, logits)
        rest, front = Split <axis = 2> (eight, parts)
        apart = Reshape (front, split)
        new = Transpose <perm = [0, 2, 1, 3]> (apart)
        present_key = Concat <axis = 2> (past_key, new)
    }"""
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    )
]


@pytest.mark.filterwarnings("default")  # of onnxruntime.quantization
@pytest.mark.parametrize("block", BLOCKS)
def test_it_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(parse(MODEL), tmp_path / "model.onnx")
    save(parse(DECODER), tmp_path / "decoder.onnx")
    (tmp_path / "bert_onnx").mkdir()
    save(parse(MODEL), tmp_path / "bert_onnx" / "model.onnx")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "block", "exec"), {"__name__": "block"})
