"""Models optimized for other sizes than their files state: what the result declares, and what is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortopt
from ortopt.analysis.providers import usable
from ortopt.api import Optimization, make_options
from ortopt.errors import InvalidModelError, UsageError
from ortopt.serialization.save import save
from ortopt.testing import parse

pytestmark = pytest.mark.usefixtures("models_run_here")

NETWORK = """
main (float[N,3,8,8] x) => (float[a,b,c,d] y) <float[N,4,8,8] m> {
    w = Constant <value = float[4,3,1,1] {1,2,3,4,5,6,7,8,9,10,11,12}> ()
    m = Conv (x, w)
    r = Relu (m)
    y = GlobalAveragePool (r)
}"""


def declared(model: ir.Model) -> dict[str, list[int | str | None] | None]:
    """The declared shapes of inputs and outputs, by name."""
    return {
        value.name or "": None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
        for value in (*model.graph.inputs, *model.graph.outputs)
    }


@pytest.mark.parametrize("level", [0, 1, 3])
def test_outputs_declare_what_follows_from_the_sizes(level: int) -> None:
    result = ortopt.optimize(parse(NETWORK), level=level, dims="N=2")
    assert declared(result.model) == {"x": [2, 3, 8, 8], "y": [2, 4, 1, 1]}
    assert result.verified


def test_without_sizes_the_interface_stays() -> None:
    assert declared(ortopt.optimize(parse(NETWORK), verify=False).model) == {
        "x": ["N", 3, 8, 8],
        "y": ["a", "b", "c", "d"],
    }


@pytest.mark.parametrize(
    ("shape", "stated"), [("1,length", [2, 3, "N", 1]), ("2,3,length,4", [2, 3, "length", 1])], ids=["rank", "size"]
)
def test_for_the_web_an_output_that_is_declared_wrong_declares_what_is_proven(
    shape: str, stated: list[int | str]
) -> None:
    """Of a computed shape ONNX Runtime infers nothing; of a constant one it does, and its build for the web refuses."""
    text = f"""main (float[N,6] x) => (float[{shape}] y, float[length,6] z) <int64 axis = {{0}},
        int64[2] two = {{2, 3}}, int64[1] first = {{0}}, int64[1] one = {{1}}> {{
        s = Shape (x) n = Gather (s, axis) u = Unsqueeze (n, first) c = Concat <axis = 0> (two, u, one)
        a = ReduceSum (x, one) e = Concat <axis = 0> (a, a, a, a, a, a) y = Reshape (e, c) z = Relu (x) }}"""
    result = ortopt.optimize(parse(text), target="web", verify=False)
    assert declared(result.model) == {"x": ["N", 6], "y": stated, "z": ["length", 6]}
    elsewhere = declared(ortopt.optimize(parse(text), verify=False).model)
    assert [str(dim) for dim in elsewhere["y"] or ()] == shape.split(",")


def test_what_stays_open_keeps_the_name_that_the_file_gives_it() -> None:
    model = parse(
        """main (float[N,S] x, bool[K] c) => (float[batch,length] y, float[some] z) {
            y = Relu (x)
            z = Compress (x, c)
        }"""
    )
    result = ortopt.optimize(model, dims={"N": 2}, verify=False)
    assert declared(result.model) == {"x": [2, "S"], "c": ["K"], "y": [2, "length"], "z": ["some"]}


@pytest.mark.parametrize("level", [0, 3])
def test_a_fixed_size_changes_where_the_model_allows_it(level: int) -> None:
    result = ortopt.optimize(parse(NETWORK), level=level, input_shapes="x=2,3,12,5")
    assert result.verified
    assert declared(result.model) == {"x": [2, 3, 12, 5], "y": [2, 4, 1, 1]}


def test_no_value_info_of_the_old_size_stays(tmp_path: Path) -> None:
    result = ortopt.optimize(parse(NETWORK), level=1, input_shapes={"x": [None, None, 12, 5]}, verify=False)
    result.save(tmp_path / "m.onnx")
    infos = {info.name: info for info in onnx.load(tmp_path / "m.onnx").graph.value_info}
    sizes = [dim.dim_value or dim.dim_param for dim in infos["m"].type.tensor_type.shape.dim] if "m" in infos else None
    assert sizes in (None, ["N", 4, 12, 5])


RESHAPED = """
main (float[1,4,6] x) => (float[1,24] y) {
    s = Constant <value = int64[2] {1, 24}> ()
    y = Reshape (x, s)
}"""

POSITIONS = """
main (float[N,4,2] x) => (float[N,4,2] y) {
    p = Constant <value = float[1,4,2] {1,2,3,4,5,6,7,8}> ()
    y = Add (x, p)
}"""

RESIZED = """
main (float[1,2,4,4] x) => (float[1,4,4,4] y) {
    s = Constant <value = int64[4] {1, 2, 4, 4}> ()
    e = Neg (x)
    a = Resize <mode = "nearest"> (e, , , s)
    b = Abs (a)
    c = Relu (x)
    y = Concat <axis = 1> (b, c)
}"""


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        (RESHAPED, "x=1,4,7", "Reshape 'y' holds the old size in its constant 's' = [1, 24]"),
        (POSITIONS, "x=1,5,2", "Add 'y' holds the old size in its constant 'p' of the shape [1, 4, 2]"),
        (
            RESIZED,
            "x=1,2,6,6",
            "Resize 'a' holds the old size in its constant 's' = [1, 2, 4, 4], and Concat 'y' fails",
        ),
    ],
)
def test_a_size_that_the_model_does_not_allow_is_refused_with_the_node_that_holds_it(
    model: str, shape: str, said: str, verify: bool
) -> None:
    with pytest.raises(InvalidModelError) as caught:
        ortopt.optimize(parse(model), input_shapes=shape, verify=verify)
    name, _, sizes = shape.partition("=")
    asked = f"the model does not run with {name!r} of the shape [{', '.join(sizes.split(','))}]"
    assert str(caught.value) == f"{asked}: {said}"
    assert caught.value.exit_code == 2


def test_a_computed_shape_may_hold_the_old_size() -> None:
    model = parse(
        """main (float[N,2,3,4] x) => (float[N,2,12] y) {
            t = Shape <start = 0, end = 1> (x)
            c = Constant <value = int64[2] {2, 12}> ()
            s = Concat <axis = 0> (t, c)
            y = Reshape (x, s)
        }"""
    )
    with pytest.raises(InvalidModelError, match=r"Reshape 'y' holds the old size in 's' = \[1, 2, 12\]"):
        ortopt.optimize(model, input_shapes="x=1,2,5,4", verify=False)


def test_inputs_of_the_new_size_are_verified_with() -> None:
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((2, 3, 5, 5)).astype(np.float32)}
    assert ortopt.optimize(parse(NETWORK), input_shapes="x=2,3,5,5", inputs=inputs).verified


def test_sizes_that_make_no_sense_are_refused_at_the_call() -> None:
    for wrong in ({"dims": "K=1"}, {"input_shapes": "w=1"}, {"input_shapes": "x=1,2"}, {"rename": "w=x"}):
        with pytest.raises(UsageError):
            ortopt.optimize(parse(NETWORK), **wrong)  # type: ignore[arg-type]


RESIDUAL = """
main (float[N,S,4] x, float[N,S,4] z) => (float[N,S,4] y) {
    w = Constant <value = float[4] {1,2,3,4}> ()
    q = Relu (z)
    a = Add (x, q)
    y = LayerNormalization (a, w)
}"""


def infos(result: Any, path: Path) -> set[str]:
    """The values whose types the result's file states."""
    result.save(path)
    return {info.name for info in onnx.load(path).graph.value_info}


