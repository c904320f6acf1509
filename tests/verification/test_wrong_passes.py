"""Passes that are wrong for few inputs only: verification sees it, by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

from ortopt import VerificationError, optimize
from ortopt.cli.group import commands
from ortopt.errors import UsageError
from ortopt.serialization.save import save
from ortopt.testing import parse
from ortopt.verification.comparison import Comparison
from ortopt.verification.doubtful_outputs import decide_by_noise
from ortopt.verification.draws import Draw, additional_draws, thorough_draws
from ortopt.verification.inputs import Interface
from ortopt.verification.verify import Reference, verify
from tests.texts import table
from tests.verification import wrong_passes

pytestmark = pytest.mark.usefixtures("models_run_here")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are drawn with all the time that a quick machine has; tests of costs are benchmarks."""
    monkeypatch.setattr("ortopt.verification.input_search._FURTHER_SECONDS", 10.0)


RANDOM = "main (float[N,4] x) => (float[N,4] y) {{ {} }}"


CASES = {
    name: (text, vars(wrong_passes)[wrong]())
    for name, wrong, text in table(Path(__file__).parent / "wrong_passes.txt", "wrong")
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_for_few_inputs_only_is_seen(case: str) -> None:
    text, wrong = CASES[case]
    with pytest.raises(VerificationError, match="differs from the original"):
        optimize(parse(text, 20), transformers=[wrong], only=[wrong.name], repair=False)


@pytest.mark.parametrize("case", CASES)
def test_what_is_right_is_verified_on_the_same_inputs(case: str) -> None:
    result = optimize(parse(CASES[case][0], 20), level=3, repair=False)
    assert result.verification is not None
    assert (result.verification.status, result.verification.reason) == ("verified", "")


@pytest.mark.parametrize("case", ["above 50, within", "NaN", "above 2^31", "a sum above 100", "an outlier"])
def test_what_is_right_is_verified_thoroughly(case: str) -> None:
    assert optimize(parse(CASES[case][0], 20), level=3, repair=False, verify="thorough").verified


def test_thorough_sees_what_is_wrong_above_a_hundred_thousand() -> None:
    original = "main (float[N,4] x) => (float[N,4] y) { y = Abs (x) }"
    wrong = parse(
        "main (float[N,4] x) => (float[N,4] y) <float l = {-100000}, float m = {100000}>"
        " { c = Clip (x, l, m) y = Abs (c) }"
    )
    assert verify(parse(original), wrong).status == "verified"
    found = verify(parse(original), wrong, thorough=True)
    assert found.status == "differs"
    assert found.input_sets > 20


# What tells nothing is said


NEVER = "a = Abs (x) o = Constant <value_float = -1.0> () n = Sub (o, a) y = Sqrt (n)"


def test_outputs_that_are_always_nan_are_not_shown() -> None:
    model = parse(f"main (float[N] x) => (float[N] y, float[N] z) {{ {NEVER} z = Abs (x) }}")
    found = verify(model, model)
    assert (found.status, found.reason) == ("verified", "not shown: 'y' (NaN on every input set)")
    assert [row.shown for row in found.outputs] == [False, True]


def test_nothing_is_verified_where_nothing_is_shown() -> None:
    model = parse(f"main (float[N] x) => (float[N] y) {{ {NEVER} }}")
    found = verify(model, model)
    assert (found.status, found.reason) == ("not shown", "not shown: 'y' (NaN on every input set)")
    result = optimize(model)
    assert not result.verified
    assert result.verification is not None
    assert result.verification.status == "not shown"


def test_an_output_that_is_nan_for_natural_inputs_only_is_shown() -> None:
    model = parse("main (float[N] x) => (float[N] y) <float far = {50}> { d = Sub (x, far) y = Sqrt (d) }")
    assert verify(model, model).reason == ""


def test_an_output_without_elements_is_shown_by_having_none() -> None:
    model = parse("main (float[0] x) => (float[0] y) { y = Abs (x) }")
    assert verify(model, model).status == "verified"


# Randomness


def of(text: str, opset: int = 20) -> ir.Model:
    return parse(RANDOM.format(text), opset)


EACH = [
    "y = RandomNormalLike (x)",
    "y = RandomUniformLike <low = 2.0, high = 3.0> (x)",
    "r = RandomNormal <shape = [4], mean = 5.0, scale = 0.1> () y = Add (r, x)",
    "r = RandomUniform <shape = [4]> () y = Add (r, x)",
    "a = Abs (x) y = Bernoulli (a)",
    "m = Multinomial <sample_size = 4> (x) y = Cast <to = 1> (m)",
    "h = Constant <value_float = 0.3> () t = Constant <value = bool {1}> () y = Dropout (x, h, t)",
    "h = Constant <value_float = 0.3> () t = Constant <value = bool {1}> ()"
    " d, m = Dropout (x, h, t) k = Cast <to = 1> (m) y = Add (d, k)",
]


@pytest.mark.parametrize("text", EACH)
def test_random_ops_give_given_values(text: str) -> None:
    found = verify(of(text), of(text))
    assert (found.status, found.reason, found.random) == ("verified", "", False)
    wrong = of(text.replace("y =", "z =") + " half = Constant <value_float = 0.5> () y = Sub (z, half)")
    assert verify(of(text), wrong).status == "differs"


def test_given_values_look_random() -> None:
    from ortopt.verification.randomness import GivenValues
    from ortopt.verification.runner import outputs_of

    model = of("y = RandomNormalLike <mean = 3.0, scale = 2.0> (x)")
    given = GivenValues(model).original
    drawn = outputs_of(given, {"x": np.zeros((5000, 4), np.float32)})["y"]
    assert abs(drawn.mean() - 3) < 0.05
    assert abs(drawn.std() - 2) < 0.05
    assert len(np.unique(drawn)) > 10_000
    assert np.abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.05
    assert [node.op_type for node in model.graph] == ["RandomNormalLike"], "the original stays as it is"


def test_a_random_op_is_told_by_its_name_or_by_its_place() -> None:
    two = "r = RandomNormalLike (x) s = RandomNormalLike (x) y = Sub (r, s)"
    renamed = "q = RandomNormalLike (x) s = RandomNormalLike (x) y = Sub (q, s)"
    turned = "s = RandomNormalLike (x) r = RandomNormalLike (x) y = Sub (r, s)"
    wrong = "s = RandomNormalLike (x) r = RandomNormalLike (x) y = Sub (s, r)"
    assert verify(of(two), of(renamed)).status == "verified"
    assert verify(of(two), of(turned)).status == "verified"
    assert verify(of(two), of(wrong)).status == "differs"


@pytest.mark.parametrize(
    "wrong",
    [
        "y = RandomNormalLike <scale = 3.0> (x)",
        "y = RandomUniformLike (x)",
        "y = Identity (x)",
        "y = RandomNormalLike <seed = 3.0> (x)",
    ],
)
def test_another_random_op_is_a_difference(wrong: str) -> None:
    assert verify(of("y = RandomNormalLike (x)"), of(wrong)).status == "differs"


def test_randomness_that_comes_in_is_a_difference() -> None:
    assert verify(of("y = Abs (x)"), of("y = RandomNormalLike (x)")).status == "differs"


def test_randomness_below_is_replaced_too() -> None:
    text = """c = Constant <value = bool {{1}}> ()
        y = If (c) <then_branch = t () => (float[N,4] u) {{ r = RandomNormalLike (x) u = {0} (r) }},
                    else_branch = e () => (float[N,4] v) {{ r = RandomNormalLike (x) v = Neg (r) }}>"""
    assert verify(of(text.format("Abs")), of(text.format("Abs"))).reason == ""
    assert verify(of(text.format("Abs")), of(text.format("Relu"))).status == "differs"


FUNCTION = """<ir_version: 10, opset_import: ["" : 20, "here" : 1]>
main (float[N,4] x) => (float[N,4] y, float[N,4] z) {{ y = here.Noise (x) z = {0} (x) }}
<opset_import: ["" : 20], domain: "here">
Noise (a) => (b) {{ b = RandomNormalLike <dtype = 1> (a) }}"""


def test_what_stays_random_is_not_shown() -> None:
    model = parse(FUNCTION.format("Abs"))
    found = verify(model, model)
    assert (found.status, found.random) == ("verified", True)
    assert found.reason == "not shown: 'y' (random, so compared by dtype and shape only)"
    inlined = parse(
        "main (float[N,4] x) => (float[N,4] y, float[N,4] z) { y = RandomNormalLike <dtype = 1> (x) z = Abs (x) }", 20
    )
    assert verify(model, inlined).status == "verified"
    assert verify(model, parse(FUNCTION.format("Neg"))).status == "differs"


def test_a_random_result_that_does_not_load_is_a_difference() -> None:
    wrong = of("y = RandomNormalLike (x)")
    wrong.graph.append(ir.node("NoSuchOp", [wrong.graph.inputs[0]]))
    found = verify(of("y = RandomNormalLike (x)"), wrong)
    assert found.status == "differs"
    assert "the result does not" in found.reason


# Uneven outputs


UNEVEN = np.float32([[1e6, 1, 2, 1, 3, 1, 2, 1], [1, 2, 1, 1, 2, 1, 3, 1]])
ROWS = np.float32(np.array([[3e5], [1], [2e-3]]) * np.ones((3, 8)))
"""A scale for each row, as of coordinates beside probabilities."""


@pytest.mark.parametrize("expected", [UNEVEN, UNEVEN.reshape(-1), ROWS, ROWS.T])
def test_an_uneven_output_is_compared_with_what_is_around(expected: Any) -> None:
    got = expected.copy()
    smallest = np.unravel_index(np.abs(got).argmin(), got.shape)
    got[smallest] *= 1.5
    row = Comparison().of("y", "tensor(float)", expected, got)
    assert (row.agrees, row.doubtful) == (True, True), "the noise of the model decides"
    assert row.local > 0.1
    assert not decide_by_noise(row, 1e-7, 1e-7).agrees
    assert "around it" in decide_by_noise(row, 1e-7, 1e-7).detail
    assert decide_by_noise(row, 1e-7, 1e-7, local=0.5).agrees


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_an_even_output_has_one_scale(scale: float) -> None:
    expected = (np.random.default_rng(0).standard_normal((20, 30)) * scale).astype(np.float32)
    row = Comparison().of("y", "tensor(float)", expected, expected + np.float32(1e-5 * scale))
    assert (row.agrees, row.doubtful, row.local) == (True, False, 0.0)


def test_numbers_that_cancel_out_beside_an_outlier_are_noise() -> None:
    head = "main (float[N,8] x) => (float[N,8] y) <float[1] far = {1000}, float[8] f = {1, 1, 1000000, 1, 1, 1, 1, 1}"
    original = f"{head}> {{ a = Add (x, far) b = Sub (a, far) y = Mul (b, f) }}"
    result = f"{head}> {{ c = Mul (x, f) y = Identity (c) }}"
    given = {"x": np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32)}
    found = verify(parse(original), parse(result), inputs=given)
    assert found.status == "verified", found.reason


