"""Other inputs and outputs on request: what becomes of the model, numbers against the original's own, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

import ortopt
from ortopt.cli.group import commands
from ortopt.errors import UsageError, VerificationError
from ortopt.interface.changes import Int32Inputs
from ortopt.serialization.save import save
from ortopt.testing import parse
from ortopt.verification.verify import outputs_of

pytestmark = pytest.mark.usefixtures("models_run_here")

Arrays = dict[str, Any]

WEIGHTS = ",".join(str((i * 5 % 13 - 6) / 8) for i in range(4 * 3 * 3 * 3))
TABLE = ",".join(str(i / 4) for i in range(7 * 5))

MODEL = f"""
main (float[N,3,8,8] pixels, int64[N,S] ids) => (float[N,4,A,B] image, float[N,S,5] words, float[N,4,A,B] more) {{
    w = Constant <value = float[4,3,3,3] {{{WEIGHTS}}}> ()
    table = Constant <value = float[7,5] {{{TABLE}}}> ()
    m = Conv <pads = [PADS]> (pixels, w)
    image = Relu (m)
    words = Gather (table, ids)
    more = Sigmoid (m)
}}"""

SCALE, MEAN, STD = 1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGE = "pixels=nhwc,uint8,scale=1/255,mean=0.485:0.456:0.406,std=0.229:0.224:0.225"


def model(pads: str = "0,0,0,0") -> ir.Model:
    return parse(MODEL.replace("PADS", pads))


def ops_of(result: ortopt.OptimizeResult) -> list[str]:
    return sorted(node.op_type for node in result.model.graph)


def declared(result: ortopt.OptimizeResult) -> dict[str, tuple[str, list[Any]]]:
    graph = result.model.graph
    return {
        value.name or "": (str(value.type), [dim if isinstance(dim, int) else dim.value for dim in value.shape or ()])
        for value in (*graph.inputs, *graph.outputs)
    }


def same(got: Arrays, expected: Arrays) -> None:
    for name, array in got.items():
        np.testing.assert_allclose(array, expected[name], rtol=2e-4, atol=2e-4)


PIXELS = np.random.default_rng(1).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
IDS = np.array([[0, 6, -7], [3, 2, 1]], np.int64)


def normalized(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a caller computes for the original."""
    floats = (pixels.astype(np.float64) * SCALE - np.array(MEAN)) / np.array(STD)
    return floats.transpose(0, 3, 1, 2).astype(np.float32)


# -- outputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize(
    "wanted", [{"drop_outputs": ["words", "mo*"]}, {"keep_outputs": ["image"]}], ids=["dropped", "kept"]
)
def test_outputs_go_with_what_serves_only_them(level: int, wanted: Any) -> None:
    result = ortopt.optimize(model(), level=level, **wanted)
    assert result.verified
    assert list(declared(result)) == ["pixels", "ids", "image"], "callers give what they gave"
    assert not {"Gather", "Sigmoid"} & set(ops_of(result))
    assert sum(value.const_value.size for value in result.model.graph.initializers.values() if value.const_value) <= 108
    feeds = {"pixels": normalized(PIXELS), "ids": IDS}
    same(outputs_of(result.model, feeds), outputs_of(model(), feeds))


def test_a_pattern_that_keeps_and_one_that_drops() -> None:
    result = ortopt.optimize(model(), keep_outputs=["*o*"], drop_outputs=["more"])
    assert [value.name for value in result.model.graph.outputs] == ["words"]


def test_the_sizes_before_are_those_of_the_file() -> None:
    assert ortopt.optimize(model(), drop_outputs=["words"], verify=False).summary.before.nodes == 6


# -- int64 to int32 ---------------------------------------------------------------------------------------------------


def test_indices_are_read_as_int32() -> None:
    result = ortopt.optimize(model(), int32_inputs=True)
    assert result.verified
    assert declared(result)["ids"] == ("INT32", ["N", "S"])
    assert "Cast" not in ops_of(result)
    feeds = {"pixels": normalized(PIXELS), "ids": IDS}
    same(outputs_of(result.model, feeds | {"ids": IDS.astype(np.int32)}), outputs_of(model(), feeds))


def test_branches_read_it_too() -> None:
    text = """main (int64[N] x, bool c) => (int64[N] y) {
        y = If (c) <
            then_branch = one () => (int64[N] t) { t = Neg (x) },
            else_branch = two () => (int64[N] e) { e = Identity (x) }
        >
    }"""
    result = ortopt.optimize(parse(text), int32_inputs=True)
    assert result.verified
    for condition in (False, True):
        feeds = {"x": np.array([1, -2]), "c": np.array(condition)}
        got = outputs_of(result.model, feeds | {"x": np.array([1, -2], np.int32)})["y"]
        np.testing.assert_array_equal(got, outputs_of(parse(text), feeds)["y"])


