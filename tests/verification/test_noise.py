"""Between what is surely rounding and what is surely wrong, the original's own noise decides."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession

from ortopt.patterns.interpolation import Interpolation
from ortopt.verification.comparison import Comparison, OutputRow
from ortopt.verification.doubtful_outputs import decide_by_matches, decide_by_noise, zeros_cancel_out
from ortopt.verification.draws import Draw, additional_draws
from ortopt.verification.inputs import Interface
from ortopt.verification.noise import jittered, jittered_inputs, widened, widened_inputs
from ortopt.verification.tolerances import LIMITS, TOLERANCES
from ortopt.verification.verify import Verification, verify
from tests.releases import since

SINGLE, HALF = TOLERANCES[ir.DataType.FLOAT], TOLERANCES[ir.DataType.FLOAT16]


def parsed(text: str, opset: int = 17) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}'))


def compared(original: str, result: str, inputs: dict[str, np.ndarray] | None = None) -> Verification:
    return verify(parsed(original), parsed(result), inputs=inputs, in_process=True)


CANCELLING = """main (float[N,64] x) => (float[N,64] y) {
    big = Constant <value_float = 3000.0> () a = Add (x, big) y = Sub (a, big) }"""
SCALED = """main (float[N,64] x) => (float[N,64] y) {{ c = Constant <value_float = {}> () y = Mul (x, c) }}"""


@pytest.mark.parametrize(("times", "status"), [(1.0, "verified"), (1.0002, "verified"), (1.005, "differs")])
def test_a_noisy_model_may_differ_by_its_noise_and_no_more(times: float, status: str) -> None:
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)}
    found = compared(CANCELLING, SCALED.format(times), inputs)
    assert found.status == status, found.reason
    noise = found.outputs[0].noise
    assert noise is not None
    assert 3e-5 < noise < 3e-4


def test_a_model_without_noise_may_not() -> None:
    """An error that was let pass when tolerances were fixed."""
    found = compared(SCALED.format(2.0), SCALED.format(2.00018))
    assert found.status == "differs"
    assert found.worst < SINGLE
    assert "the model's own noise is" in found.reason


def test_a_copy_moves_what_a_kernel_gives_by_as_much_as_it_errs() -> None:
    """At -4.5, what is left of 1 + erf(x) is all error; a zero is exact, and nothing leaves the kernel's range."""
    model = parsed("""main (float[N,64] x) => (float[N,64] y, float[N,64] e, float[N,64] s, double[N,64] d)
            <float root = {1.4142135}, float one = {1}> {
        scaled = Div (x, root) e = Erf (scaled) y = Add (one, e) s = Sigmoid (x)
        wide = Cast <to = 11> (x) d = Tanh (wide) }""")
    x = np.linspace(-40, 40, 256, dtype=np.float32).reshape(4, 64)
    x[0], x[1, 0] = -4.5, 0
    plain, moved = (
        dict(zip("yesd", ReferenceEvaluator(ir.to_proto(one)).run(None, {"x": x}), strict=True))
        for one in (model, jittered(model, 0))
    )
    left = np.abs(moved["y"][0] / plain["y"][0] - 1)
    assert 1e-3 < left.max() < 2e-2
    assert np.array_equal(moved["d"], plain["d"])
    assert moved["s"].min() >= 0
    assert moved["e"][1, 0] == 0
    assert moved["s"].max() == moved["e"].max() == 1
    assert moved["e"].min() == -1


