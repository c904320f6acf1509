"""Another rounding may show as another last digit, and never as another integer: asked of every reordered pass.

The examples of each pass are put on a path from integers to a discrete step: its float inputs are roots of integers,
its results are converted to integers. A root is no whole number, so that sums and products of matrices end the path;
what they do to whole numbers is asked apart.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ortopt import GraphTransformer, RewriteRule, optimize, registry
from ortopt.context import EXACT_PATH
from ortopt.errors import RegistrationError
from ortopt.graph.match import inputs, producer
from ortopt.manager import GraphTransformerManager
from ortopt.options import Numerics
from ortopt.rule import Forwarded
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import all_fusions, check_keeps, check_rewrites, parse, run
from ortopt.transformer import Context
from tests.all_passes.pass_examples import examples
from tests.sessions import unoptimized
from tests.texts import table

FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}

REORDERED = sorted(
    kind.name
    for kind in registry.installed()
    if kind.numerics in (Numerics.REORDERED, Numerics.BOUNDED, Numerics.FINITE)
    and kind.__module__.startswith("ortopt.")
    and kind.name != "group_fusion"
)


CASES = Path(__file__).parent / "cases" / "rounding.txt"
ENDS_THE_PATH = dict(table(CASES, "end"))
"""Passes whose rewrites are right here too, with what ends the path."""

PARTLY = dict(table(CASES, "partly"))
"""Passes that give values on the path in some examples, and end it in others."""

AT_ONE_RESULT = {"embed_layer_norm_fusion", "skip_layer_norm_fusion", "skip_rms_norm_fusion"}
"""Passes whose kernel gives the sum too: that is on the path, and the normalized value is not."""


def on_a_path(model: ModelProto, every: bool, whole: bool = False) -> ModelProto | None:
    """A model whose float inputs, or only the first, come from integers, and whose float results become integers.

    Args:
        model: The model.
        every: Whether all of its float inputs do.
        whole: Whether they are integers, and not their roots.
    """
    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph)
    constants = {tensor.name for tensor in graph.initializer}
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    for value in graph.input:
        kind = value.type.tensor_type.elem_type
        if value.name in constants or kind not in FLOATS or (before and not every):
            continue
        converted = value.name if whole else f"{value.name}_squared"
        before.append(helper.make_node("Cast", [f"{value.name}_whole"], [converted], to=kind))
        if not whole:
            before.append(helper.make_node("Sqrt", [converted], [value.name]))
        value.name = f"{value.name}_whole"
        value.type.tensor_type.elem_type = TensorProto.INT32
    for value in graph.output:
        if value.type.tensor_type.elem_type not in FLOATS:
            continue
        after.append(helper.make_node("Cast", [value.name], [f"{value.name}_whole"], to=TensorProto.INT64))
        value.name = f"{value.name}_whole"
        value.type.tensor_type.elem_type = TensorProto.INT64
    if not before or not after:
        return None
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    made = ModelProto()
    made.CopyFrom(model)
    made.graph.CopyFrom(graph)
    return made


@pytest.mark.parametrize("name", REORDERED)
def test_a_pass_between_integers_and_integers(name: str) -> None:
    kept = rewritten = 0
    for model, more in examples(name):
        options = more.get("options") or all_fusions(more.get("target", "ort"))
        loaded = load(model)
        alone, _ = run(name, loaded, level=more.get("level"), options=options)
        if not alone:
            continue
        between = on_a_path(model, every=name not in AT_ONE_RESULT)  # their parameters must be constants
        if between is None:
            continue
        changed, explanation = run(name, load(between), level=more.get("level"), options=options)
        refused = any(EXACT_PATH in refusal.reason for refusal in explanation.refusals)
        kept += refused
        rewritten += changed and not refused
        assert changed or refused, f"neither rewritten nor refused so: {explanation.refusals}"
    if name in AT_ONE_RESULT or name in PARTLY:
        assert kept and rewritten, f"{kept} kept, {rewritten} rewritten"
    elif name in ENDS_THE_PATH:
        assert rewritten and not kept, f"{kept} kept, {rewritten} rewritten: {ENDS_THE_PATH[name]}"
    else:
        assert kept, "nothing was refused"
        assert not rewritten, "it was rewritten: does what it gives end the path?"


I300 = np.arange(300, dtype=np.int32)

SCALINGS = {
    "the quotient and the product": "x = Cast<to = 1> (i) d = Div (x, three) e = Mul (d, seven)",
    "through layout": """
        x = Cast<to = 1> (i) u = Unsqueeze (x, axis) d = Div (u, three) t = Transpose<perm = [1, 0]> (d)
        m = Mul (t, seven) v = Transpose<perm = [1, 0]> (m) e = Squeeze (v, axis)""",
    "a reciprocal": "x = Cast<to = 1> (i) o = Add (x, one) r = Div (one, o) e = Mul (r, x)",
    "a power": "x = Cast<to = 1> (i) o = Add (x, one) r = Pow (o, minus) e = Mul (r, x)",
    "sums": "x = Cast<to = 1> (i) d = Add (x, three) e = Add (d, small)",
    "half floats": "x = Cast<to = 10> (i) d = Div (x, threeh) h = Mul (d, sevenh) e = Cast<to = 1> (h)",
}
STEPS = {
    "Cast": "y = Cast<to = 7> (e)",
    "Floor": "f = Floor (e) y = Cast<to = 7> (f)",
    "Ceil": "f = Ceil (e) y = Cast<to = 7> (f)",
    "Round": "g = Sub (e, half) f = Round (g) y = Cast<to = 7> (f)",
    "Less": "b = Less (e, x0) y = Cast<to = 7> (b)",
    "Equal": "f = Floor (e) b = Equal (e, f) y = Cast<to = 7> (b)",
    "an index": "f = Cast<to = 7> (e) y = Gather (table, f)",
}


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_integers_through_floats_stay(scaling: str, step: str, level: int) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 17]>
        main (int32[N] i) => (int64[N] y)
        <float three = {{3.0}}, float seven = {{7.0}}, float one = {{1.0}}, float minus = {{-1.0}},
         float half = {{0.5}}, float small = {{0.7}}, int64[1] axis = {{1}}, float x0 = {{21.0}}>
        {{ threeh = Cast<to = 10> (three) sevenh = Cast<to = 10> (seven) {SCALINGS[scaling]} {STEPS[step]} }}
    """)
    model.graph.initializer.append(numpy_helper.from_array(np.arange(1000) ** 2, "table"))
    result = optimize(model, level=level, verify=False)
    np.testing.assert_array_equal(answer(model, i=I300), answer(onnx.load_from_string(to_bytes(result.model)), i=I300))