def test_inputs_to_verify_with_are_the_originals() -> None:
    feeds = {"pixels": normalized(PIXELS), "ids": IDS}
    assert ortopt.optimize(model(), int32_inputs=True, image_inputs=IMAGE, inputs=feeds).verified
    with pytest.raises(UsageError, match="input 'ids' holds numbers beyond int32"):
        ortopt.optimize(model(), int32_inputs=True, inputs=feeds | {"ids": IDS + (1 << 40)})


# -- images -----------------------------------------------------------------------------------------------------------


def test_normalization_folds_into_a_convolution_that_pads_nothing() -> None:
    result = ortopt.optimize(model(), image_inputs=IMAGE)
    assert result.verified
    assert declared(result)["pixels"] == ("UINT8", ["N", 8, 8, 3])
    assert result.interface[0].left == ("Transpose", "Cast")
    assert not {"BatchNormalization", "Add", "Mul"} & set(ops_of(result))
    same(
        outputs_of(result.model, {"pixels": PIXELS, "ids": IDS}),
        outputs_of(model(), {"pixels": normalized(PIXELS), "ids": IDS}),
    )


def test_before_a_border_of_zeros_the_normalization_stays() -> None:
    result = ortopt.optimize(model("1,1,1,1"), image_inputs=IMAGE)
    assert result.verified
    assert result.interface[0].left == ("Transpose", "Cast", "BatchNormalization")
    same(
        outputs_of(result.model, {"pixels": PIXELS, "ids": IDS}),
        outputs_of(model("1,1,1,1"), {"pixels": normalized(PIXELS), "ids": IDS}),
    )


def test_a_scale_alone_folds_before_a_border_too() -> None:
    result = ortopt.optimize(model("1,1,1,1"), image_inputs={"pixels": {"scale": "1/255"}})
    assert result.verified
    assert result.interface == (), "it is declared as it was"
    assert ops_of(result) == ops_of(ortopt.optimize(model("1,1,1,1")))
    pixels = PIXELS.transpose(0, 3, 1, 2).astype(np.float32)
    same(
        outputs_of(result.model, {"pixels": pixels, "ids": IDS}),
        outputs_of(model("1,1,1,1"), {"pixels": pixels / 255, "ids": IDS}),
    )


# -- together, and with other options ----------------------------------------------------------------------------------


def test_all_together_with_names_and_sizes() -> None:
    result = ortopt.optimize(
        model(),
        image_inputs=IMAGE,
        int32_inputs=True,
        drop_outputs=["more"],
        rename={"pixels": "words", "words": "pixels"},
        dims="N=2",
    )
    assert result.verified
    assert declared(result) == {
        "words": ("UINT8", [2, 8, 8, 3]),
        "ids": ("INT32", [2, "S"]),
        "image": ("FLOAT", [2, 4, 6, 6]),
        "pixels": ("FLOAT", [2, "S", 5]),
    }
    got = outputs_of(result.model, {"words": PIXELS, "ids": IDS.astype(np.int32)})
    expected = outputs_of(model(), {"pixels": normalized(PIXELS), "ids": IDS})
    same({"image": got["image"], "words": got["pixels"]}, expected)


def test_in_16_bits() -> None:
    result = ortopt.optimize(
        model(),
        image_inputs=IMAGE,
        int32_inputs=True,
        drop_outputs=["more"],
        float16=True,
        float16_io=True,
        rename={"image": "words", "words": "image"},
    )
    assert result.verified
    assert {name: type_ for name, (type_, _) in declared(result).items()} == {
        "pixels": "UINT8",
        "ids": "INT32",
        "words": "FLOAT16",
        "image": "FLOAT16",
    }
    got = outputs_of(result.model, {"pixels": PIXELS, "ids": IDS.astype(np.int32)})
    expected = outputs_of(model(), {"pixels": normalized(PIXELS), "ids": IDS})
    np.testing.assert_allclose(got["words"], expected["image"], rtol=0.02, atol=0.02)


def test_another_size_of_an_input_beside() -> None:
    text = "main (float[2,3] x, int64[2] i) => (float[2,3] y, float[2,3] z) { y = Gather (x, i) z = Relu (x) }"
    result = ortopt.optimize(parse(text), int32_inputs=True, drop_outputs=["z"], input_shapes="x=4,3")
    assert result.verified
    assert declared(result)["x"] == ("FLOAT", [4, 3])


def test_a_wrong_adapter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def others(self: Int32Inputs, inputs: Arrays) -> list[Arrays]:
        return [inputs | {"ids": np.zeros_like(inputs["ids"], np.int64)}]

    monkeypatch.setattr(Int32Inputs, "calls", others)
    with pytest.raises(VerificationError, match="with other inputs and outputs, the model differs"):
        ortopt.optimize(model(), int32_inputs=True)


