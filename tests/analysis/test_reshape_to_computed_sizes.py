"""A computed element of a Reshape's target is the result's size only where it cannot be a 0 that copies, or a -1.

Each target is run by ONNX Runtime for small sizes, 0 among them: where it runs, the sizes must be the inferred ones.
"""

import itertools
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from ortopt.analysis import shapes
from ortopt.graph import facts, symbolic
from tests.analysis.truth import infer_proto, parse, text
from tests.sessions import unoptimized
from tests.texts import table

SIZES = """
    b = Shape<start = 0, end = 1>(x) s = Shape<start = 1, end = 2>(x) bs = Mul(b, s)
    m = Shape(w) n4 = Constant<value = int64[1] {4}>() n2 = Constant<value = int64[1] {2}>()
    any = Constant<value = int64[1] {-1}>() own = Constant<value = int64[1] {0}>()
    less = Sub(s, n2) s4 = Mul(s, n4)
"""
TARGETS = dict(table(Path(__file__).parent / "cases" / "reshape_targets.txt", "targets"))
INPUTS = "float[B,S,4] x, float[M] w"


def _model(body: str, target: str, *, allow_zero: bool) -> str:
    return f"{SIZES} t = Concat<axis = 0>({target}) y = Reshape<allowzero = {int(allow_zero)}>({body}, t)"


def _check_all_sizes(body: str) -> str:
    proto = parse(body, INPUTS)
    inferred = infer_proto(proto)["y"]
    dims = shapes.dims_of(inferred)
    assert dims is not None
    session = unoptimized(proto)
    ran = 0
    for batch, seq, more in itertools.product(range(4), range(4), (0, 1, 2, 4)):
        feeds = {"x": np.zeros((batch, seq, 4), np.float32), "w": np.zeros(more, np.float32)}
        try:
            (got,) = session.run(None, feeds)
        except Exception:
            continue
        ran += 1
        binding = {"B": batch, "S": seq, "M": more}
        for dim, size in zip(dims, got.shape, strict=True):
            number = symbolic.substitute(dim, binding)
            assert not isinstance(number, int) or number == size, f"{text(inferred)}, really {got.shape} for {binding}"
    assert ran
    return text(inferred)


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_that_are_proven(target: str) -> None:
    assert _check_all_sizes(_model("x", target, allow_zero=False)) == TARGETS[target]


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_with_allowzero(target: str) -> None:
    _check_all_sizes(_model("x", target, allow_zero=True))


def test_what_is_inferred_with_allowzero_beside_a_size_that_may_be_0() -> None:
    """ONNX Runtime then says 1 where both are 0."""
    assert _check_all_sizes(_model("x", "b, any, n4", allow_zero=True)) == "float[B,max(-B + 1, S),4]"
    body = _model("x", "b, any, n4", allow_zero=True).replace(" y =", " r =") + " y = Add(r, x)"
    assert _check_all_sizes(body) == "float[B,S,4]"


def test_a_size_that_a_convolution_proves_to_be_no_negative_number() -> None:
    body = """h = Constant<value = int64[1] {10}>() n1 = Constant<value = int64[1] {1}>() s = Shape<start = 2>(x)
        q = Div(s, h) t = Sub(q, n1) c = Conv<strides = [10]>(x, w) r = Transpose<perm = [0, 2, 1]>(c)
        n4 = Constant<value = int64[1] {4}>() b = Shape<start = 0, end = 1>(x) two = Constant<value = int64[1] {2}>()
        o = Concat<axis = 0>(b, t, n4, two) y = Reshape<allowzero = 1>(r, o)"""
    proto = parse(body, "float[B,3,L] x, float[8,3,20] w")
    assert text(infer_proto(proto)["y"]) == "float[B,L//10 - 1,4,2]"


