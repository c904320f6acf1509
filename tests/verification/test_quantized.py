"""Quantized models: right results round elsewhere, wrong ones do not hide behind that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortopt.reporting import report
from ortopt.verification.comparison import OutputRow
from ortopt.verification.doubtful_outputs import STEPS_CAP, decide_by_noise, decide_by_steps
from ortopt.verification.perturbed_outputs import stepped
from ortopt.verification.quantizers import quantized_outputs, quantizers
from ortopt.verification.unrounded_ops import FORMULAS, NoFormulaError
from ortopt.verification.verify import Verification, verify
from ortopt.verification.without_rounding import unrounded
from tests.releases import needs
from tests.texts import table

RNG = np.random.default_rng(3)
WIDTH, HEADS, LENGTH = 32, 2, 6


def parsed(text: str, constants: dict[str, Any] | None = None, opset: int = 17) -> ir.Model:
    """A model from text; constants are those of its inputs that have a value here."""
    header = f'<ir_version: 9, opset_import: ["": {opset}, "com.microsoft": 1]>'
    model = ir.from_proto(onnx.parser.parse_model(f"{header} {text}"))
    for value in list(model.graph.inputs):
        if constants and value.name in constants:
            value.const_value = ir.Tensor(np.asarray(constants[value.name]), name=value.name)
            model.graph.register_initializer(value)
            model.graph.inputs.remove(value)
    return model


def compared(original: ir.Model, result: ir.Model, inputs: dict[str, Any] | None = None) -> Verification:
    """A comparison on one input set."""
    if inputs is None:
        shape = [size if isinstance(size, int) else 2 for size in original.graph.inputs[0].shape or ()]
        inputs = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    return verify(original, result, inputs=inputs, in_process=True)


# -- 4-bit weights, activations in 8 bits ------------------------------------------------------------------------------

PACKED = {
    **{f"w{name}": RNG.integers(0, 256, (WIDTH, 2, 8), np.uint8) for name in "qkvo"},
    **{f"s{name}": (RNG.random(WIDTH * 2, np.float32) / 16 + 0.02) for name in "qkvo"},
}
MASK = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)


def block(
    *,
    eps: float = 1e-5,
    scale: float = 0.25,
    scores: str = "MatMul (qh, kh)",
    mask: np.ndarray | None = None,
    norm: str = "d = Div (x, s)",
    level: int = 4,
) -> ir.Model:
    """A norm and attention."""

    def product(name: str, data: str) -> str:
        attributes = f"K = {WIDTH}, N = {WIDTH}, bits = 4, block_size = 16, accuracy_level = {level}"
        return f"com.microsoft.MatMulNBits <{attributes}> ({data}, w{name}, s{name})"

    arguments = ", ".join(f"uint8[{WIDTH},2,8] w{name}, float[{WIDTH * 2}] s{name}" for name in "qkvo")
    text = f"""main (float[N,{LENGTH},{WIDTH}] x, {arguments}, float[{HEADS},{LENGTH},{LENGTH}] mask,
            int64[4] apart, int64[3] whole, float eps, float scale) => (float[N,{LENGTH},{WIDTH}] y) {{
        p = Mul (x, x) m = ReduceMean <axes = [-1]> (p) e = Add (m, eps) s = Sqrt (e) {norm}
        q = {product("q", "d")} k = {product("k", "d")} v = {product("v", "d")}
        qr = Reshape (q, apart) kr = Reshape (k, apart) vr = Reshape (v, apart)
        qh = Transpose <perm = [0, 2, 1, 3]> (qr) kh = Transpose <perm = [0, 2, 3, 1]> (kr)
        vh = Transpose <perm = [0, 2, 1, 3]> (vr)
        a = {scores} b = Mul (a, scale) c = Add (b, mask) t = Softmax (c) o = MatMul (t, vh)
        ot = Transpose <perm = [0, 2, 1, 3]> (o) or = Reshape (ot, whole) y = {product("o", "or")} }}"""
    constants = {
        **PACKED,
        "mask": np.stack([MASK] * HEADS) if mask is None else mask,
        "apart": np.array([0, 0, HEADS, WIDTH // HEADS], np.int64),
        "whole": np.array([0, 0, WIDTH], np.int64),
        "eps": np.float32(eps),
        "scale": np.float32(scale),
    }
    return parsed(text, constants)


def one_heads_mask() -> np.ndarray:
    """The mask of which one head sees one place more than it should."""
    mask = np.stack([MASK] * HEADS)
    mask[1, 2, 3] = 0
    return mask


WRONG = {
    "a dropped scale": {"scale": 1.0},
    "a swapped operand": {"scores": "MatMul (vh, kh)"},
    "an epsilon of ten times its size": {"eps": 1e-4},
    "one head's mask": {"mask": one_heads_mask()},
    "a norm of another power": {"norm": "d = Div (x, e)"},
    "a scale that is off by one in ten thousand": {"scale": 0.25002},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rewrite_does_not_hide_behind_activations_in_8_bits(name: str) -> None:
    found = compared(block(), block(**WRONG[name]))
    assert found.status == "differs"
    assert "without rounding" in found.reason


RIGHT = {
    "nothing": {},
    "a reciprocal": {"norm": "i = Reciprocal (s) d = Mul (x, i)"},
    "another order": {"norm": "g = Sqrt (e) d = Div (x, g)", "scores": "MatMul (qh, kh)"},
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_rewrite_is_verified(name: str) -> None:
    found = compared(block(), block(**RIGHT[name]))
    assert found.status == "verified", found.reason
    assert found.quantizers == 4
    assert found.unrounded is not None
    assert found.unrounded < 1e-5


def test_steps_of_one_quantizer_are_excused_and_counted() -> None:
    """The result rounds nothing, so that every quantizer gives something else than the original's."""
    found = compared(block(), block(level=1))
    assert found.status == "verified", found.reason
    assert found.worst > 2e-3
    assert found.outputs[0].noise is not None
    assert found.worst < 1.5 * found.outputs[0].noise