def answer(model: ModelProto, **feeds: np.ndarray) -> np.ndarray:
    (found,) = unoptimized(model).run(None, feeds)
    return np.asarray(found)


FAR = {
    "infinite": ("float", 1e30, 1e-30, 1e9),
    "zero": ("float", 1e-30, 1e30, 1e-20),
    "an infinite double": ("double", 1e300, 1e-300, 1e10),
    "an infinite half": ("float16", 4000.0, 0.0005, 100.0),
    "a half that is zero": ("float16", 0.0005, 2000.0, 0.0001),
}


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize("far", FAR)
def test_what_overflows_or_vanishes_still_does(far: str, level: int) -> None:
    kind, first, second, x = FAR[far]
    dtype = {"float": np.float32, "double": np.float64, "float16": np.float16}[kind]
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 17]>
        main ({kind}[N] x) => ({kind}[N] y) {{ p = Mul (x, a) y = Mul (p, b) }}
    """)
    for name, number in (("a", first), ("b", second)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(number, dtype), name))
    result = onnx.load_from_string(to_bytes(optimize(model, level=level, verify=False).model))
    for number in (x, -x, np.nan, np.inf, 0.0, 1.0):
        feed = np.full(3, number, dtype)
        np.testing.assert_array_equal(answer(model, x=feed), answer(result, x=feed))


FAR_APART = "a value that disappears"

SCALED = {
    "constant_reassociation": "($T[N] x) => ($T[N] y) <$T a = {$A}, $T b = {$B}> { t = Mul (x, a) y = Mul (t, b) }",
    "scale_folding": """($T[N,2] x) => ($T[N,2] y) <$T[2,2] w = {$A, $A, $A, $A}, $T b = {$B}> {
        t = MatMul (x, w) y = Mul (t, b) }""",
    "matmul_reassociation": """($T[N,2] x) => ($T[N,2] y) <$T[2,2] w = {$A, $A, $A, $A}, $T[2,2] v = {$B, $B, $B, $B}> {
        t = MatMul (x, w) y = MatMul (t, v) }""",
    "conv_mul_fusion": """($T[1,1,N] x) => ($T[1,1,N] y) <$T[1,1,1] w = {$A}, $T b = {$B}> {
        t = Conv (x, w) y = Mul (t, b) }""",
    "conv_bn_fusion": """($T[1,1,N] x) => ($T[1,1,N] y) <$T[1,1,1] w = {$A}, $T[1] b = {$B},
        $T[1] o = {1}, $T[1] z = {0}> {
        t = Conv (x, w) y = BatchNormalization <epsilon = 0.0> (t, b, z, z, o) }""",
    "gemm_bn_fusion": """($T[N,1] x) => ($T[N,1] y) <$T[1,1] w = {$A}, $T[1] b = {$B}, $T[1] o = {1}, $T[1] z = {0}> {
        t = Gemm (x, w) y = BatchNormalization <epsilon = 0.0> (t, b, z, z, o) }""",
    "matmul_bn_fusion": """($T[N,1] x) => ($T[N,1] y) <$T[1,1] w = {$A}, $T[1] b = {$B}, $T[1] o = {1}, $T[1] z = {0}> {
        t = MatMul (x, w) y = BatchNormalization <epsilon = 0.0> (t, b, z, z, o) }""",
    "bn_bn_fusion": """($T[N,1] x) => ($T[N,1] y) <$T[1] a = {$A}, $T[1] b = {$B}, $T[1] o = {1}, $T[1] z = {0}> {
        t = BatchNormalization <epsilon = 0.0> (x, a, z, z, o)
        y = BatchNormalization <epsilon = 0.0> (t, b, z, z, o) }""",
    "bn_conv_fusion": """($T[1,1,N] x) => ($T[1,1,N] y) <$T[1,1,1] w = {$B}, $T[1] a = {$A},
        $T[1] o = {1}, $T[1] z = {0}> {
        t = BatchNormalization <epsilon = 0.0> (x, a, z, z, o) y = Conv (t, w) }""",
}
"""Patterns in which a value that is A times x disappears, and one stays that is B times as large."""

NEAR_OR_FAR = [
    ("float", 2.0**30, 2.0**-30, False),
    ("float", 2.0**-30, 2.0**30, False),
    ("float", 2.0**23, 2.0**-30, True),
    ("float", 2.0**-30, 2.0**23, True),
    ("float", 2.0**23, 2.0**23, True),
    ("double", 2.0**30, 2.0**-30, False),
    ("double", 2.0**20, 2.0**-30, True),
]


@pytest.mark.parametrize(("kind", "a", "b", "near"), NEAR_OR_FAR)
@pytest.mark.parametrize("name", SCALED)
def test_scales_move_within_bounds(name: str, kind: str, a: float, b: float, near: bool) -> None:
    near = near and (name != "scale_folding" or 2.0**-24 <= b <= 2.0**24)  # it looks at the factor alone
    text = "main " + Template(SCALED[name]).substitute(T=kind, A=f"{a:.20f}", B=f"{b:.20f}")
    if near:
        check_rewrites(name, text, numbers=kind == "float" or "Conv" not in text)  # of double there is no kernel
    else:
        check_keeps(name, text, FAR_APART)


@pytest.mark.parametrize(("a", "b", "near"), [(32.0, 0.03125, False), (8.0, 0.03125, True), (32.0, 0.125, True)])
def test_half_floats_have_less_room(a: float, b: float, near: bool) -> None:
    text = "main (float16[N] x) => (float16[N] y) { t = Mul (x, a) y = Mul (t, b) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> {text}')
    for name, number in (("a", a), ("b", b)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(number, np.float16), name))
    changed, explanation = run("constant_reassociation", loaded := load(model))
    assert changed is near
    assert near or any("2^4 times" in refusal.reason for refusal in explanation.refusals)
    assert len(loaded.graph) == (1 if near else 2)


BIAS = """main (float[1,1,N] x) => (float[1,1,N] y) <float[1,1,1] w = {{1}}, float[1] k = {{{0}}}, float c = {{{1}}}> {{
    t = Conv (x, w, k) y = Add (t, c) }}"""


def test_a_summand_that_swallows_the_others_stays() -> None:
    check_keeps("conv_add_fusion", BIAS.format(1e30, -1e30), FAR_APART)
    check_rewrites("conv_add_fusion", BIAS.format(3.0, -2.5))


# -- a transformer of the user ---------------------------------------------------------------------------------------


class DivisionByTwoThirds(RewriteRule[Forwarded]):
    """``Div(x, 3) * 2`` → ``x * ⅔``, with nothing that looks at integers."""

    name = "division_by_two_thirds"
    roots = ("Mul",)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Forwarded:
        division = producer(inputs(root, 1)[0], "Div")
        return Forwarded((division, root), division.inputs[0])  # type: ignore[arg-type]

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Mul", [found.value, found.nodes[1].inputs[1]])


class NegationMover(GraphTransformer):
    """``Neg(x)`` → ``0 - x``, by hand."""

    name = "negation_mover"
    numerics = Numerics.REORDERED
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        changed = False
        for node in list(graph):
            if node.op_type == "Neg" and context.offer((node,)):
                other = ir.node("Sub", [node.inputs[0], node.inputs[0]])
                context.replace({node.outputs[0]: other.outputs[0]}, before=node, origin=(node,))
                changed = True
        return changed


ON_THE_WAY = {
    "a rule": (
        DivisionByTwoThirds(),
        """(int32[N] i) => (int64[N] y) <float c = {3.0}>
           { x = Cast<to = 1> (i) d = Div (x, c) e = Mul (d, c) y = Cast<to = 7> (e) }""",
    ),
    "another transformer": (
        NegationMover(),
        "(int32[N] i) => (int64[N] y) { x = Cast<to = 1> (i) e = Neg (x) y = Cast<to = 7> (e) }",
    ),
}


@pytest.mark.parametrize("kind", ON_THE_WAY)
def test_the_framework_asks_for_every_transformer(kind: str) -> None:
    transformer, body = ON_THE_WAY[kind]
    check_keeps(transformer, f"main {body}", EXACT_PATH)
    model = parse(f"main {body}".replace("y = Cast<to = 7> (e)", "y = Abs (e)").replace("int64[N] y", "float[N] y"))
    changed, _ = run(transformer, model)
    assert changed


class Silent(GraphTransformer):
    """Reorders, and does not say what."""

    name = "silent"
    numerics = Numerics.REORDERED

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        return False


def test_what_reorders_must_offer_its_rewrites() -> None:
    with pytest.raises(RegistrationError, match="must offer its rewrites"):
        GraphTransformerManager().register(Silent())


def test_an_exact_pass_is_not_asked() -> None:
    check_rewrites(
        "noop_elimination",
        """main (int32[N] i) => (int64[N] y) <float one = {1.0}>
           { x = Cast<to = 1> (i) e = Mul (x, one) y = Cast<to = 7> (e) }""",
        "x = Cast<to = 1> (i) y = Cast<to = 7> (x)",
    )
