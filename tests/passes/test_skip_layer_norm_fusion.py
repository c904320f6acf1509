"""A sum and the LayerNormalization behind it become one SkipLayerNormalization."""

from functools import partial

import pytest

from ortopt.options import Options, Target
from ortopt.testing import all_fusions, check_keeps, check_rewrites

PASS = "skip_layer_norm_fusion"
CUDA = "CUDAExecutionProvider"
rewrites = partial(check_rewrites, PASS, options=Options(providers=(CUDA,)))  # the numbers are compared on the CPU
keeps = partial(check_keeps, PASS, options=Options(providers=(CUDA,)))
NORM = "y = LayerNormalization <epsilon = 0.001> (t, g, b)"


def skip(inputs: str, outputs: str = "y") -> str:
    return f"{outputs} = com.microsoft.SkipLayerNormalization <epsilon = 0.001> ({inputs})"


def model(
    body: str = f"t = Add (x, s) {NORM}",
    *,
    x: str = "N,M,8",
    s: str = "N,M,8",
    g: str = "8",
    b: str = "8",
    y: str = "N,M,8",
    more: str = "",
    out: str = "",
    dtype: str = "float",
) -> str:
    return f"""main ({dtype}[{x}] x, {dtype}[{s}] s, {dtype}[{g}] g, {dtype}[{b}] b{more})
        => ({dtype}[{y}] y{out}) {{ {body} }}"""


@pytest.mark.parametrize("add", ["Add (x, s)", "Add (s, x)"])
def test_fuses(add: str) -> None:
    inputs = "x, s, g, b" if "x, s" in add else "s, x, g, b"
    rewrites(model(f"t = {add} {NORM}"), skip(inputs))


@pytest.mark.parametrize("opset", [11, 16, 17, 20])
def test_at_any_opset(opset: int) -> None:
    rewrites(model(), skip("x, s, g, b"), opset=opset)


def test_two_dimensions() -> None:
    rewrites(model(x="M,8", s="M,8", y="M,8"), skip("x, s, g, b"))


def test_without_a_bias() -> None:
    rewrites(model(f"n = Neg (b) t = Add (x, s) {NORM}".replace(", b)", ")")), f"n = Neg (b) {skip('x, s, g')}")


@pytest.mark.parametrize("short", ["1,M,8", "M,8"])
@pytest.mark.parametrize("add", ["Add (x, s)", "Add (s, x)"])
def test_a_skip_without_a_batch(short: str, add: str) -> None:
    rewrites(model(f"t = {add} {NORM}", s=short), skip("x, s, g, b"))


def test_the_operand_of_the_whole_shape_is_no_skip() -> None:
    rewrites(model(x="1,M,8"), skip("s, x, g, b"))


@pytest.mark.parametrize("add", ["Add (x, c)", "Add (c, x)"])
@pytest.mark.parametrize("sum_", ["Add (u, s)", "Add (s, u)"])
def test_a_bias_of_the_skip(add: str, sum_: str) -> None:
    rewrites(model(f"u = {add} t = {sum_} {NORM}", more=", float[8] c"), skip("x, s, g, b, c"))


def test_a_bias_and_no_bias() -> None:
    body = f"u = Add (x, c) t = Add (u, s) {NORM} z = Neg (b)".replace(", b)", ")", 1)
    after = f"{skip('x, s, g, , c')} z = Neg (b)"
    rewrites(model(body, more=", float[8] c", out=", float[8] z"), after)


def test_a_bias_that_is_needed_elsewhere_stays() -> None:
    body = f"u = Add (x, c) t = Add (u, s) {NORM} z = Neg (u)"
    after = f"u = Add (x, c) {skip('u, s, g, b')} z = Neg (u)"
    rewrites(model(body, more=", float[8] c", out=", float[N,M,8] z"), after)


def test_the_sum_is_used_elsewhere() -> None:
    body = f"t = Add (x, s) z = Neg (t) {NORM}"
    rewrites(model(body, out=", float[N,M,8] z"), f"{skip('x, s, g, b', 'y, , , t')} z = Neg (t)")


def test_the_sum_is_a_graph_output() -> None:
    rewrites(model(out=", float[N,M,8] t"), skip("x, s, g, b", "y, , , t"))
    rewrites(
        model(f"u = Add (x, c) t = Add (u, s) {NORM}", more=", float[8] c", out=", float[N,M,8] t"),
        skip("x, s, g, b, c", "y, , , t"),
    )


