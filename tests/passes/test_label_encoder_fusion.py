"""One table for two, in every spelling; where keys cannot be told apart both stay."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites

PASS = "label_encoder_fusion"
HEAD = '<ir_version: 10, opset_import: ["" : 17, "ai.onnx.ml" : {opset}]> '
LISTS = """main (string[N] x) => (float[N] y) {
    t = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b", "c"], values_int64s = [1, 2, 3], default_int64 = 7> (x)
    y = ai.onnx.ml.LabelEncoder <keys_int64s = [1, 3, 7], values_floats = [0.5, 1.5, 2.5], default_float = -2.0> (t) }"""  # noqa: E501
X = {"x": np.array(["a", "b", "c", "d", ""], object)}


@pytest.mark.parametrize("opset", [2, 3, 4])
def test_lists(opset: int) -> None:
    check_rewrites(
        PASS,
        HEAD.format(opset=opset) + LISTS,
        HEAD.format(opset=opset)
        + """main (string[N] x) => (float[N] y) {
            y = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b", "c"], values_floats = [0.5, -2.0, 1.5], default_float = 2.5> (x) }""",  # noqa: E501
        inputs=X,
    )


def test_defaults_that_are_left_out() -> None:
    text = (
        LISTS.replace(", default_int64 = 7", "")
        .replace(", default_float = -2.0", "")
        .replace("[1, 3, 7]", "[1, -1, 3]")
    )
    check_rewrites(PASS, HEAD.format(opset=2) + text, ops={"ai.onnx.ml::LabelEncoder": 1}, inputs=X)


def test_tensors() -> None:
    text = """main (int64[N] x) => (double[N] y) {
        t = ai.onnx.ml.LabelEncoder <keys_tensor = int64[2] {1, 2}, values_tensor = int64[2] {5, 6}, default_tensor = int64[1] {9}> (x)
        y = ai.onnx.ml.LabelEncoder <keys_tensor = int64[2] {6, 9}, values_tensor = double[2] {1.5, 2.5}, default_tensor = double[1] {0}> (t) }"""  # noqa: E501
    model = check_rewrites(
        PASS, HEAD.format(opset=4) + text, ops={"ai.onnx.ml::LabelEncoder": 1}, inputs={"x": np.array([1, 2, 3])}
    )
    attributes = model.graph[0].attributes
    assert attributes["values_tensor"].value.numpy().tolist() == [0, 1.5]
    assert attributes["default_tensor"].value.numpy().tolist() == [2.5]