@pytest.mark.parametrize("length", [64, 100])
@pytest.mark.parametrize(
    ("text", "opset"),
    [
        ("main (float[8,LENGTH,1] x) => (float[A,B,C] y) { y = DFT <axis = 1> (x) }", 17),
        ("main (float[8,LENGTH,1] x) => (float[A,B,C] y) <int64 a = {1}> { y = DFT (x, , a) }", 20),
        ("main (float[8,LENGTH,1] x) => (float[A,B,C] y) { y = DFT (x) }", 20),
        ("main (float[8,70,1] x) => (float[A,B,C] y) <int64 n = {LENGTH}> { y = DFT (x, n) }", 20),
        pytest.param(
            "main (float[8,HALF,2] x) => (float[A,B,C] y) { y = DFT <inverse = 1, onesided = 1> (x) }",
            20,
            marks=since(1, 27, "a right DFT from half of the frequencies"),
        ),
    ],
)
def test_a_transform_moves_by_as_much_as_its_kernel_errs(text: str, opset: int, length: int) -> None:
    """One of a length that is a power of two errs as other kernels do."""
    model = parsed(text.replace("LENGTH", str(length)).replace("HALF", str(length // 2 + 1)), opset)
    shape = model.graph.inputs[0].shape
    assert shape is not None
    x = np.random.default_rng(0).standard_normal(shape.numpy()).astype(np.float32)
    plain, moved = (
        InferenceSession(ir.to_proto(one).SerializeToString()).run(None, {"x": x})[0]
        for one in (model, jittered(model, 0))
    )
    move = np.abs(moved - plain).max() / np.abs(plain).max() * 2**24
    assert move == 0 if length == 64 else 50 < move < 300


def test_a_transform_moves_no_row_by_the_scale_of_another_or_of_its_mean() -> None:
    model = parsed("main (float[2,100,1] x) => (float[A,B,C] y) { y = DFT <axis = 1> (x) }")
    x = np.random.default_rng(0).standard_normal((2, 100, 1)).astype(np.float32)
    x[0] *= 1e6
    x[1] += 1e3
    plain, moved = (
        InferenceSession(ir.to_proto(one).SerializeToString()).run(None, {"x": x})[0]
        for one in (model, jittered(model, 0))
    )
    others = plain[:, 1:]
    move = np.abs(moved - plain).max(axis=(1, 2)) / np.abs(others).max(axis=(1, 2)) * 2**24
    assert np.all((move > 50) & (move < 300))


LAYERS = 24


def half(bias: float) -> ir.Model:
    """A deep model of float16: rounding grows from layer to layer."""
    layers = " ".join(
        f"m{i} = MatMul (h{i}, w{i % 3}) n{i} = LayerNormalization (m{i}, one) h{i + 1} = Add (n{i}, h{i})"
        for i in range(LAYERS)
    )
    weights = ", ".join(f"float16[16,16] w{i}" for i in range(3))
    model = parsed(f"""main (float16[N,16] x, {weights}, float16[16] one, float16 b) => (float16[N,16] y) {{
        h0 = Add (x, b) {layers} y = Identity (h{LAYERS}) }}""")
    rng = np.random.default_rng(5)
    values = [*(rng.standard_normal((16, 16)) / 4 for _ in range(3)), np.ones(16), np.array(bias)]
    for value, array in zip(model.graph.inputs[1:], values, strict=True):
        value.const_value = ir.tensor(array.astype(np.float16), name=value.name)
        model.graph.register_initializer(value)
    del model.graph.inputs[1:]
    return model


@pytest.mark.parametrize(("bias", "status"), [(0.0, "verified"), (0.05, "differs")])
def test_a_deep_model_of_half_precision(bias: float, status: str) -> None:
    inputs = {"x": np.random.default_rng(1).standard_normal((2, 16)).astype(np.float16)}
    found = verify(half(0.0), jittered(half(bias), 99), inputs=inputs, in_process=True)
    assert found.status == status, found
    assert found.outputs[0].noise
    if status == "verified":
        assert found.worst > LIMITS[HALF].sure
    else:
        assert found.worst < LIMITS[HALF].cap, "a fixed tolerance would do"


@pytest.mark.parametrize("usual", LIMITS)
def test_no_noise_excuses_what_is_beyond_the_cap(usual: float) -> None:
    cap = LIMITS[usual].cap
    row = OutputRow("y", worst=1.01 * cap, mean=cap, tolerance=usual)
    assert not decide_by_noise(row, noise=100.0, mean=100.0).agrees
    assert decide_by_noise(
        OutputRow("y", worst=0.99 * cap, mean=cap / 2, tolerance=usual), noise=100.0, mean=100.0
    ).agrees


def test_an_error_everywhere_is_not_the_noise_of_a_few() -> None:
    row = OutputRow("y", worst=5e-3, mean=4e-3, tolerance=SINGLE)
    found = decide_by_noise(row, noise=1e-3, mean=1e-5)
    assert not found.agrees
    assert "on average" in found.detail


NEAR = 1000.0


def choice(first: str) -> str:
    return f"""main (float[N,1] u, float[N,1] v) => (int64[N] i, float[N,2] both) {{
        c = Constant <value_float = 1.0000002> () a = {first} both = Concat <axis = 1> (a, v)
        i = ArgMax <axis = 1, keepdims = 0> (both) }}"""


@pytest.mark.parametrize(("rows", "status"), [(1, "verified"), (40, "differs")])
def test_an_index_may_differ_where_the_original_is_undecided(rows: int, status: str) -> None:
    u, v = (np.linspace(start, start + 5, 400, dtype=np.float32).reshape(-1, 1) for start in (1, 2))
    u[7 : 7 + rows] = np.nextafter(v[7 : 7 + rows], np.float32(0))  # the larger by one unit, until u is multiplied
    found = compared(choice("Identity (u)"), choice("Mul (u, c)"), {"u": u, "v": v})
    assert found.status == status
    assert found.outputs[0].name == "i"


def test_an_index_may_not_differ_elsewhere() -> None:
    u, v = (np.linspace(start, start + 5, 400, dtype=np.float32).reshape(-1, 1) for start in (1, 2))
    u[7] = v[7] - np.float32(1e-3)
    found = compared(choice("Identity (u)"), choice("Mul (u, c)").replace("1.0000002", "1.001"), {"u": u, "v": v})
    assert found.status == "differs"
    assert "1 of 400 elements differ, the first at [7]: 0 instead of 1" in found.reason


def test_copies_explain_only_what_they_give() -> None:
    expected, got = np.array([1, 2, 3]), np.array([1, 2, 4])
    row = Comparison().of("i", "tensor(int64)", expected, got)
    assert row.doubtful
    assert decide_by_matches(row, expected, got, [np.array([1, 2, 4])]).agrees
    assert not decide_by_matches(row, expected, got, [np.array([1, 2, 5]), np.array([1, 9, 3])]).agrees
    assert not decide_by_matches(row, expected, got, []).agrees
    assert not decide_by_matches(row, expected, got, [np.array([1, 2])]).agrees


# The copies


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_jitter_is_one_unit_in_the_last_place(dtype: type) -> None:
    limits = ml_dtypes.finfo(dtype)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, limits.max, -limits.max, limits.smallest_normal])
    plain = np.concatenate([special, np.linspace(-3, 3, 200)]).astype(dtype)
    moved = jittered_inputs({"x": plain}, 0)["x"]
    assert moved.dtype == plain.dtype
    assert (moved[:8].view(np.uint8) == plain[:8].view(np.uint8)).all()
    ratio = moved[8:].astype(np.float64) / plain[8:].astype(np.float64)
    assert (ratio != 1).all()
    assert (abs(ratio - 1) <= float(limits.eps) * 1.001).all()
    assert {bool(one > 1) for one in ratio} == {True, False}


def test_what_is_small_or_no_float_is_not_moved() -> None:
    inputs = {"a": np.ones(8, np.float32), "b": np.arange(100), "c": [np.ones(50, np.float32)]}
    moved = jittered_inputs(inputs, 0)
    assert moved["a"] is inputs["a"]
    assert moved["b"] is inputs["b"]
    assert (moved["c"][0] != 1).all()


def test_constants_are_moved_in_subgraphs_and_functions_too() -> None:
    values = ", ".join(["1"] * 16)
    constant = f"Constant <value = float[16] {{{values}}}> ()"
    text = f"""main (float[16] x, bool c) => (float[16] y) <float[16] w = {{{values}}}> {{
        a = Add (x, w)
        b = If (c) <then_branch = t () => (float[16] p) {{ k = {constant} p = Add (a, k) }},
                    else_branch = e () => (float[16] q) {{ q = Neg (a) }}>
        y = me.f (b) }}
        <domain: "me", opset_import: ["": 17]> f (u) => (v) {{ m = {constant} v = Mul (u, m) }}"""
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17, "me": 1]> {text}'))
    before = ir.to_proto(model).SerializeToString()
    copy = jittered(model, 3)
    assert ir.to_proto(model).SerializeToString() == before
    assert (copy.graph.initializers["w"].const_value.numpy() != 1).all()
    inner = [node for node in copy.graph.all_nodes() if node.op_type == "Constant"]
    called = [node for function in copy.functions.values() for node in function if node.op_type == "Constant"]
    for node in (*inner, *called):
        assert (node.attributes["value"].as_tensor().numpy() != 1).all()
    assert len(inner) == len(called) == 1


