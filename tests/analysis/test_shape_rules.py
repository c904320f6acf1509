"""One rule after another: what it knows, and that ORT agrees."""

from pathlib import Path

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from ortopt.analysis import shapes
from ortopt.analysis.shape_rules import RULES
from ortopt.analysis.shape_rules.registry import broadcast_dim, rule
from ortopt.graph import symbolic
from ortopt.graph.symbolic import canonical
from tests.analysis.truth import check, check_proto, feeds_for, infer, infer_proto, parse, run, text
from tests.texts import Case, rows

CASES = Path(__file__).parent / "cases"


@pytest.mark.parametrize(("family", "row"), rows(CASES / "shapes.txt", ("opset", "runs")))
def test_rule(family: Case, row: list[str]) -> None:
    inputs, body, expected = row
    proto = parse(body, inputs, opset=int(family.told.get("opset", 17)))
    values = infer_proto(proto)
    if expected != "any":
        assert " ".join(text(values[name]) for name in proto.graph.node[-1].output) == expected
        if "runs" not in family.told:
            check_proto(proto, feeds_for(proto))


@pytest.mark.parametrize(("_", "row"), rows(CASES / "contents.txt"))
def test_contents(_: Case, row: list[str]) -> None:
    body, expected = row
    proto = parse(body, "float[N,4,M] x")
    elements = shapes.contents(check_proto(proto, feeds_for(proto))["y"])
    assert elements is not None
    assert " ".join("?" if not isinstance(e, int) and e.value is None else str(e) for e in elements) == expected


@pytest.mark.parametrize(("_", "row"), rows(CASES / "nonsense.txt"))
def test_wrong_models_do_not_raise(_: Case, row: list[str]) -> None:
    inputs, body = row
    dims = shapes.dims_of(infer(body, inputs)["y"])
    assert dims is None or all(not isinstance(dim, int) or dim >= 0 for dim in dims)


def test_big_tensors_have_no_contents() -> None:
    body = "s = Constant<value = int64[1] {65}>() y = ConstantOfShape<value = int64[1] {7}>(s)"
    assert shapes.contents(infer(body)["y"]) is None


def test_contents_of_what_cannot_be_told() -> None:
    values = infer("s = Shape(x) y = Where(c, s, s) z = Where(c, t, s)", "float[N,4] x, bool c, int64[2] t")
    assert shapes.contents(values["y"]) == (canonical("N"), 4)
    assert shapes.contents(values["z"]) is None


def test_slices_at_random_agree_with_numpy() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        size = int(rng.integers(0, 7))
        start, end = (int(bound) for bound in rng.integers(-9, 10, 2))
        step = int(rng.choice([-3, -2, -1, 1, 2, 3]))
        parts = {"b": start, "e": end, "a": 0, "s": step}
        body = " ".join(f"{name} = Constant<value = int64[1] {{{value}}}>()" for name, value in parts.items())
        proto = parse(f"{body} y = Slice(x, b, e, a, s)", f"float[{size}] x")
        inferred = text(infer_proto(proto)["y"])
        assert inferred == f"float[{run(proto, {'x': np.zeros(size, np.float32)})['y'].shape[0]}]", (size, parts)


def test_poolings_at_random_agree_with_ort() -> None:
    rng = np.random.default_rng(4)
    for _ in range(60):
        kernel, stride, dilation = (int(number) for number in rng.integers(1, 4, 3))
        pads = [int(pad) for pad in rng.integers(0, kernel, 2)]
        size = int(rng.integers(8, 20))
        ceil = int(rng.integers(0, 2))
        body = (
            f"y = MaxPool<kernel_shape=[{kernel}], strides=[{stride}], dilations=[{dilation}],"
            f" pads=[{pads[0]},{pads[1]}], ceil_mode={ceil}>(x)"
        )
        proto = parse(body, f"float[1,1,{size}] x")
        true = run(proto, {"x": np.zeros((1, 1, size), np.float32)})["y"].shape[2]
        assert text(infer_proto(proto)["y"]) == f"float[1,1,{true}]", (body, size)
        symbolic_proto = parse(body, "float[1,1,N] x")
        dim = shapes.dims_of(infer_proto(symbolic_proto)["y"])[2]
        assert symbolic.substitute(dim, {"N": size}) == true, (body, size, dim)