REFUSALS: dict[str, tuple[str, dict[str, Any]]] = {
    "an output that is not there": ("no output is named 'imag'; did you mean 'image'", {"drop_outputs": ["imag"]}),
    "no output is left": ("no output would be left", {"drop_outputs": ["*"]}),
    "a new name for what has gone": (
        "no input or output is named 'more'",
        {"drop_outputs": ["more"], "rename": {"more": "b"}},
    ),
    "an image that is not there": ("no input is named 'x'; the inputs: 'pixels', 'ids'", {"image_inputs": "x=nhwc"}),
    "no image": ("input 'ids' is no tensor of float32", {"image_inputs": "ids=nhwc"}),
    "two channels of three": ("has 3 channels; scale, mean or std has 2 numbers", {"image_inputs": "pixels=mean=1:2"}),
    "numbers of unequal counts": ("one number, or one for each", {"image_inputs": "pixels=mean=1:2,std=1:2:3"}),
    "no number": ("mean takes a number", {"image_inputs": "pixels=mean=a"}),
    "nothing to divide by": ("neither scale nor std may be 0", {"image_inputs": "pixels=std=0"}),
    "an unknown layout": ("takes NAME=nhwc", {"image_inputs": "pixels=nhcw"}),
    "an unknown word": ("takes NAME=nhwc", {"image_inputs": "pixels=nhwc,int8"}),
    "two layouts": ("gives layout twice", {"image_inputs": "pixels=nhwc,nchw"}),
    "an unknown key": ("takes some of layout", {"image_inputs": {"pixels": {"colour": 1}}}),
    "a shape as well": (
        "image_inputs and input_shapes name 'pixels'",
        {"image_inputs": IMAGE, "input_shapes": "pixels=1,3,9,9"},
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused(case: str) -> None:
    message, options = REFUSALS[case]
    with pytest.raises(UsageError) as refused:
        ortopt.optimize(model(), **options)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("main (float[N] x) => (float[N] y) { y = Relu (x) }", "no input is a tensor of int64"),
        ("main (int64[N] x) => (int64[N] y, int64[N] x) { y = Neg (x) }", "input 'x' is an output, too"),
    ],
    ids=["none of int64", "an output, too"],
)
def test_no_int32(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ortopt.optimize(parse(text), int32_inputs=True)


def test_the_command_line_and_the_report(tmp_path: Path) -> None:
    save(model(), tmp_path / "model.onnx")
    flags = ["--image-input", IMAGE, "--int32-inputs", "--drop-outputs", "more", "--rename", "words=vectors"]
    arguments = ["optimize", str(tmp_path / "model.onnx"), str(tmp_path / "out.onnx"), *flags]
    done = CliRunner().invoke(commands, [*arguments, "-v", "--json", str(tmp_path / "report.json")])
    assert done.exit_code == 0, done.output
    lines = [line for line in done.output.splitlines() if line.startswith("interface: ")]
    assert lines == [
        "interface: input 'pixels' is UINT8 [N, 8, 8, 3], was FLOAT [N, 3, 8, 8], goes through Transpose, Cast",
        "interface: input 'ids' is INT32 [N, S], was INT64 [N, S]",
        "interface: output 'words' is called 'vectors'",
        "interface: output 'more' is left out",
    ]
    rows = msgspec.json.decode((tmp_path / "report.json").read_bytes())["interface"]
    assert rows[1] == {
        "kind": "input",
        "before": {"name": "ids", "type": "INT64", "shape": ["N", "S"]},
        "after": {"name": "ids", "type": "INT32", "shape": ["N", "S"]},
        "left": [],
    }
    assert (rows[0]["left"], rows[3]["after"]) == (["Transpose", "Cast"], None)


def test_wrong_flags_are_usage_errors(tmp_path: Path) -> None:
    save(model(), tmp_path / "model.onnx")
    done = CliRunner().invoke(commands, ["optimize", str(tmp_path / "model.onnx"), "--drop-outputs", "nothing"])
    assert done.exit_code == 1
    assert "no output is named 'nothing'" in done.output


# -- names of dimensions ----------------------------------------------------------------------------------------------

MASKED = (
    '<ir_version: 8, opset_import: ["" : 17]> g (float[a,b] x, float[c,d] mask) => (float[a,b] y) {'
    "  s = Shape (x) e = Expand (mask, s) n = Abs (e) y = Mul (x, n) }"
)


def test_dimensions_of_one_name_are_of_one_size() -> None:
    """Else rows of the mask may have to be repeated."""
    assert "Expand" in ops_of(ortopt.optimize(parse(MASKED)))
    result = ortopt.optimize(parse(MASKED), rename_dims={"a": "batch", "b": "rows", "c": "batch", "d": "rows"})
    assert result.verified
    assert "Expand" not in ops_of(result)
    shapes = [str(value.shape) for value in (*result.model.graph.inputs, *result.model.graph.outputs)]
    assert shapes == ["[batch,rows]"] * 3


def test_a_dimension_that_no_input_has_cannot_be_renamed() -> None:
    with pytest.raises(UsageError, match="no input has a dimension named f; the names: a, b, c, d"):
        ortopt.optimize(parse(MASKED), rename_dims={"f": "batch"})