@pytest.mark.parametrize(
    ("mode", "scales", "moves"),
    [
        ("cubic", (1, 1, 3, 2), (3,)),
        ("linear", (1, 1, 2, 5), (5,)),
        ("nearest", (1, 1, 3, 3), ()),
        ("cubic", (1.5, 3.5), ()),
    ],
)
def test_scales_of_interpolation_are_moved_where_places_are_rounded(
    mode: str, scales: tuple[float, ...], moves: tuple[int, ...]
) -> None:
    """By whole numbers that are no powers of two; other scales choose elements or sizes, or round nothing."""
    text = ", ".join(f"{scale}" for scale in scales)
    axes = ", ".join(["N"] * len(scales))
    model = parsed(f"""main (float[{axes}] x) => (float[] y) <float[{len(scales)}] s = {{{text}}}> {{
        y = Resize <mode = "{mode}"> (x, , s) }}""")
    (node,) = (node for node in jittered(model, 0).graph if node.op_type == "Resize")
    moved = ir.convenience.get_const_tensor(node.inputs[2]).numpy()
    expected = [np.nextafter(np.float32(one), np.float32(9)) if one in moves else np.float32(one) for one in scales]
    assert moved.tolist() == [float(one) for one in expected]


@pytest.mark.parametrize(("coefficient", "status"), [(-0.75, "verified"), (-0.74, "differs")])
def test_rounded_places_excuse_no_more_than_themselves(coefficient: float, status: str) -> None:
    """Phases are nearer to the exact result than the kernel; a result that is off by more is as wrong as ever."""
    head = "<float[4] s = {1, 1, 3, 3}, float low = {0}, float high = {1}"
    original = f"""main (float[1,1,80,80] x) => (float[1,1,G,V] y) {head}> {{
        r = Resize <mode = "cubic"> (x, , s) y = Clip (r, low, high) }}"""
    weights = ", ".join(f"{weight:.9g}" for weight in _phases(coefficient).reshape(-1).tolist())
    result = f"""main (float[1,1,80,80] x) => (float[1,1,G,V] y) {head}, int64[8] p = {{0, 0, 2, 2, 0, 0, 2, 2}},
        float[9,1,5,5] w = {{{weights}}}> {{
        e = Pad <mode = "edge"> (x, p) c = Conv (e, w)
        r = DepthToSpace <blocksize = 3, mode = "CRD"> (c) y = Clip (r, low, high) }}"""
    numbers = 100 * np.random.default_rng(0).standard_normal((1, 1, 80, 80)).astype(np.float32)
    assert compared(original, result, {"x": numbers}).status == status