# Large numbers are no false alarms


@pytest.mark.parametrize(
    ("original", "result"),
    [
        ("k = Constant <value_float = 3.7> () a = Mul (x, k) y = Sin (a)",
         "k = Constant <value_float = 11.1> () h = Constant <value_float = 3.0> () a = Div (x, h) b = Mul (a, k)"
         " y = Sin (b)"),
        ("e = Exp (x) o = Constant <value_float = 1.0> () p = Add (e, o) y = Log (p)", "y = Softplus (x)"),
        ("a = Mul (x, x) b = Mul (a, a) c = Mul (b, b) d = Mul (c, c) y = Sqrt (d)",
         "a = Mul (x, x) b = Mul (a, a) y = Mul (b, b)"),
        ("s = Sigmoid (x) y = Mul (x, s)", "n = Neg (x) e = Exp (n) o = Constant <value_float = 1.0> () p = Add (e, o)"
         " y = Div (x, p)"),
    ],
)  # fmt: skip
def test_overflow_and_chaos_at_large_numbers_are_no_differences(original: str, result: str) -> None:
    for much in (False, True):
        found = verify(of(original), of(result), thorough=much)
        assert found.status == "verified", found.reason


# What is drawn


def test_floats_are_drawn_on_a_log_scale() -> None:
    interface = Interface(parse("main (float[N,4] x) => (float[N,4] y) { y = Abs (x) }"))
    drawn = [
        interface.draw(how=how, sizes={"N": 9})["x"] for how in additional_draws(fine=True, symbols=1, floating=True)
    ]
    assert max(float(np.nanmax(one)) for one in drawn) == 2**14
    assert min(float(np.nanmin(one)) for one in drawn) == -(2**14)
    assert min(float(np.abs(one[one != 0]).min()) for one in drawn) < 2**-13
    assert any(np.isnan(one).sum() == 1 for one in drawn)
    assert any((one > 0).all() for one in drawn)
    for how in (*additional_draws(fine=False, symbols=2, floating=True), *thorough_draws(fine=False, symbols=2)):
        one = interface.draw(how=how, sizes={"N": 9})["x"]
        assert np.abs(one[np.isfinite(one)]).max(initial=0) <= 16, "half precision is given no large numbers"