def test_an_op_has_one_rule() -> None:
    with pytest.raises(ValueError, match="two shape rules"):
        rule("Add")(RULES["", "Add"])


def _slice(start: int, end: int, step: int, source: str = "x") -> str:
    given = zip("bepa", (start, end, step, 0), strict=True)
    return " ".join(f"{name} = Constant<value = int64[1] {{{one}}}>()" for name, one in given) + (
        f" y = Slice({source}, b, e, a, p)"
    )


LARGEST, SMALLEST = 2**63 - 1, -(2**63)


@pytest.mark.parametrize("start", [LARGEST, -1, SMALLEST])
@pytest.mark.parametrize("end", [LARGEST, 2**31 - 1, 0, SMALLEST])
@pytest.mark.parametrize("step", [1, -1, LARGEST, SMALLEST])
def test_slice_at_the_ends_of_int64(start: int, end: int, step: int) -> None:
    for size in (0, 3):
        check(_slice(start, end, step), "float[N] x", {"x": np.zeros(size, np.float32)})
    check("x = Constant<value = int64[3] {5, 6, 7}>() " + _slice(start, end, step))


EINSUMS = [
    ("ij,ij->ij", (3, 4), (3, 1), "float[3,4]"),
    ("ij,ij->ij", (1, 4), (3, 1), "float[3,4]"),
    ("ij,ji->ij", (1, 1), (4, 3), "float[3,4]"),
    ("ij,jk->k", (2, 1), (3, 5), "float[5]"),
    ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5), "float[2,3,5]"),
    ("...ij,...jk->...ik", (1, 3, 4), (2, 4, 5), "float[2,3,5]"),
    ("...ij,...jk", (2, 3, 4), (2, 4, 5), "float[2,3,5]"),
    ("i...,j...->...ij", (2, 3), (4, 3), "float[3,2,4]"),
    ("iij,jk->ik", (3, 3, 4), (4, 5), "float[3,5]"),
    ("ii,jj->ij", (3, 3), (4, 4), "float[3,4]"),
]


@pytest.mark.parametrize(("equation", "first", "second", "expected"), EINSUMS)
def test_einsum(equation: str, first: tuple[int, ...], second: tuple[int, ...], expected: str) -> None:
    feeds = {"x": np.ones(first, np.float32), "w": np.ones(second, np.float32)}
    body = f'y = Einsum<equation="{equation}">(x, w)'
    inputs = ", ".join(f"float[{','.join(map(str, one.shape))}] {name}" for name, one in feeds.items())
    assert text(check(body, inputs, feeds)["y"]) == expected
    symbols = ", ".join(
        f"float[{','.join(f'{name}{i}' for i in range(one.ndim))}] {name}" for name, one in feeds.items()
    )
    check(body, symbols, feeds)


POOLINGS = [
    "kernel_shape=[4], strides=[5]",
    "kernel_shape=[4], strides=[2]",
    "kernel_shape=[5], strides=[3], pads=[1,0]",
    "kernel_shape=[3], strides=[2], dilations=[3]",
    'kernel_shape=[3], strides=[2], dilations=[2], auto_pad="SAME_UPPER"',
    'kernel_shape=[5], strides=[3], dilations=[2], auto_pad="SAME_LOWER", ceil_mode=1',
    'kernel_shape=[2], strides=[3], auto_pad="SAME_LOWER"',
    'kernel_shape=[3], strides=[2], auto_pad="VALID", ceil_mode=1',
    "kernel_shape=[3], strides=[2], pads=[1,1], ceil_mode=1",
    "kernel_shape=[1], strides=[3], ceil_mode=1",
]


@pytest.mark.parametrize("attributes", POOLINGS)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_windows_larger_than_what_they_move_over(op: str, attributes: str) -> None:
    ran = 0
    for size in range(1, 9):
        feeds = {"x": np.ones((1, 2, size), np.float32)}
        for inputs in (f"float[1,2,{size}] x", "float[1,2,W] x"):
            try:
                check(f"y = {op}<{attributes}>(x)", inputs, feeds, opset=19)
            except (Fail, InvalidArgument, RuntimeException):
                continue
            ran += 1
    assert ran > 8


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("more", ["", "dilations=[3],", "output_padding=[1],", "output_shape=[5],"])
def test_transposed_convolutions_are_cut_and_not_filled(auto_pad: str, more: str) -> None:
    feeds = {"x": np.ones((1, 2, 3), np.float32), "w": np.ones((2, 2, 2), np.float32)}
    for stride in (2, 3, 5):
        if "output_shape" in more and stride > 2:
            continue  # nothing of three elements three apart fits in five
        body = f'y = ConvTranspose<{more} strides=[{stride}], auto_pad="{auto_pad}">(x, w)'
        check(body, "float[1,2,W] x, float[2,2,2] w", feeds)