def test_only_level_4_rounds() -> None:
    assert [len(list(quantizers(block(level=level)))) for level in range(5)] == [0, 0, 0, 0, 4]
    assert compared(block(level=0), block(level=0)).quantizers == 0


def test_a_float_result_may_not_be_quantized() -> None:
    assert compared(block(level=0), block(level=4)).status == "differs"


# -- one formula for each op on integers -------------------------------------------------------------------------------

SCALES = "float sx, uint8 zx, float sw, int8 zw, float sy, uint8 zy"
NUMBERS = {
    "sx": np.float32(0.02),
    "zx": np.uint8(120),
    "sw": np.float32(0.01),
    "zw": np.int8(0),
    "sy": np.float32(0.03),
    "zy": np.uint8(110),
    "w": RNG.integers(-100, 100, (8, 8)).astype(np.int8),
    "k": RNG.integers(-100, 100, (4, 3, 3, 3)).astype(np.int8),
    "b": RNG.integers(-900, 900, 4).astype(np.int32),
    "b8": RNG.integers(-900, 900, 8).astype(np.int32),
    "sb": np.float32(0.02) * np.float32(0.01),
    "f": RNG.standard_normal(8).astype(np.float32),
}
QUANTIZE = "q = QuantizeLinear (x, sx, zx)"
REAL = f"{QUANTIZE} r = DequantizeLinear (q, sx, zx)"
BACK = "y = DequantizeLinear (o, sy, zy)"
AGAIN = f"o = QuantizeLinear (n, sy, zy) {BACK}"
FLAT, IMAGE = "float[5,8] x", "float[2,3,6,6] x"
K = "kr = DequantizeLinear (k, sw, zw)"


SAME = {name: texts for name, *texts in table(Path(__file__).parent / "integer_ops.txt", "ops")}


def of_integers(name: str, number: int, *, numbers: dict[str, Any] | None = None) -> ir.Model:
    """A model spelled out (1), or with the op (2)."""
    argument, *texts = SAME[name]
    body = texts[number - 1]
    body = body if "y = " in body else f"{body} {BACK}"
    values = {**NUMBERS, **(numbers or {})}
    shapes = {"w": "int8[8,8]", "k": "int8[4,3,3,3]", "b": "int32[4]", "b8": "int32[8]", "f": "float[8]", "sb": "float"}
    others = ", ".join(f"{shape} {constant}" for constant, shape in shapes.items())
    return parsed(f"main ({argument}, {SCALES}, {others}) => (float[] y) {{ {body} }}", values)


