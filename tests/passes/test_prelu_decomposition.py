"""PRelu(x, A) becomes Max(x, A · x) on the CPU."""

import numpy as np

from ortopt.options import Fusions, Options, Target
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "prelu_decomposition"
DEFAULT = Options()
SLOPES = "float[4,1,1] a = {0.1, 0.25, 0.5, 1.0}"


def model(x: str = "N,4,32,32", slopes: str = SLOPES, kind: str = "float", more: str = "") -> str:
    return f"main ({kind}[{x}] x{more}) => ({kind}[{x}] y) <{slopes}> {{ y = PRelu (x, a) }}".replace("<>", "")


def test_decomposes() -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, 32, 32)).astype(np.float32)
    x.reshape(-1)[:6] = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40)
    after = f"main (float[N,4,32,32] x) => (float[N,4,32,32] y) <{SLOPES}> {{ m = Mul (x, a) y = Max (x, m) }}"
    check_rewrites(PASS, model(), after, options=DEFAULT, inputs={"x": x})


KEPT = {
    "a slope above 1": ("a slope is not between 0 and 1", model(slopes=SLOPES.replace("1.0", "1.5"))),
    "a slope of 0": ("a slope is not between 0 and 1", model(slopes=SLOPES.replace("1.0", "0.0"))),
    "a negative slope": ("a slope is not between 0 and 1", model(slopes=SLOPES.replace("1.0", "-0.1"))),
    "a slope that is computed": ("not a constant", model(slopes="", more=", float[4,1,1] a")),
    "few elements": ("nobody has measured whether Max in place of PRelu is faster", model("N,4,8,8")),
    "sizes that are not known": ("nobody has measured whether Max in place of PRelu is faster", model("N,4,H,W")),
    "half precision": (
        "it is for single precision only",
        model(slopes="float16[4,1,1] a = {12288, 13312, 14336, 15360}", kind="float16"),
    ),
}


test_keeps = keeps(PASS, KEPT, options=DEFAULT)


def test_keeps_what_is_one_op_where_all_fusions_are_wanted() -> None:
    check_keeps(PASS, model(), "--fusions all keeps what is one op", options=Options(fusions=Fusions.ALL))


def test_keeps_for_other_runtimes_and_providers() -> None:
    check_keeps(PASS, model(), "other runtimes have other kernels", options=Options(target=Target.ONNX))
    options = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"))
    check_keeps(PASS, model(), "it serves the CPU", options=options)


def test_an_image_of_any_size_with_more_channels() -> None:
    text = "main (float[N,16,H,W] x) => (float[N,16,H,W] y) <float[1] a = {0.25}> { y = PRelu (x, a) }"
    check_rewrites(PASS, text, ops={"Mul": 1, "Max": 1}, options=DEFAULT)