def _phases(coefficient: float) -> np.ndarray:
    rows = Interpolation("cubic", "half_pixel", coefficient, excludes=False).phases(3).astype(np.float64)
    return np.einsum("ai,bj->abij", rows, rows).astype(np.float32)


def test_a_wider_copy_computes_wider() -> None:
    model = parsed("""main (bfloat16[N] x) => (bfloat16[N] y) <bfloat16[2] w = {1, 2}> {
        a = Mul (x, w) f = Cast <to = 1> (a) y = Cast <to = 16> (f) }""")
    copy = widened(model)
    assert copy is not None
    assert copy.graph.inputs[0].dtype == ir.DataType.FLOAT
    assert copy.graph.initializers["w"].const_value.numpy().dtype == np.float32
    assert [node.attributes["to"].as_int() for node in copy.graph if node.op_type == "Cast"] == [1, 1]
    given = widened_inputs({"x": np.ones(2, ml_dtypes.bfloat16)}, copy)
    assert given["x"].dtype == np.float32
    assert widened(parsed("main (int64[N] x) => (int64[N] y) { y = Neg (x) }")) is None


def test_random_outputs_are_told_from_the_others() -> None:
    text = """main (float[N,3] x) => (float[N,3] r, float[N,3] y, float[N,3] s) {{
        n = RandomNormalLike (x) r = Neg (n) y = {} (x) k = Constant <value = bool {{1}}> ()
        s = If (k) <then_branch = t () => (float[N,3] p) {{ p = Add (x, n) }},
                    else_branch = e () => (float[N,3] q) {{ q = Neg (x) }}> }}"""
    found = compared(text.format("Relu"), text.format("Relu"))
    assert (found.status, found.random, found.reason) == ("verified", False, "")
    model = parsed(text.format("Relu"), opset=10)
    early = verify(model, model, in_process=True)
    assert (early.status, early.random) == ("verified", True)
    assert early.reason == "not shown: 'r', 's' (random, so compared by dtype and shape only)"
    wrong = compared(text.format("Relu"), text.format("Neg"))
    assert (wrong.status, wrong.worst_output) == ("differs", "y")


