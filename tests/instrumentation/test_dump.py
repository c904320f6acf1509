"""A chain of files: what one transformer leaves is what the next one finds."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from ortopt.api import optimize
from ortopt.errors import OutputError
from ortopt.instrumentation.dump import START, Dump
from ortopt.testing import parse

TEXT = """main (float[N,4] x) => (float[N,4] y) <float[1] one = {1.0}, float[1] two = {2.0}> {
    i = Identity (x)
    s = Add (one, two)
    t = Cast <to = 1> (i)
    y = Add (t, s)
}"""


def test_the_files_chain(tmp_path: Path) -> None:
    optimize(parse(TEXT), verify=False, observers=[Dump(tmp_path)])
    before = sorted(tmp_path.glob("*.before.onnx"))
    after = sorted(tmp_path.glob("*.after.onnx"))
    assert len(before) == len(after) >= 3
    assert before[0].read_bytes() == (tmp_path / START).read_bytes()
    assert len(onnx.load(after[-1]).graph.node) == 1
    for left, found, its in zip(after, before[1:], after[1:], strict=False):
        same_sweep = left.read_bytes() == its.read_bytes()
        assert same_sweep or found.read_bytes() == left.read_bytes()


def test_a_second_run_writes_over_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        optimize(parse(TEXT), verify=False, observers=[Dump(tmp_path)])
    names = {path.name for path in tmp_path.iterdir()}
    assert START in names
    assert not any(name.endswith(".tmp") for name in names)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot make the folder"):
        Dump(tmp_path / "file" / "below")