@pytest.mark.parametrize("name", SAME)
def test_an_op_on_integers_is_what_it_stands_for(name: str) -> None:
    if name == "ConvInteger":
        needs(1, 24, "ConvInteger with int8 weights")
    found = compared(of_integers(name, 1), of_integers(name, 2))
    assert found.status == "verified", found.reason
    assert found.not_unrounded == ""
    assert found.unrounded is not None
    assert found.unrounded < 1e-5


OFF = {"sy": np.float32(0.03003), "sx": np.float32(0.02002), "sw": np.float32(0.01001), "zx": np.uint8(121)}
SEEN = [("QLinearAdd", "sy"), *((name, number) for name in ("QLinearConv", "QGemm") for number in ("sy", "sx", "sw"))]


@pytest.mark.parametrize(("name", "number"), SEEN)
def test_a_scale_that_is_off_by_a_thousandth_is_seen(name: str, number: str) -> None:
    original, result = of_integers(name, 1), of_integers(name, 2, numbers={number: OFF[number]})
    if number == "sy":  # the numbers that come out are dequantized with the same scale
        for model in (original, result):
            model.graph.outputs[0].producer().replace_input_with(1, model.graph.initializers["sx"])
    found = compared(original, result)
    assert found.status == "differs"
    assert "without rounding" in found.reason


def test_other_parameters_of_a_quantizer_and_of_its_dequantizer_are_compared_within_steps() -> None:
    """Without rounding they are the same: what differs is the rounding alone."""
    found = compared(of_integers("QLinearAdd", 1), of_integers("QLinearAdd", 2, numbers={"zx": OFF["zx"]}))
    assert found.status == "verified"
    assert found.unrounded is not None
    assert found.unrounded < 1e-5


def test_a_bias_of_floats_may_become_one_of_integers() -> None:
    floats = NUMBERS["b"] * NUMBERS["sb"] + np.float32(0.4) * NUMBERS["sb"]
    header = f"main ({IMAGE}, {SCALES}, int8[4,3,3,3] k, int32[4] b, float[4] fb) => (float[] y)"
    constants = {**NUMBERS, "fb": floats.astype(np.float32)}
    original = parsed(f"{header} {{ {REAL} {K} n = Conv (r, kr, fb) {AGAIN} }}", constants)
    result = parsed(
        f"{header} {{ {QUANTIZE} o = QLinearConv (q, sx, zx, k, sw, zw, sy, zy, b) {BACK} }}",
        constants,
    )
    found = compared(original, result)
    assert found.status == "verified", found.reason
    assert found.unrounded is not None
    assert found.unrounded < 1e-5


def test_an_output_of_quantized_integers() -> None:
    texts = [
        f"main ({FLAT}, {SCALES}) => (uint8[5,8] o) {{ {body} }}"
        for body in (
            f"{REAL} n = Mul (r, r) o = QuantizeLinear (n, sy, zy)",
            f"{QUANTIZE} o = com.microsoft.QLinearMul (q, sx, zx, q, sx, zx, sy, zy)",
            f"{QUANTIZE} o = com.microsoft.QLinearAdd (q, sx, zx, q, sx, zx, sy, zy)",
        )
    ]
    first, right, wrong = (parsed(text, NUMBERS) for text in texts)
    found = compared(first, right)
    assert found.status == "verified", found.reason
    assert found.unrounded is not None
    assert compared(first, wrong).status == "differs"


def test_integers_may_be_a_step_apart_or_as_far_as_steps_move_them() -> None:
    expected = np.array([3, 250, 17], np.uint8)
    row = OutputRow("y", worst=np.inf, agrees=False, doubtful=True)
    assert decide_by_steps(row, expected, expected + np.uint8(1), []).agrees
    assert not decide_by_steps(row, expected, expected + np.uint8(3), []).agrees
    assert decide_by_steps(row, expected, expected + np.uint8(3), [expected + np.uint8(2)]).agrees