def test_integers_are_drawn_to_the_bounds_where_they_are_no_sizes() -> None:
    model = parse(
        """main (int64[9] n, int32[9] m, uint16[9] u, int64[2] shape, int64[1] count, int64[9] ids,
            float[7,2] table) => (int64[a] p, int32[9] q, uint16[9] v, int64[c,d] e, float[9,2] g) {
            p = Tile (n, count) q = Neg (m) v = BitwiseNot (u) one = Constant <value_ints = [1]> ()
            bigger = Add (shape, one) e = Expand (one, bigger) g = Gather (table, ids)
        }"""
    )
    drawn = Interface(model).draw(how=Draw(integers="extreme"))
    for name, dtype in {"n": np.int64, "m": np.int32, "u": np.uint16}.items():
        assert (drawn[name].min(), drawn[name].max()) == (np.iinfo(dtype).min, np.iinfo(dtype).max), name
    assert np.abs(drawn["shape"]).max() <= 8
    assert np.abs(drawn["count"]).max() <= 8
    assert np.abs(drawn["ids"]).max() <= 7


def test_an_integer_that_may_tell_how_often_is_a_size() -> None:
    model = parse("""main (int64 n, float[2] x) => (float[2] y) {
        t = Constant <value = bool {1}> () m = Constant <value_int = 100> ()
        y = Loop (m, t, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] r)
            { d = Less (i, n) r = Add (s, s) }> }""")
    assert abs(int(Interface(model).draw(how=Draw(integers="extreme"))["n"])) <= 8


