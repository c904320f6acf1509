"""Guards in files. Row of table D: guards: CudaFusionGuard + If + fallback, as an ONNX If with two branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.testing import assert_array_equal

from ortopt.api import optimize
from ortopt.errors import UsageError
from ortopt.partition.groups import groups_of
from ortopt.runtime.specialization.guard_writer import guarded
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from tests.runtime.models import FUNCTION, HEADER, floats, session
from tests.runtime.side_by_side import theirs

TEXT = f"""{HEADER}
main (float[N,M] x, int64[K] shape, float s) => (float[L] y, int64[R] r, float[N,M] z)
    <float[1] w = {{2}}, int64[1] k = {{-1}}> {{
    v, z = ortopt.group.group_0 (x, shape, s, w) y = Reshape (v, k) r = Shape (v) }}
{FUNCTION} group_0 (p, q, r, w) => (b, a) {{ t = Mul (p, w) a = Div (t, r) u = Neg (a) b = Reshape (u, q) }}
"""


def grouped(text: str = TEXT, weights: int = 1) -> ir.Model:
    """A model whose groups say what the format wants."""
    model = parse(text)
    for function in model.functions.values():
        function.metadata_props.update({"ortopt.provider": "CPUExecutionProvider", "ortopt.weights": str(weights)})
    return model


def check(model: ir.Model, *feeds: dict[str, Any], original: ir.Model | None = None) -> None:
    """ONNX Runtime and ortopt's runtime give what ONNX Runtime makes of the general model."""
    if all(value.shape is not None for value in model.graph.inputs):  # the checker asks for it
        onnx.checker.check_model(to_bytes(model), full_check=True)
    reference, new, mine = theirs(original or grouped()), theirs(model), session(load(to_bytes(model)))
    for feed in feeds:
        expected = reference.run(None, feed)
        for got in (new.run(None, feed), mine.run(None, feed)):
            for one, other in zip(expected, got, strict=True):
                assert_array_equal(one, other, strict=True)


def feed(rows: int = 3, columns: int = 4, shape: tuple[int, ...] = (12,), s: float = 2.0) -> dict[str, Any]:
    return {"x": floats(rows, columns), "shape": np.array(shape, np.int64), "s": np.array(s, np.float32)}


def taken(model: ir.Model, feed: dict[str, Any]) -> bool:
    """Whether the guard holds: the condition, asked of ONNX Runtime."""
    model = model.clone()
    (held,) = [node.inputs[0] for node in model.graph if node.op_type == "If"]
    assert held is not None
    held.type, held.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    model.graph.outputs[:] = [held]
    return bool(theirs(model).run(None, feed)[0])


def test_guard_as_an_if_that_holds_calls_the_specialized_group() -> None:
    model = guarded(grouped(), "group_0", shapes={"x": [3, 4]}, constants={"shape": np.array([12])})
    special, general = groups_of(model)
    assert (special.name, general.name) == ("group_0_specialized", "group_0")
    assert special.guard == {"p": {"shape": [3, 4]}, "q": {"shape": [1], "value": [12]}}
    assert general.guard is None
    assert [value.name for value in special.inputs] == ["x", "s"]
    assert taken(model, feed())
    check(model, feed())


def test_guard_as_an_if_that_fails_by_shape_calls_the_general_group() -> None:
    model = guarded(grouped(), "group_0", shapes={"x": [3, 4]})
    other = [feed(4, 3), feed(0, 4, (0, 2)), feed(2, 4, (8,)), feed(3, 5, (15,)), feed(1, 1, (1, 1))]
    assert not any(taken(model, one) for one in other)
    check(model, feed(), *other)


def test_guard_as_an_if_that_fails_by_value_calls_the_general_group() -> None:
    model = guarded(grouped(), "group_0", constants={"shape": np.array([3, 4])})
    other = [feed(shape=shape) for shape in ((4, 3), (12,), (3, 4, 1), (3, 2, 2), (-1,))]
    assert taken(model, feed(shape=(3, 4)))
    assert not any(taken(model, one) for one in other)
    check(model, feed(shape=(3, 4)), *other)


def test_guard_as_an_if_on_an_argument_of_rank_zero_tells_zeros_apart() -> None:
    model = guarded(grouped(), "group_0", constants={"s": np.array(0.0, np.float32)})
    assert taken(model, feed(s=0.0))
    assert not any(taken(model, feed(s=s)) for s in (-0.0, 1.0, float("nan"), float("inf")))
    check(model, *(feed(s=s) for s in (0.0, -0.0, 1.0, float("inf"), float("nan"))))