def test_a_result_must_take_what_has_no_elements() -> None:
    result = """main (float[N,4] x) => (float[N,4] y) {
        k = Constant <value_int = 0> () f = Gather (x, k) d = Sub (f, f) y = Add (x, d) }"""
    found = compared("main (float[N,4] x) => (float[N,4] y) { y = Identity (x) }", result)
    assert found.status == "differs"
    assert "the original runs where 'N' is 0, the result does not" in found.reason
    assert compared(result, result).status == "verified"  # a model that fails on 0 itself is not asked


def test_a_zero_of_the_other_sign_is_a_difference_unless_copies_have_such_too() -> None:
    row = Comparison().of("y", "tensor(float)", np.float32([0.0, -0.0, 1.0]), np.float32([-0.0, -0.0, 1.0]))
    assert (row.agrees, row.doubtful, row.zeros, row.first_zero) == (False, True, 1, (0,))
    assert row.detail == "a zero has the other sign at [0]"
    assert not decide_by_noise(row, 0.0, 0.0).agrees
    assert decide_by_noise(row, 0.0, 0.0, zeros=1).agrees
    lenient = Comparison(rtol=0.0, atol=0.0).of("y", "tensor(float)", np.float32([0.0]), np.float32([-0.0]))
    assert lenient.agrees, "numpy's allclose knows one zero"


@pytest.mark.parametrize(
    ("made", "status"),
    [("k = Abs (z) y = Identity (k)", "verified"), ("k = Abs (z) y = Neg (k)", "differs"), ("y = Neg (z)", "differs")],
)
def test_zeros_that_no_rounding_turns_are_refused(made: str, status: str) -> None:
    model = "main (float[N,4] x) => (float[N,4] y) {{ o = Sub (x, x) z = Abs (o) {} }}"
    found = compared(model.format("y = Identity (z)"), model.format(made))
    assert found.status == status
    assert found.outputs[0].zeros == 8 * (status == "differs")


def test_rtol_and_atol_are_those_of_numpy() -> None:
    expected, got = np.float32([1, 1000, 0]), np.float32([1.001, 1001, 1e-4])
    for rtol, atol in ((1e-2, 1e-3), (2e-3, 0.0), (0.0, 2.0), (1e-2, 0.0)):
        row = Comparison(rtol=rtol, atol=atol).of("y", "tensor(float)", expected, got)
        assert row.agrees is bool(np.allclose(got, expected, rtol, atol)), (rtol, atol)
        assert not row.doubtful


