"""A fixed batch made symbolic: numbers of the original run row by row, what holds the old size, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

import ortopt
from ortopt.cli.group import commands
from ortopt.errors import InvalidModelError, UsageError, VerificationError
from ortopt.interface import batch_places
from ortopt.serialization.save import save
from ortopt.testing import parse
from ortopt.verification.verify import outputs_of

pytestmark = pytest.mark.usefixtures("models_run_here")

Arrays = dict[str, Any]


def numbers(count: int, step: int = 7) -> str:
    return ",".join(str((i * step % 13 - 6) / 8) for i in range(count))


TRANSFORMER = f"""main (float[1,3,8,8] pixels) => (float[1,5] scores, float[1,17,4] states) {{
    w = Constant <value = float[4,3,2,2] {{{numbers(48)}}}> ()
    class = Constant <value = float[1,1,4] {{1,2,3,4}}> ()
    positions = Constant <value = float[1,17,4] {{{numbers(68)}}}> ()
    head = Constant <value = float[4,5] {{{numbers(20)}}}> ()
    to_rows = Constant <value = int64[3] {{1,4,-1}}> ()
    to_heads = Constant <value = int64[4] {{1,17,2,2}}> ()
    from_heads = Constant <value = int64[3] {{1,17,4}}> ()
    zero = Constant <value = int64 {{0}}> ()
    patches = Conv <strides = [2,2]> (pixels, w)
    rows = Reshape (patches, to_rows)
    tokens = Transpose <perm = [0,2,1]> (rows)
    all = Concat <axis = 1> (class, tokens)
    x = Add (all, positions)
    heads = Reshape (x, to_heads)
    q = Transpose <perm = [0,2,1,3]> (heads)
    k = Transpose <perm = [0,2,3,1]> (heads)
    products = MatMul (q, k)
    weights = Softmax <axis = -1> (products)
    mixed = MatMul (weights, q)
    back = Transpose <perm = [0,2,1,3]> (mixed)
    states = Reshape (back, from_heads)
    first = Gather <axis = 1> (states, zero)
    scores = Gemm (first, head)
}}"""

EQUAL_ROWS = """main (float[2,3] x, float[2,3] unused) => (float[2,4] y, float[2,3] z) {
    c = Constant <value = float[2,1] {5,5}> ()
    a = Constant <value = float[2,3] {1,2,3,1,2,3}> ()
    y = Concat <axis = 1> (x, c)
    u = Relu (unused)
    s = Add (x, a)
    z = Mul (s, u)
}"""

RECURRENT = f"""main (float[2,5,3] x) => (float[2,5,4] y, float[1,2,4] last) {{
    w = Constant <value = float[1,16,3] {{{numbers(48)}}}> ()
    r = Constant <value = float[1,16,4] {{{numbers(64, 5)}}}> ()
    shape = Constant <value = int64[3] {{1,2,4}}> ()
    h = ConstantOfShape (shape)
    c = Constant <value = float[1,2,4] {{1,2,3,4,1,2,3,4}}> ()
    steps = Transpose <perm = [1,0,2]> (x)
    all, last, memory = LSTM <hidden_size = 4> (steps, w, r, , , hh, c)
    one = Constant <value = int64[1] {{1}}> ()
    squeezed = Squeeze (all, one)
    y = Transpose <perm = [1,0,2]> (squeezed)
}}""".replace("h = ConstantOfShape (shape)", "hh = Constant <value = float[1,2,4] {0,0,0,0,0,0,0,0}> ()")

RESIZED = """main (float[4,2,3,3] x) => (float[4,2,6,6] y, float[4,18] flat, float[8,9] merged) {
    sizes = Constant <value = int64[4] {4,2,6,6}> ()
    y = Resize <mode = "nearest"> (x, , , sizes)
    pads = Constant <value = int64[8] {0,0,0,0,0,0,0,0}> ()
    p = Pad (x, pads)
    s = Constant <value = int64[2] {4,18}> ()
    flat = Reshape (p, s)
    m = Constant <value = int64[2] {8,9}> ()
    merged = Reshape (p, m)
}"""

MODELS = {"a transformer": TRANSFORMER, "equal rows": EQUAL_ROWS, "recurrent": RECURRENT, "sizes of images": RESIZED}
AXES = {"last": 1}
"""The axes of outputs whose batch is not the first."""


def feeds(model: ir.Model, rows: int) -> Arrays:
    rng = np.random.default_rng(3)
    return {
        value.name or "": rng.normal(size=(rows, *map(int, value.shape.dims[1:]))).astype(np.float32)  # type: ignore
        for value in model.graph.inputs
    }


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("name", MODELS)
def test_any_number_of_rows_gives_what_the_original_gives_for_parts(name: str, level: int) -> None:
    original = parse(MODELS[name])
    result = ortopt.optimize(original, dynamic_batch="rows", level=level)
    assert result.verified
    assert all(value.shape is not None and value.shape[0] == "rows" for value in result.model.graph.inputs)
    size = int(original.graph.inputs[0].shape[0])  # type: ignore
    for parts in (1, 3):
        given = feeds(original, parts * size)
        got = outputs_of(result.model, given)
        runs = [
            outputs_of(original, {key: array[i * size : (i + 1) * size] for key, array in given.items()})
            for i in range(parts)
        ]
        for output, array in got.items():
            expected = np.concatenate([run[output] for run in runs], AXES.get(output, 0))
            np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-4)


def test_outputs_declare_the_batch_where_it_is_all_of_an_axis() -> None:
    def declared(text: str) -> dict[str, list[Any]]:
        outputs = ortopt.optimize(parse(text), dynamic_batch="rows", verify=False).model.graph.outputs
        return {v.name or "": [d if isinstance(d, int) else d.value for d in v.shape or ()] for v in outputs}

    assert declared(RESIZED) == {"y": ["rows", 2, 6, 6], "flat": ["rows", 18], "merged": [None, 9]}
    assert declared(RECURRENT) == {"y": ["rows", 5, 4], "last": [1, "rows", 4]}


def test_what_does_not_depend_on_it_is_given_once() -> None:
    text = """main (float[2,3] x, float[3,3] m) => (float[2,3] y, float[3,3] z) { y = MatMul (x, m) z = Relu (m) }"""
    result = ortopt.optimize(parse(text), dynamic_batch="rows")
    assert result.verified
    assert [len(value.shape or ()) and value.shape[0] for value in result.model.graph.outputs] == ["rows", 3]  # type: ignore


def test_together_with_other_changes_and_sizes(tmp_path: Path) -> None:
    save(parse(TRANSFORMER), tmp_path / "model.onnx")
    image = "pixels=nhwc,uint8,scale=1/255"
    flags = ["--dynamic-batch", "N", "--image-input", image, "--drop-outputs", "states", "--dim-hint", "N=1..8"]
    out = tmp_path / "out.onnx"
    done = CliRunner().invoke(commands, ["optimize", str(tmp_path / "model.onnx"), str(out), *flags, "-v"])
    assert done.exit_code == 0, done.output
    assert "interface: input 'pixels' is UINT8 [N, 8, 8, 3], was FLOAT [1, 3, 8, 8]" in done.output
    assert "interface: output 'scores' is FLOAT [N, 5], was FLOAT [1, 5]" in done.output
    pixels = np.random.default_rng(1).integers(0, 256, (3, 8, 8, 3)).astype(np.uint8)
    floats = (pixels / 255).astype(np.float32).transpose(0, 3, 1, 2)
    expected = [outputs_of(parse(TRANSFORMER), {"pixels": floats[i : i + 1]})["scores"] for i in range(3)]
    np.testing.assert_allclose(
        outputs_of(out, {"pixels": pixels})["scores"], np.concatenate(expected), rtol=1e-4, atol=1e-4
    )


def test_a_size_of_its_own_again() -> None:
    result = ortopt.optimize(parse(TRANSFORMER), dynamic_batch="N", dims="N=3")
    assert result.verified
    assert list(result.model.graph.inputs[0].shape or ()) == [3, 3, 8, 8]


def test_a_wrong_proof_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(batch_places._RULES, "Softmax", lambda places, node: 0)
    text = "main (float[2,3] x) => (float[2,3] y) { y = Softmax <axis = 0> (x) }"
    with pytest.raises(VerificationError, match="with other inputs and outputs, the model differs"):
        ortopt.optimize(parse(text), dynamic_batch="N")


ONE = "main (float[2,3] x) => (float[A,B] y) "
BODIES = {
    "a mean over it": ("{ y = ReduceMean <axes = [0]> (x) }", "ReduceMean 'y': it makes one row of the batch"),
    "normalized over it": ("{ y = Softmax <axis = 0> (x) }", "Softmax 'y': it goes along the batch"),
    "rows beside it": ("{ y = Concat <axis = 0> (x, x) }", "it puts something beside the rows of the batch"),
    "a row of it": ("{ i = Constant <value = int64[1] {1}> () y = Gather (x, i) }", "it takes some rows of the batch"),
    "a part of it": (
        """{ a = Constant <value = int64[1] {0}> () b = Constant <value = int64[1] {1}> () y = Slice (x, a, b, a) }""",
        "it takes some rows of the batch",
    ),
    "turned and mixed": (
        "{ t = Transpose (x) s = Constant <value = int64[2] {2,3}> () y = Reshape (t, s) }",
        "it mixes the batch with other axes",
    ),
    "a constant for each row": (
        "{ c = Constant <value = float[2,1] {1,2}> () y = Add (x, c) }",
        "a constant has a row of its own for each of the batch",
    ),
    "multiplied with itself": ("{ t = Transpose (x) y = MatMul (t, x) }", "it adds up over the batch"),
    "all pairs": ("{ t = Transpose (x) y = MatMul (x, t) }", "it has the batch along several axes"),
    "an op of another domain": ("{ y = com.microsoft.Gelu (x) }", "it is not known to treat the rows"),
    "indices of what is not 0": ("{ y = NonZero (x) }", "it is not known to treat the rows"),
    "repeated": ("{ r = Constant <value = int64[2] {2,1}> () y = Tile (x, r) }", "it repeats the batch"),
}


@pytest.mark.parametrize("case", BODIES)
def test_kept(case: str) -> None:
    body, reason = BODIES[case]
    head = ONE.replace("float[A,B] y", "int64[A,B] y") if "NonZero" in body else ONE
    text = f'<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]> {head}{body}'
    with pytest.raises(InvalidModelError) as refused:
        ortopt.optimize(parse(text) if not text.startswith("<") else ir.from_onnx_text(text), dynamic_batch="N")
    assert str(refused.value).startswith("the batch cannot be of any size: ")
    assert reason in str(refused.value)
    assert str(refused.value).endswith("[condition]")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "main (float[N,3] x) => (float[N,3] y) { y = Relu (x) }",
            {},
            "no input has a first dimension of a fixed",
        ),
        ("main (float[2,N] x) => (float[2,N] y) { y = Relu (x) }", {}, "a dimension is named 'N' already"),
        (
            "main (float[2,3] x) => (float[2,3] y) { y = Relu (x) }",
            {"input_shapes": "x=4,3"},
            "dynamic_batch needs the sizes of the file",
        ),
    ],
    ids=["symbolic already", "a name that is taken", "another size as well"],
)
def test_usage(text: str, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ortopt.optimize(parse(text), dynamic_batch="N", **options)