def test_guard_as_an_if_asks_arguments_of_unknown_rank() -> None:
    text = f"""{HEADER}
    main (float[...] x) => (float[...] y) <float[1] w = {{2}}> {{ y = ortopt.group.group_0 (x, w) }}
    {FUNCTION} group_0 (p, w) => (b) {{ a = Mul (p, w) b = Neg (a) }}"""
    text = text.replace("float[...]", "float[]")
    original = grouped(text)
    original.graph.inputs[0].shape = None
    original.graph.outputs[0].shape = None
    sizes: tuple[tuple[int, ...], ...] = ((), (3,), (3, 1), (0,), (2, 3), (1,))
    for wanted in sizes:
        model = guarded(original, "group_0", shapes={"x": wanted})
        assert [taken(model, {"x": floats(*one)}) for one in sizes] == [one == wanted for one in sizes]
        check(model, *({"x": floats(*one)} for one in sizes), original=original)


def test_guard_as_an_if_on_an_empty_constant_is_a_guard_on_its_shape() -> None:
    text = TEXT.replace("b = Reshape (u, q)", "b = Unsqueeze (u, q)")
    model = guarded(grouped(text), "group_0", constants={"shape": np.zeros(0, np.int64)})
    assert taken(model, feed(shape=()))
    assert not taken(model, feed(shape=(0,)))
    check(model, feed(shape=()), feed(shape=(0,)), original=grouped(text))


def test_guard_as_an_if_keeps_several_outputs_that_are_used_elsewhere() -> None:
    text = TEXT.replace("y, z = ortopt", "y, t = ortopt").replace(
        "(x, shape, s, w) }", "(x, shape, s, w) z = Abs (t) }"
    )
    model = guarded(grouped(text), "group_0", shapes={"x": [3, 4]})
    check(model, feed(), feed(2, 6), original=grouped(text))


def test_guard_as_an_if_twice_asks_one_after_the_other() -> None:
    model = guarded(grouped(), "group_0", shapes={"x": [3, 4]})
    model = guarded(model, "group_0", shapes={"x": [4, 3]})
    assert sorted(one.name for one in groups_of(model)) == ["group_0", "group_0_specialized", "group_0_specialized_2"]
    check(model, feed(), feed(4, 3), feed(2, 6))


def test_guard_as_an_if_loads_in_plain_onnxruntime_and_leaves_the_model_alone() -> None:
    original = grouped()
    before = to_bytes(original)
    model = guarded(original, "group_0", shapes={"x": [3, 4]}, constants={"s": np.array(2, np.float32)})
    assert to_bytes(original) == before
    check(model, feed(), feed(s=3.0), feed(2, 6))


def test_guard_as_an_if_keeps_weights_and_adds_those_that_it_computes() -> None:
    text = f"""{HEADER}
    main (float[N,64] x, float s) => (float[N,64] y) <float[64,64] w, float[64] v> {{
        y = ortopt.group.group_0 (x, s, w, v) }}
    {FUNCTION} group_0 (p, s, w, v) => (b) {{ q = Mul (w, s) a = MatMul (p, q) b = Add (a, v) }}"""
    text = text.replace(" <float[64,64] w, float[64] v>", "")
    original = grouped(text.replace("float s)", "float s, float[64,64] w, float[64] v)"), weights=2)
    for name, shape in (("w", (64, 64)), ("v", (64,))):
        value = next(one for one in original.graph.inputs if one.name == name)
        value.const_value = ir.tensor(np.round(floats(*shape) * 4), name=name)
        original.graph.inputs.remove(value)
        original.graph.register_initializer(value)
    model = guarded(original, "group_0", shapes={"x": [3, 64]}, constants={"s": np.array(2, np.float32)})
    assert len(model.graph.initializers) == 3  # w, v and 2 w
    assert [one.weights for one in groups_of(model)] == [1, 2]
    feeds = [{"x": np.round(floats(rows, 64)), "s": np.array(s, np.float32)} for rows in (3, 2) for s in (2, 3)]
    check(model, *feeds, original=original)


def test_guard_as_an_if_in_a_branch_with_results_that_are_constant_or_arguments() -> None:
    text = f"""{HEADER}
    main (float[N] x, bool go, bool flip) => (float[N] y) {{ y = If <
        then_branch = yes () => (float[N] a) {{ a, n = ortopt.group.group_0 (x, flip) }},
        else_branch = no () => (float[N] b) {{ b = Abs (x) }}> (go) }}
    {FUNCTION} group_0 (p, f) => (b, c) {{ n = Neg (p) b = Where (f, p, n) c = Not (f) }}"""
    original = grouped(text, weights=0)
    model = guarded(original, "group_0", constants={"flip": np.array(True)})
    feeds = [
        {"x": floats(3), "go": np.array(go), "flip": np.array(flip)} for go in (True, False) for flip in (True, False)
    ]
    check(model, *feeds, original=original)


