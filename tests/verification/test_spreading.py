"""Results that are right for finite numbers only: what they may do with NaN and infinities, and what not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt import Numerics, RewriteRule, TransformerLevel, optimize
from ortopt.errors import RegistrationError
from ortopt.graph.edit import constant
from ortopt.graph.match import inputs
from ortopt.registry import Registry
from ortopt.reporting.report import spread_text
from ortopt.rule import Forwarded
from ortopt.testing import check_rewrites, parse
from ortopt.verification.result_comparison import accept_spreading
from ortopt.verification.verify import verify

pytestmark = pytest.mark.usefixtures("models_run_here")

NAN, INF = float("nan"), float("inf")
FLOAT = "tensor(float)"

ROW = "main (float[2, 3] x) => (float[2, 3] y) { y = Mul (x, one) }".replace("{", "<float one = {1.0}> {")
SPREAD = """main (float[2, 3] x) => (float[2, 3] y) <float one = {1.0}, float zero = {0.0}, int64[1] axis = {1}> {
    s = ReduceSum <keepdims = 1> (x, axis)
    n = Mul (s, zero)
    z = Add (x, n)
    y = Mul (z, one)
}"""
"""The same, but that a NaN or an infinity anywhere becomes a NaN in its whole row."""

HOLDS_NAN = {"x": np.array([[1, NAN, 2], [3, 4, 5]], np.float32)}
HOLDS_INF = {"x": np.array([[1, INF, 2], [3, 4, 5]], np.float32)}
FINITE = {"x": np.ones((2, 3), np.float32)}


class SumOverAll(RewriteRule[Forwarded]):
    """``x · 1`` → ``x + (Σx - Σx)``: a form for finite numbers only."""

    levels = (TransformerLevel.LEVEL3,)
    numerics = Numerics.FINITE
    roots = ("Mul",)

    def match(self, root: ir.Node) -> Forwarded:
        return Forwarded((root,), inputs(root, 2)[0])

    def rewrite(self, found: Forwarded) -> ir.Value:
        total = ir.node("ReduceSum", [found.value, constant((1,))])
        nothing = ir.node("Sub", [total.outputs[0], total.outputs[0]])
        return ir.node("Add", [found.value, nothing.outputs[0]]).outputs[0]


class SumOverAllEarly(SumOverAll):
    """``x · 1`` → ``x + (Σx - Σx)``, at level 1."""

    levels = (TransformerLevel.LEVEL1,)


class LosesNan(SumOverAll):
    """``x · 1`` → ``x`` without its NaN: wrong, whatever it declares."""

    def rewrite(self, found: Forwarded) -> ir.Value:
        isnan = ir.node("IsNaN", [found.value])
        return ir.node("Where", [isnan.outputs[0], found.nodes[0].inputs[1], found.value]).outputs[0]


@pytest.mark.parametrize("given", [HOLDS_NAN, HOLDS_INF])
def test_nan_may_spread_where_it_is_allowed_only(given):
    strict = verify(parse(ROW), parse(SPREAD), inputs=given)
    assert strict.status == "differs"
    allowed = verify(parse(ROW), parse(SPREAD), inputs=given, finite_math=True)
    assert allowed.status == "verified"
    assert allowed.spread == 2


def test_a_nan_from_finite_numbers_differs():
    nothing = SPREAD.replace("n = Mul (s, zero)", "n = Div (zero, zero)")
    outcome = verify(parse(ROW), parse(nothing), inputs=FINITE, finite_math=True)
    assert outcome.status == "differs"


@pytest.mark.parametrize(
    ("expected", "got", "special", "accepted", "spread"),
    [
        ([1, NAN], [NAN, NAN], False, [NAN, NAN], 1),
        ([1, INF], [INF, NAN], False, [INF, NAN], 1),  # an infinity may become a NaN
        ([1, NAN], [2, NAN], False, [1, NAN], 0),  # another finite number stays a difference
        ([1, NAN], [1, 2], False, [1, NAN], 0),  # and so does a NaN that is lost
        ([1, 2], [1, NAN], False, [1, 2], 0),  # nothing was there that could have spread
        ([1, 2], [1, NAN], True, [1, NAN], 1),  # but in the inputs
    ],
)
def test_what_may_spread(expected, got, special, accepted, spread):
    arrays = (np.array(numbers, np.float32) for numbers in (expected, got))
    result, places = accept_spreading(*arrays, FLOAT, special=special)
    np.testing.assert_array_equal(result, np.array(accepted, np.float32))
    assert places == spread


def test_integers_are_compared_as_always():
    expected, got = np.array([1, 2]), np.array([1, 3])
    assert accept_spreading(expected, got, "tensor(int64)", special=True)[0] is expected


def test_a_run_allows_it_for_passes_that_declare_it():
    result = optimize(parse(ROW), transformers=[SumOverAll()], only=["sum_over_all"], inputs=HOLDS_NAN)
    assert result.verification is not None
    assert result.verification.status == "verified"
    assert result.verification.spread == 2
    assert [(total.transformer, total.numerics) for total in result.summary.passes] == [
        ("sum_over_all", Numerics.FINITE)
    ]
    assert spread_text(1) == "NaN or infinity at 1 place beside those of the original"


def test_others_are_repaired():
    class Reordered(SumOverAll):
        """``x · 1`` → ``x + (Σx - Σx)``."""

        numerics = Numerics.REORDERED

    result = optimize(parse(ROW), transformers=[Reordered()], only=["reordered"], inputs=HOLDS_NAN)
    assert [repair.rewrite.transformer for repair in result.repairs] == ["reordered"]


def test_a_nan_that_is_lost_is_repaired():
    result = optimize(parse(ROW), transformers=[LosesNan()], only=["loses_nan"], inputs=HOLDS_NAN)
    assert [repair.rewrite.transformer for repair in result.repairs] == ["loses_nan"]


def test_the_tests_of_passes_allow_it():
    check_rewrites(SumOverAll(), ROW, inputs=HOLDS_NAN, ops={"Mul": 0})


def test_such_passes_run_from_level_3_on():
    with pytest.raises(RegistrationError, match="from level 3 on"):
        Registry().add(SumOverAllEarly, "the test")
