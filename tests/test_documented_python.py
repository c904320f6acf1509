"""The Python blocks of the cookbook, and of the pages for users of other tools, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ortopt.serialization.save import save
from ortopt.testing import parse

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / "cookbook.md", *sorted((DOCS / "coming_from").glob("*.md"))]
MODEL = "main (float[batch,8] x) => (float[batch,8] y) { a = Identity (x) y = Relu (a) }"
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
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "block", "exec"), {"__name__": "block"})