SIGNS = {
    "negative numbers": "a = Abs (n) y = Mul (n, a)",
    "large numbers": "a = Min (n, hundred) y = Mul (n, a)",
}


@pytest.mark.parametrize("what", SIGNS)
def test_what_natural_integers_hide_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortopt.verification.input_search._FURTHER_SECONDS", 10.0)
    model = "main (int64[N,20] n) => (int64[N,20] y) <int64[1] hundred = {{100}}> {{ {} }}"
    original = model.format("k = Identity (n) y = Mul (n, k)")
    assert compared(original, model.format(SIGNS[what])).status == "differs"
    assert compared(original, original).input_sets == 5


def test_signed_integers_stay_within_tables_and_among_sizes() -> None:
    model = parsed(
        """main (float[5,4] table, int64[N,20] ids, int32[N,20] n, int64[3] shape, uint16[N,20] u,
            int64[N,9] attention_mask) => (float[N,20,4] y) { y = Gather (table, ids) }"""
    )
    drawn = Interface(model).draw(how=Draw(integers="signed"))
    assert (drawn["ids"].min(), drawn["ids"].max()) == (-5, 4)
    assert drawn["n"].min() < -300
    assert drawn["n"].max() > 300
    assert np.abs(drawn["shape"]).max() <= 8
    assert drawn["u"].max() > 300
    assert set(drawn["attention_mask"].ravel().tolist()) <= {0, 1}


def test_a_row_tells_all() -> None:
    row = Comparison().of("y", "tensor(float)", np.float32([[3, 0], [4, 0]]), np.float32([[3, 0], [5, 0]]))
    assert (row.absolute, row.relative, row.index, row.expected, row.got) == (1.0, 0.25, (1, 0), "4", "5")
    assert math.isclose(row.worst, 1 / 4)


@since(1, 23, "Cast from and to int4")
def test_strings_beside_types_that_numpy_has_not() -> None:
    model = parsed(
        """main (bfloat16[N] x, string[N] s, float[N] f, int4[N] q)
            => (bfloat16[N] y, string[N] t, int4[N] i, int8[N] j) {
        y = Identity (x) t = Identity (s) i = Cast <to = 22> (f) j = Cast <to = 3> (q) }""",
        opset=21,
    )
    found = verify(model, model, in_process=True)
    assert found.status == "verified", found.reason
    assert [row.name for row in found.outputs] == ["y", "t", "i", "j"]


def test_what_the_specification_leaves_undefined_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime infers something beside a 0 under allowzero; an equivalent target may not."""
    monkeypatch.setattr("ortopt.verification.input_search._FURTHER_SECONDS", 10.0)
    head = "main (float[N,8] x) => (float[N,2,4] y)"
    original = f"""{head} {{ s = Shape <end = 1> (x) r = Constant <value_ints = [-1, 4]> ()
        t = Concat <axis = 0> (s, r) y = Reshape <allowzero = 1> (x, t) }}"""
    result = f"{head} {{ t = Constant <value_ints = [0, -1, 4]> () y = Reshape (x, t) }}"
    found = compared(original, result)
    assert (found.status, found.input_sets) == ("verified", 6)
    assert compared(result, result).input_sets == 6


CONSTANTS = """one = Constant <value_ints = [1]> () two = Constant <value_ints = [2]> ()
    six = Constant <value_float = 6.0> ()"""
HIDDEN = {
    "more than two rows": "s = Shape <end = 1> (x) b = Less (two, s) c = Cast <to = 1> (b) y = Add (x, c)",
    "one size of two is 1": """s = Shape (x) b = Equal (one, s) c = Cast <to = 1> (b)
        h = ReduceMax <keepdims = 0> (c) l = ReduceMin <keepdims = 0> (c) d = Sub (h, l) y = Add (x, d)""",
    "no columns": "m = Neg (one) s = Shape <start = 1> (x) t = Concat <axis = 0> (m, s) y = Reshape (x, t)",
    "large numbers": "y = Clip (x, , six)",
    "large negative numbers": "l = Neg (six) y = Clip (x, l)",
    "zeros": "b = Cast <to = 9> (x) z = Not (b) c = Cast <to = 1> (z) y = Add (x, c)",
}


@pytest.mark.parametrize("what", HIDDEN)
def test_what_natural_inputs_hide_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong for sizes, or for numbers, that the first input sets do not have."""
    monkeypatch.setattr("ortopt.verification.input_search._FURTHER_SECONDS", 10.0)
    model = "main (float[N,M] x) => (float[N,M] y) {{ {} {} }}"
    original = model.format(CONSTANTS, "y = Identity (x)")
    assert compared(original, model.format(CONSTANTS, HIDDEN[what])).status == "differs"
    found = compared(original, original)
    assert (found.status, found.input_sets) == ("verified", 8)