def test_guard_as_an_if_outlives_another_optimization() -> None:
    model = guarded(grouped(), "group_0", shapes={"x": [3, 4]}, constants={"shape": np.array([12])})
    model = optimize(model, level=4, verify=False).model
    assert {one.name for one in groups_of(model)} >= {"group_0", "group_0_specialized"}
    check(model, feed(), feed(2, 6), feed(shape=(4, 3)))


@pytest.mark.parametrize("dtype", ["float16", "double", "int8", "uint8", "int32", "uint32"])
def test_guard_as_an_if_compares_numbers_of_each_type(dtype: str) -> None:
    text = f"""{HEADER}
    main ({dtype}[K] s) => (int64[K] y) {{ y = ortopt.group.group_0 (s) }}
    {FUNCTION} group_0 (s) => (b) {{ b = Cast <to = 7> (s) }}"""
    original = grouped(text, weights=0)
    kind = np.dtype({"double": "float64"}.get(dtype, dtype))
    model = guarded(original, "group_0", constants={"s": np.array([0, 100], kind)})
    assert taken(model, {"s": np.array([0, 100], kind)})
    other = [{"s": np.array(one, kind)} for one in ([0, 101], [1, 100], [0, 100, 0], [0], [])]
    assert not any(taken(model, one) for one in other)
    check(model, {"s": np.array([0, 100], kind)}, *other, original=original)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "group_7", "shapes": {"x": [3, 4]}}, "no group"),
        ({}, "at least one"),
        ({"shapes": {"w": [1]}}, "no input 'w'"),
        ({"shapes": {"x": [3]}}, "it is never"),
        ({"shapes": {"x": [-1, 4]}}, "at least 0"),
        ({"shapes": {"shape": [2]}, "constants": {"shape": np.array([12])}}, "do not fit"),
        ({"constants": {"shape": np.array([1.0])}}, "is float64"),
        ({"constants": {"s": np.array(np.nan, np.float32)}}, "NaN"),
    ],
)
def test_guard_as_an_if_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        guarded(grouped(), **{"group": "group_0", **options})


NO_SHAPES: list[Any] = [
    *(
        [3, None],
        [3, "4"],
        ["a", 4],
        [3.0, 4],
        [True, 4],
        [float("nan"), 4],
        [[3], 4],
        [-1, 4],
        [1 << 63, 4],
        [3, 4, 1],
    ),
    *("34", "", b"34", 3, None, {3: 1, 4: 1}, {3, 4}, object(), np.array(3), np.array([[3, 4]]), np.array([3.5, 4])),
]


@pytest.mark.parametrize("shape", NO_SHAPES)
def test_what_is_no_shape_of_the_argument_is_refused_in_one_line(shape: Any) -> None:
    with pytest.raises(UsageError) as raised:
        guarded(grouped(), "group_0", shapes={"x": shape})
    assert "x" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [[[3], [4, 5]], [3, None], "ab", None, object(), np.array(["a"]), {3: 4}])
def test_what_is_no_content_of_the_argument_is_refused_in_one_line(content: Any) -> None:
    with pytest.raises(UsageError, match="the constant for 'shape'") as raised:
        guarded(grouped(), "group_0", constants={"shape": content})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "named", [{1: [3, 4]}, {None: [3, 4]}, [("x", [3, 4])], 5, "x", ["x"], np.ones((2, 2))], ids=str
)
def test_shapes_and_constants_are_given_by_name(named: Any) -> None:
    for options in ({"shapes": named}, {"constants": named}):
        with pytest.raises(UsageError, match=r"shapes|constants maps names") as raised:
            guarded(grouped(), "group_0", **options)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("wrong", [None, 5, b"group_0", ["group_0"]], ids=str)
def test_models_and_groups_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="a group is named by a text"):
        guarded(grouped(), wrong, shapes={"x": [3, 4]})
    with pytest.raises(UsageError, match=r"takes an onnx_ir\.Model"):
        guarded(wrong, "group_0", shapes={"x": [3, 4]})


@pytest.mark.parametrize("shape", [(3, 4), np.array([3, 4]), [np.int64(3), 4], range(3, 5), "3,4"], ids=str)
def test_a_shape_is_any_row_of_whole_numbers(shape: Any) -> None:
    assert groups_of(guarded(grouped(), "group_0", shapes={"x": shape}))[0].guard == {"p": {"shape": [3, 4]}}