LSTM = {
    "w": RNG.integers(-90, 90, (1, 8, 16)).astype(np.int8),
    "r": RNG.integers(-90, 90, (1, 4, 16)).astype(np.int8),
    "b": RNG.standard_normal((1, 32)).astype(np.float32),
    "sw": np.float32([0.011]),
    "sr": np.float32([0.013]),
    "zero": np.int8([3]),
    "scale": np.float32(0.02),
    "point": np.uint8(120),
    "sq": np.float32(0.01),
    "q": RNG.integers(-90, 90, (8, 24)).astype(np.int8),
    "qb": RNG.standard_normal(24).astype(np.float32),
    "mask": np.int32([5, 4]),
    "q0": np.int8(0),
    "two": np.float32(0.03),
}
KINDS = {
    **{"w": "int8[1,8,16]", "r": "int8[1,4,16]", "b": "float[1,32]", "sw": "float[1]", "sr": "float[1]"},
    **{"zero": "int8[1]", "scale": "float", "point": "uint8", "sq": "float", "q": "int8[8,24]", "qb": "float[24]"},
    **{"mask": "int32[2]", "q0": "int8", "two": "float"},
}
OTHERS = {
    "DynamicQuantizeLSTM": (
        """y, h, c = com.microsoft.DynamicQuantizeLSTM <hidden_size = 4> (x, w, r, b, , , , , sw, zero, sr, zero)""",
        """wf = Cast <to = 1> (w) rf = Cast <to = 1> (r) zf = Cast <to = 1> (zero) wz = Sub (wf, zf) rz = Sub (rf, zf)
           ws = Mul (wz, sw) rs = Mul (rz, sr) wt = Transpose <perm = [0, 2, 1]> (ws)
           rt = Transpose <perm = [0, 2, 1]> (rs) y, h, c = LSTM <hidden_size = 4> (x, wt, rt, b)""",
    ),
    "QAttention": (
        """i = QuantizeLinear (x, scale, point)
           y = com.microsoft.QAttention <num_heads = 2> (i, q, qb, scale, sq, mask, point, q0)""",
        """qf = Cast <to = 1> (q) qs = Mul (qf, sq) y = com.microsoft.Attention <num_heads = 2> (x, qs, qb, mask)""",
    ),
    "QLinearWhere": (
        """n = Neg (x) a = QuantizeLinear (x, scale, point) b2 = QuantizeLinear (n, two, point) g = Less (x, n)
           o = com.microsoft.QLinearWhere (g, a, scale, point, b2, two, point, two, point)
           y = DequantizeLinear (o, two, point)""",
        """n = Neg (x) g = Less (x, n) y = Where (g, x, n)""",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_an_op_computes_without_rounding(name: str) -> None:
    header = f"main (float[2,5,8] x, {', '.join(f'{kind} {key}' for key, kind in KINDS.items())}) => (float[] y)"
    quantized, plain = (parsed(f"{header} {{ {text} }}", LSTM) for text in OTHERS[name])
    found = compared(plain, unrounded(quantized), {"x": RNG.standard_normal((2, 5, 8)).astype(np.float32) / 2})
    assert found.status == "verified", found.reason
    assert found.worst < 1e-5


# -- what there is no formula for --------------------------------------------------------------------------------------

COUNTED = """main (float[N,8] x) => (float[N,8] y, float[N,8] z) {
    q, s, p = DynamicQuantizeLinear (x) %s d = DequantizeLinear (u, s, p) y = Relu (d) z = Neg (x) }"""


def test_an_op_without_a_formula_is_named_and_the_limit_is_the_usual_one() -> None:
    model = parsed(COUNTED % "t = Cast <to = 6> (q) b = Mod (t, t) c = Add (b, t) u = Cast <to = 2> (c)", opset=17)
    with pytest.raises(NoFormulaError, match="Mod"):
        unrounded(model)
    found = compared(model, model, {"x": np.abs(RNG.standard_normal((3, 8))).astype(np.float32) + 1})
    assert found.status == "verified"
    assert found.unrounded is None
    assert "Mod" in found.not_unrounded


@pytest.mark.parametrize("op", ["Identity", "Transpose <perm = [0, 1]>", "Flatten"])
def test_ops_that_take_integers_and_floats_alike(op: str) -> None:
    model = parsed(COUNTED % f"u = {op} (q)")
    found = compared(model, model)
    assert found.unrounded == 0
    assert quantized_outputs(model) == {"y"}


def test_no_steps_excuse_what_is_beyond_the_cap() -> None:
    row = OutputRow("y", worst=1.01 * STEPS_CAP, mean=0.1, tolerance=2e-2)
    assert not decide_by_noise(row, 100.0, 100.0, cap=STEPS_CAP).agrees
    assert decide_by_noise(OutputRow("y", worst=0.9, mean=0.2, tolerance=2e-2), 100.0, 100.0, cap=STEPS_CAP).agrees
    assert not decide_by_noise(OutputRow("y", worst=0.9, mean=0.3, tolerance=2e-2), 100.0, 100.0, cap=STEPS_CAP).agrees


def test_a_copy_that_steps_keeps_the_original() -> None:
    model = block()
    before = ir.to_proto(model).SerializeToString()
    stepped(model, 0)
    unrounded(model)
    assert ir.to_proto(model).SerializeToString() == before


def test_every_formula_is_tested() -> None:
    tested = {name.partition(",")[0] for name in (*SAME, *OTHERS)} | {
        "Cast",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
    }
    tested |= {"MatMulInteger", "QuantizeLinear"}
    assert {op for _, op in FORMULAS} <= tested


OF_NAN = """main (float[N,8] x, float s, uint8 z, float o) => (float[N,8] y, float[N,8] p) {{
    n = IsNaN (x) w = Where (n, o, x) q = QuantizeLinear ({}, s, z) y = DequantizeLinear (q, s, z) p = Neg ({}) }}"""


@pytest.mark.parametrize(("changed", "status"), [(("w", "x"), "verified"), (("x", "w"), "differs")])
def test_nan_is_compared_where_no_quantizer_makes_it_a_number(
    changed: tuple[str, str], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortopt.verification.input_search._FURTHER_SECONDS", 10.0)
    constants = {"s": np.float32(0.05), "z": np.uint8(100), "o": np.float32(1)}
    models = [parsed(OF_NAN.format(*names), constants) for names in (("x", "x"), changed)]
    found = verify(*models, in_process=True)
    assert found.status == status, found.reason


COMPUTED = """main (float[N,8] x, float s, uint8 z, float[8] k, float[8] d) => (float[N,8] y) {{
    i = QuantizeLinear (x, s, z) f = DequantizeLinear (i, s, z) {} y = Add (f, {}) }}"""


@pytest.mark.parametrize("source", ["c = Neg (k)", "h = Shape <start = 1> (x) t = Expand (k, h) c = Neg (t)"])
def test_a_quantized_constant_is_rounded_however_it_is_computed(source: str) -> None:
    """Folding rounds it once and for all."""
    step, zero = np.float32(0.05), np.uint8(100)
    numbers = RNG.standard_normal(8).astype(np.float32)
    rounded = (np.rint(-numbers / step) * step).astype(np.float32)
    constants = {"s": step, "z": zero, "k": numbers, "d": rounded}
    quantized = f"{source} q = QuantizeLinear (c, s, z) e = DequantizeLinear (q, s, z)"
    models = [parsed(COMPUTED.format(*parts), constants) for parts in ((quantized, "e"), ("", "d"))]
    found = compared(*models)
    assert found.status == "verified", found.reason
    assert found.unrounded is not None
    assert found.unrounded < 1e-6


GUARDED = """main (float[N,8] x, float s, uint8 z, float o) => (float[N,8] y) {{
    a = Abs (x) b = Neg (a) c = Log (b) q = QuantizeLinear (c, s, z) d = DequantizeLinear (q, s, z) {} }}"""


def test_what_is_dequantized_is_a_number_without_rounding_too() -> None:
    """Integers are never NaN: a guard of what they stand for does nothing."""
    constants = {"s": np.float32(0.05), "z": np.uint8(100), "o": np.float32(1)}
    guarded, plain = (
        parsed(GUARDED.format(end), constants) for end in ("n = IsNaN (d) y = Where (n, o, d)", "y = Identity (d)")
    )
    found = compared(guarded, plain)
    assert found.status == "verified", found.reason
    assert found.unrounded == 0


def test_the_report_has_one_line_about_rounding() -> None:
    exact, moved = compared(block(), block(**RIGHT["nothing"])), compared(block(), block(level=1))
    assert (
        report.of_quantizers(report.plain(exact)) == "4 nodes round to few bits; without rounding, the worst error is 0"
    )
    assert "whose steps move output 'y' by up to 0.0" in report.of_quantizers(report.plain(moved))
    assert report.of_quantizers(report.plain(compared(block(level=0), block(level=0)))) == ""
    assert report.of_quantizers(None) == ""