def test_half_precision_is_given_no_large_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would overflow where a result that is computed otherwise does not."""
    monkeypatch.setattr("ortopt.verification.input_search._FURTHER_SECONDS", 10.0)
    interface = Interface(parsed("main (float16[N] x) => (float16[N] y) { y = Neg (x) }"))
    for wide in (False, True):
        largest = max(
            float(np.abs(interface.draw(how=how)["x"]).max()) for how in additional_draws(fine=wide, symbols=1)
        )
        assert (largest > 4) is wide
    cube = "main (float16[N] x) => (float16[N] y) { s = Mul (x, x) c = Mul (s, s) d = Mul (c, c) y = Mul (d, d) }"
    found = compared(cube, cube)
    assert (found.status, found.input_sets) == ("verified", 6), (
        "the natural one, of one element, of none, of another size, of halves, with NaN"
    )


def test_the_sign_of_a_sum_that_cancels_out_means_nothing() -> None:
    head = "main (float[N,2] x) => (float[N,1] y) <float[1] minus = {-1}"
    original = f"{head}, float[2,1] w = {{1, -1}}> {{ s = MatMul (x, w) y = Mul (s, minus) }}"
    result = f"{head}, float[2,1] w = {{-1, 1}}> {{ y = MatMul (x, w) }}".replace("<float[1] minus = {-1}, ", "<")
    given = {"x": np.array([[1.3, 1.3]] + [[1, 2.7]] * 15, np.float32)}
    assert compared(original, result, inputs=given).status == "verified"
    zeros = {"x": np.array([[0, 0]] + [[1, 2.7]] * 15, np.float32)}
    assert compared(original, result, inputs=zeros).status == "differs", "these zeros are no rounding"


@pytest.mark.parametrize(
    ("others", "cancelled"),
    [
        ([[1e-9, 0.0]], True),
        ([[0.0, 1e-9]], False),
        ([[-0.0, 0.0]], True),
        ([[0.0, 0.0], [-1e-9, 0.0]], True),
        ([], False),
    ],
)
def test_zeros_that_cancel_out_move_with_rounding(others: list[list[float]], cancelled: bool) -> None:
    expected, got = np.float32([0.0, 0.0]), np.float32([-0.0, 0.0])
    assert zeros_cancel_out(expected, got, [np.float32(one) for one in others]) is cancelled
    assert not zeros_cancel_out([expected], [got], [])


def test_where_inputs_hold_many_zeros_their_signs_do_not_count() -> None:
    """Whole sums are of zeros then, as no sum of drawn numbers is."""
    head = "main (float[N,2] x) => (float[N,1] y) <float[1] minus = {-1}"
    original = f"{head}, float[2,1] w = {{5, 6}}> {{ s = MatMul (x, w) y = Mul (s, minus) }}"
    result = f"{head}, float[2,1] w = {{-5, -6}}> {{ y = MatMul (x, w) }}".replace("<float[1] minus = {-1}, ", "<")
    found = verify(parsed(original), parsed(result), sizes={"N": 50}, in_process=True)
    assert found.status == "verified"
    exact = "main (float[N] x) => (float[N] y) {{ {} }}"
    assert compared(exact.format("z = Sub (x, x) y = Neg (z)"), exact.format("y = Sub (x, x)")).status == "differs"