@pytest.mark.parametrize("size", [0, 5])
def test_a_target_that_may_be_0_copies(size: int) -> None:
    feeds = {"x": np.ones((1, 5), np.float32), "s": np.ones((size,), np.float32)}
    body = "d = Shape(s) m = Constant<value = int64[1] {-1}>() t = Concat<axis=0>(m, d) y = Reshape(x, t)"
    check(body, "float[1,5] x, float[N] s", feeds)
    check(body, "float[1,M] x, float[N] s", feeds)


def test_no_dimension_is_below_0() -> None:
    """A Range up to a dimension has max(0, dimension) elements, which is the dimension beside a value that has it."""
    dim = canonical("N//10 - 1")
    capped = symbolic.maximum(dim, 0)
    assert capped != dim
    assert broadcast_dim(dim, capped) == broadcast_dim(capped, dim) == dim
    assert broadcast_dim(dim, symbolic.maximum(dim, 1)) == dim  # where it is 0, the other is 1


def test_what_was_broadcast_is_known_again() -> None:
    """Sums of the same lengths have the same length, and one of them added again changes nothing."""
    body = "a = Add(x, z) b = Add(z, x) c = Add(a, x) y = Add(b, c)"
    for n, m in ((3, 3), (1, 3), (3, 1), (1, 0), (0, 1)):
        values = check(body, "float[N] x, float[M] z", {"x": np.ones(n, np.float32), "z": np.ones(m, np.float32)})
        assert len({shapes.dims_of(values[name]) for name in "abcy"}) == 1


def test_what_was_broadcast_in_a_body_is_unknown_outside() -> None:
    body = """t = Constant<value = int64 {3}>() k = Constant<value = bool {1}>()
        y = Loop(t, k, x) <body = g (int64 i, bool c, float[] s) => (bool d, float r) {
            d = Identity(c) n = NonZero(s) f = Cast<to=1>(n) r = Add(f, x) }>"""
    values = infer(body, "float[N] x")
    assert all("broadcast" not in str(dim) for dim in shapes.dims_of(values["y"]) or ())


def test_a_slice_up_to_a_length_that_a_convolution_needs() -> None:
    """Where it were below 0 the Conv would fail: a Slice counts from the end there, but nothing runs."""
    body = """h = Conv<strides=[10]>(x, w) n = Shape<start=2>(x) ten = Constant<value = int64[1] {10}>() d = Div(n, ten)
        one = Constant<value = int64[1] {1}>() l = Sub(d, one) b = Constant<value = int64[1] {0}>()
        s = Slice(t, b, l) o = Squeeze(h) y = Identity(s)"""
    feeds = {"x": np.ones((1, 1, 45), np.float32), "w": np.ones((1, 1, 20), np.float32), "t": np.ones(79, np.float32)}
    values = check(body, "float[1,1,N] x, float[1,1,20] w, float[79] t", feeds)
    sliced, whole = shapes.dims_of(values["s"]), shapes.dims_of(values["h"])
    assert sliced is not None
    assert whole is not None
    assert sliced[0] == symbolic.minimum(79, whole[2])


def test_what_is_broadcast_with_a_size_that_is_not_0() -> None:
    """A Reshape that fails without elements proves it, if later: then max(1, N) and min(128, N) are one length."""
    body = """n = Shape(x) one = Constant<value = int64[1] {1}>() l = Max(n, one) z = Expand(one, l) o = Cast<to=1>(z)
        b = Constant<value = int64[1] {0}>() t = Slice(w, b, n) a = Add(o, t) m = Constant<value = int64[1] {-1}>()
        u = Concat<axis=0>(n, m) r = Reshape(x, u) s = Squeeze(r) y = Add(a, x)"""
    values = infer(body, "float[N] x, float[128] w")
    assert text(values["a"]) == text(values["y"]) == "float[N]"