@pytest.mark.parametrize(
    ("other", "target", "told"),
    [
        ("o = Concat<axis = 0>(any, s) r = Reshape(x, o) z = Neg(r)", "s, b, n4", "float[S,B,4]"),
        ("o = Concat<axis = 0>(any, s, n4) r = Reshape(x, o) z = Neg(r)", "s, b, n4", "float[S,B,4]"),
        ("o = Concat<axis = 0>(b, any, n4) r = Reshape(x, o) z = Neg(r)", "s, b, n4", "float[S,B,4]"),
        ("o = Concat<axis = 0>(any, n2, n2, s) r = Reshape(x, o) z = Neg(r)", "s, b, n4", "float[S,B,4]"),
        ("o = Concat<axis = 0>(any, s, n4) r = Reshape<allowzero = 1>(x, o) z = Neg(r)", "s, b, n4", "float[?,?,4]"),
        ("o = Concat<axis = 0>(any, s, n4) r = Reshape(x, o)", "s, b, n4", "float[?,?,4]"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_another_reshape_proves(other: str, target: str, told: str, first: bool) -> None:
    """One that fails where a size is 0 proves that it is none, before or after; one that nobody needs does not."""
    own = _model("x", target, allow_zero=False).removeprefix(SIZES)
    body = SIZES + (other + own if first else own.replace("y =", "v =") + other + " y = Identity(v)")
    assert _check_all_sizes(body) == told


ADDED = {
    "y = Add(r, x)": "float[B,S,4]",
    "y = Mul(x, r)": "float[B,S,4]",
    "o = Shape(x) z = Expand(n4, o) f = Cast<to = 1>(z) y = Sub(f, r)": "float[B,S,4]",
    "y = Neg(r)": "float[B,max(-4*S + 4, S),4]",
    "n = Neg(r) o = Shape(n) h = Reshape(v, o) y = Sub(x, h)": "float[B,S,4]",
}


@pytest.mark.parametrize("sum_", ADDED)
def test_a_size_that_a_sum_proves_to_be_none_that_is_copied(sum_: str) -> None:
    """Where S is 0 the Reshape copies the 4 of its operand, and 4 and 0 do not broadcast."""
    flat = "e = Concat<axis = 0>(any, n4) u = Reshape(x, e) v = Neg(u)"
    body = _model("v", "b, s, n4", allow_zero=False).replace("t = Concat", f"{flat} t = Concat").replace(" y =", " r =")
    known = _check_all_sizes(f"{body} {sum_}")
    assert known == ADDED[sum_]


def test_the_length_of_a_range_follows_what_is_learned_late() -> None:
    """Where S is 0 the Reshape copies 4; the sum behind the Range proves that S is none."""
    proto = parse(
        """e = Constant<value_ints = [-1, 4]>() u = Reshape(x, e) v = Neg(u) s = Shape(x) r = Reshape(v, s)
        l = Shape<start = 1, end = 2>(r) q = Squeeze(l) f = Cast<to = 1>(q) o = Constant<value_float = 0.0>()
        i = Constant<value_float = 1.0>() p = Range(o, f, i) a = Constant<value_ints = [1]>() c = Unsqueeze(p, a)
        d = Sub(c, p) h = ReduceMax<keepdims = 0>(d) g = Add(x, r) y = Mul(g, h)""",
        "float[B,S,4] x",
    )
    values = infer_proto(proto)
    assert text(values["d"]) == "float[S,S]"
    assert text(values["y"]) == "float[B,S,4]"


POSITIVE = {
    "a size that no dimension can take the place of": ("x", "S", True),
    "what two sizes are broadcast to": ("a", "ortopt::broadcast(L|S)", True),
    "a size that stays 0": ("x", "S", False),
}


@pytest.mark.parametrize("case", POSITIVE)
def test_where_a_shape_has_elements_and_nothing_is_reshaped_the_model_fails(case: str) -> None:
    """The 0 copies a dimension that is not 0: ``[3·S, 4]`` is no ``[3, 4, 4]`` for an S of 0."""
    value, name, copies = POSITIVE[case]
    body = f"""a = Add (x, w) s = Shape ({value}) t = Constant<value = int64[2] {{-1, 4}}> () f = Reshape (a, t)
        g = Reshape (x, t) y = Reshape<allowzero = {int(not copies)}> ({"f" if value == "a" else "g"}, s)"""
    proto = parse(body, "float[3,S,4] x, float[3,L,4] w")
    producer = infer_proto(proto)["y"].producer()
    assert producer is not None
    assert producer.graph is not None
    assert (name in producer.graph.meta[facts.POSITIVE]) == copies
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {"x": np.zeros((3, 0, 4), np.float32), "w": np.zeros((3, 1, 4), np.float32)}
    if copies:
        with pytest.raises(Exception, match="cannot be reshaped"):
            session.run(None, feeds)
    else:
        assert session.run(None, feeds)[0].shape == (3, 0, 4)