def test_one_after_another() -> None:
    body = (
        f"t = Add (x, s) {NORM.replace('y =', 'n =')} u = Add (t, n) y = LayerNormalization <epsilon = 0.001> (u, g, b)"
    )
    after = skip("x, s, g, b", "n, , , t") + skip("t, n, g, b")
    rewrites(model(body), after)


def test_half_precision_has_a_kernel() -> None:
    rewrites(model(dtype="float16"), skip("x, s, g, b"))


FUNCTION = """<ir_version: 10, opset_import: ["" : 17, "local" : 1]>
    main (float[N,3,8] x, float[N,3,8] s, float[8] g, float[8] b) => (float[N,3,8] y) {{ y = local.Norm (x, s, g, b) }}
    <opset_import: ["" : 17], domain: "local"> Norm {attributes} (x, s, g, b) => (y) {{
        t = Add (x, s) y = LayerNormalization <{epsilon}> (t, g, b) }}"""


BROADCAST = "the kernel does not broadcast the operands so"
COMPUTED = "a parameter is computed"
KEPT = {
    "no sum": ("no Add comes before", model(f"t = Sub (x, s) {NORM}")),
    "a negative epsilon": ("an epsilon of at least 0", model().replace("0.001", "-0.5")),
    "four dimensions": ("two or three dimensions", model(x="1,2,3,8", s="1,2,3,8", y="1,2,3,8")),
    "an unknown rank": ("the shape is unknown", model(x="", s="", y="").replace("[]", "[]")),
    "two axes": (
        "not over the last axis alone",
        model(NORM.join(["t = Add (x, s) ", ""]).replace("<", "<axis = -2, "), x="N,3,8", s="N,3,8", g="3,8", b="3,8"),
    ),
    "a scale for all": ("has not the last dimension", model(g="1")),
    "a scale with more dimensions": ("has not the last dimension", model(g="M,8")),
    "a bias for all": ("has not the last dimension", model(b="1")),
    "a skip for each batch": (BROADCAST, model(s="N,1,8")),
    "a skip of rows": (BROADCAST, model(s="8")),
    "a skip of another symbol": (BROADCAST, model(s="N,K,8")),
    "both are broadcast": (BROADCAST, model(x="N,1,8", s="1,M,8")),
    "two dimensions and one": (BROADCAST, model(x="M,8", s="1,8", y="M,8")),
    "the mean is used": (
        "its statistics are used",
        model(f"t = Add (x, s) {NORM.replace('y =', 'y, m =')}", out=", float[N,M,1] m"),
    ),
    "a scale that depends on the sum": (
        COMPUTED,
        model(
            f"""t = Add (x, s) f = ReduceMean <axes = [0, 1], keepdims = 0> (t) h = Mul (f, g)
            {NORM.replace("g, b", "h, b")}"""
        ),
    ),
    "double": ("no provider has a kernel of SkipLayerNormalization for double", model(dtype="double")),
}


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    because, text = KEPT[case]
    keeps(text, because)


def test_keeps_a_sum_from_outside() -> None:
    text = model(
        f"""t = Add (x, s) y = If (c) <
            then_branch = yes () => (float[N,M,8] p) {{ {NORM.replace("y =", "p =")} }},
            else_branch = no () => (float[N,M,8] e) {{ e = Neg (t) }}
        >""",
        more=", bool c",
    )
    keeps(text, "the sum is computed in another graph")


def test_keeps_for_other_runtimes() -> None:
    keeps(model(), "no op of the ONNX specification", options=Options(providers=(CUDA,), target=Target.ONNX))


def test_keeps_what_the_caller_decides() -> None:
    text = FUNCTION.format(attributes="<e>", epsilon="epsilon: float = @e").replace("Norm (x", "Norm <e = 0.001> (x")
    keeps(text, "the function's caller decides epsilon")


def test_keeps_what_runs_on_the_cpu() -> None:
    options = Options(providers=("CPUExecutionProvider", CUDA))
    keeps(model(), "on the CPU, SkipLayerNormalization is", options=options)


def test_takes_what_runs_on_the_cpu_where_all_fusions_is_wanted() -> None:
    check_rewrites(PASS, model(), skip("x, s, g, b"), options=all_fusions())