def test_only_what_the_file_states_is_stated(tmp_path: Path) -> None:
    save(parse(RESIDUAL), tmp_path / "m.onnx")
    proto = onnx.load(tmp_path / "m.onnx")
    del proto.graph.value_info[:]
    assert infos(ortopt.optimize(proto, level=1, verify=False), tmp_path / "none.onnx") == set()
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("q", 1, ["N", 7, None]))
    assert infos(ortopt.optimize(proto, level=1, verify=False), tmp_path / "one.onnx") == {"q"}
    (info,) = onnx.load(tmp_path / "one.onnx").graph.value_info
    assert [dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim] == ["N", "S", 4]
    assert infos(ortopt.optimize(proto, level=0, verify=False), tmp_path / "zero.onnx") == {"q"}


def test_all_that_is_known_is_stated_on_request_and_its_price_is_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="joins 1 Add with the LayerNormalization behind it"):
        result = ortopt.optimize(parse(RESIDUAL), level=1, value_info=True, verify=False)
    assert {"q", "a"} <= infos(result, tmp_path / "m.onnx")


@pytest.mark.filterwarnings("error")
def test_what_is_fused_well_has_no_price(tmp_path: Path) -> None:
    result = ortopt.optimize(parse(RESIDUAL), value_info=True, verify=False)
    assert "Sum" in [node.op_type for node in result.model.graph]
    assert infos(result, tmp_path / "m.onnx")


def test_inputs_that_verification_is_given_later_are_the_ones_that_count() -> None:
    run = Optimization(parse(NETWORK), make_options(input_shapes="x=2,3,5,5"))
    wrong = {"x": np.zeros((2, 3, 8, 8), np.float32)}
    with contextlib.closing(run):
        run.transform()
        assert run.verify().status == "verified"
        with pytest.raises(
            UsageError, match=r"input 'x' has the shape \[2, 3, 8, 8\], but \[2, 3, 5, 5\] is asked for"
        ):
            run.verify(wrong)


def test_inputs_of_another_size_are_refused_before_the_work_begins() -> None:
    wrong = {"x": np.zeros((2, 3, 8, 8), np.float32)}
    with pytest.raises(UsageError, match=r"but \[_, 3, 5, 5\] is asked for"):
        ortopt.optimize(parse(NETWORK), input_shapes="x=_,3,5,5", inputs=wrong)


def test_a_provider_that_is_not_here_does_not_hide_that_a_size_is_held() -> None:
    if usable("CUDAExecutionProvider")[0]:
        pytest.skip("the provider is here")
    with pytest.raises(InvalidModelError, match="Add 'y' holds the old size"):
        ortopt.optimize(parse(POSITIONS), providers=["cuda"], input_shapes="x=1,5,2", verify=False)
    result = ortopt.optimize(parse(NETWORK), providers=["cuda"], input_shapes="x=1,3,5,5", verify=False)
    assert declared(result.model)["y"] == [1, 4, 1, 1]