# How it is asked for


def test_thorough_is_an_option(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    plain = Reference.__init__

    def counted(self: Reference, *arguments: Any, **more: Any) -> None:
        seen.append(more.get("thorough", False))
        plain(self, *arguments, **more)

    monkeypatch.setattr(Reference, "__init__", counted)
    path, out = tmp_path / "a.onnx", tmp_path / "b.onnx"
    save(of("y = Abs (x)"), path)
    for arguments in (["optimize", path, "-o", out, "--thorough"], ["verify", path, out, "--thorough"]):
        done = CliRunner().invoke(commands, [str(one) for one in arguments])
        assert done.exit_code == 0, done.output
    optimize(path, verify="thorough")
    optimize(path)
    assert seen == [True, True, True, False]


def test_thorough_draws_and_takes_no_inputs(tmp_path: Any) -> None:
    model, given = of("y = Abs (x)"), {"x": np.zeros((2, 4), np.float32)}
    with pytest.raises(UsageError, match="random inputs"):
        verify(model, model, inputs=given, thorough=True)
    with pytest.raises(UsageError, match="verify takes True, False or 'thorough', not 'very'"):
        optimize(model, verify="very")  # type: ignore[arg-type]
    save(model, tmp_path / "a.onnx")
    np.savez(tmp_path / "in.npz", **given)
    for command in (["optimize"], ["verify", str(tmp_path / "a.onnx")]):
        arguments = [*command, str(tmp_path / "a.onnx"), "--thorough", "--inputs", str(tmp_path / "in.npz")]
        done = CliRunner().invoke(commands, arguments)
        assert (done.exit_code, "--thorough uses random inputs" in done.output) == (1, True)
    done = CliRunner().invoke(commands, ["optimize", str(tmp_path / "a.onnx"), "--thorough", "--no-verify"])
    assert (done.exit_code, "--no-verify" in done.output) == (1, True)
