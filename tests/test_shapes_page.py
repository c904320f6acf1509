"""The commands and the Python of docs/shapes.md work as they stand there, on a model with such names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

from ortopt.cli.group import commands
from ortopt.serialization.save import save
from ortopt.testing import parse

pytestmark = pytest.mark.usefixtures("models_run_here")

PAGE = (Path(__file__).parents[1] / "docs" / "shapes.md").read_text(encoding="utf-8")
MODEL = """
main (float[batch,3,224,224] pixel_values, float[batch,seq] mask) => (float[a,b] scores) {
    pooled = GlobalAveragePool (pixel_values)
    shape = Constant <value = int64[2] {0, 3}> ()
    hidden = Reshape (pooled, shape)
    sum = ReduceMax <axes = [1], keepdims = 1> (mask)
    scores = Add (hidden, sum)
}"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(parse(MODEL), "model.onnx")
    save(parse("main (float[unk__570,3] x, float[unk__572,3] mask) => (float[N,3] y) { y = Mul (x, mask) }"), "tf.onnx")
    save(parse("main (float[1,3] x) => (float[1,3] y) { y = Relu (x) }"), "fixed.onnx")
    save(
        parse("""main (int64[batch,seq] ids) => (float[batch,seq,2] logits, float[batch,seq,2] present_key)
            <float[3,2] w = {1,2,3,4,5,6}> { present_key = Gather (w, ids) logits = Relu (present_key) }"""),
        "decoder_model.onnx",
    )
    save(
        parse("""main (int64[batch,1] ids, float[batch,past,2] past_key_values_key) =>
            (float[batch,1,2] logits, float[batch,total,2] present_key) <float[3,2] w = {1,2,3,4,5,6}> {
            key = Gather (w, ids) present_key = Concat <axis = 1> (past_key_values_key, key) logits = Relu (key) }"""),
        "decoder_with_past_model.onnx",
    )


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


LINES = [line[len("$ ortopt ") :] for block in blocks("console") for line in block.splitlines()]


@pytest.mark.parametrize("line", LINES)
def test_a_command_runs(line: str) -> None:
    done = CliRunner().invoke(commands, shlex.split(line))
    assert done.exit_code == 0, done.output


def test_the_python_runs() -> None:
    for block in blocks("python"):
        exec(block, {})
    assert Path("part.onnx").is_file()


def test_the_message_is_the_one_that_is_shown() -> None:
    model = parse(
        """main (float[N,3,224,224] pixel_values, float[1,197,192] p) => (float[N,197,192] y) {
            k = Constant <value = float[1,3,1,1] {1,2,3}> ()
            t = Conv <strides = [16, 16]> (pixel_values, k)
            shape = Constant <value = int64[3] {0, -1, 1}> ()
            flat = Reshape (t, shape)
            tiles = Constant <value = int64[3] {1, 1, 192}> ()
            wide = Tile (flat, tiles)
            first = Constant <value_ints = [0]> ()
            one = Constant <value_ints = [1]> ()
            axis = Constant <value_ints = [1]> ()
            extra = Slice (wide, first, one, axis)
            all = Concat <axis = 1> (extra, wide)
            y = Add (all, p)
        }"""
    )
    graph = model.graph
    weights = graph.inputs.pop()
    weights.name = "position_embeddings"
    weights.const_value = ir.tensor(np.ones((1, 197, 192), np.float32), name="position_embeddings")
    graph.register_initializer(weights)
    graph[-1].name = "/vit/embeddings/Add"
    save(model, "vit.onnx")
    arguments = ["optimize", "vit.onnx", "--input-shape", "pixel_values=1,3,320,320"]
    done = CliRunner().invoke(commands, arguments)
    assert done.exit_code == 2
    (shown,) = [block for block in blocks("text") if block.startswith("ortopt: ")]
    assert done.stderr.split() == shown.split()
