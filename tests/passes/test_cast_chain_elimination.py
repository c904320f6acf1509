"""A Cast before another Cast goes only if it loses nothing that the other keeps."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "cast_chain_elimination"
CODES = {"float": 1, "uint8": 2, "int8": 3, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
         "double": 11, "uint32": 12, "bfloat16": 16, "string": 8}  # fmt: skip


def chain(source: str, between: str, to: str) -> str:
    return f"""main ({source}[N] x) => ({to}[N] y) {{
        t = Cast <to = {CODES[between]}> (x) y = Cast <to = {CODES[to]}> (t) }}"""


LOSSLESS = [
    ("float", "double", "int32"),
    ("float", "double", "float16"),
    ("float16", "float", "float16"),
    ("float16", "float", "int64"),
    ("int8", "int32", "uint8"),
    ("int8", "float16", "int32"),
    ("int32", "double", "int64"),
    ("uint8", "int16", "bool"),
    ("bool", "int32", "float"),
    ("int64", "int32", "int8"),
    ("int32", "uint32", "int32"),
]


@pytest.mark.parametrize(("source", "between", "to"), LOSSLESS)
def test_one_is_enough(source: str, between: str, to: str) -> None:
    check_rewrites(PASS, chain(source, between, to), after=f"y = Cast <to = {CODES[to]}> (x)")


@pytest.mark.parametrize(("source", "to"), [("float", "float16"), ("int64", "int8"), ("int32", "uint8")])
def test_the_extremes(source: str, to: str) -> None:
    between = {"float": "double", "int64": "int16", "int32": "int64"}[source]
    kind = np.dtype({"float": "float32"}.get(source, source))
    edges = (
        np.array([np.nan, np.inf, -np.inf, -0.0, 65519.996, 65520, 5.96e-8, 2.98e-8, 1e-45, 1 + 2**-11], kind)
        if kind.kind == "f"
        else np.array([np.iinfo(kind).min, np.iinfo(kind).max, -1, 127, 128, 255, 256, 32768], kind)
    )
    check_rewrites(PASS, chain(source, between, to), inputs={"x": edges})


LOSING = [
    ("may lose", "float", "int32", "float"),  # ONNX Runtime takes this for nothing
    ("may lose", "float", "float16", "float"),
    ("may lose", "double", "float", "double"),
    ("may lose", "float16", "bfloat16", "float"),
    ("may lose", "bfloat16", "float16", "float"),
    ("may lose", "int32", "float", "int32"),
    ("may lose", "int16", "float16", "float"),
    ("may lose", "int64", "int32", "int64"),
    ("may lose", "int64", "int32", "bool"),  # 2 ** 32 is true
    ("may lose", "int32", "uint32", "int64"),  # -1
    ("may lose", "uint8", "bool", "uint8"),
    ("outside the range", "int16", "float", "int8"),
    ("outside the range", "int8", "float", "uint8"),
    ("several spellings", "int32", "string", "int32"),
    ("several spellings", "int32", "int64", "string"),
    ("changes nothing", "float", "double", "double"),
]


@pytest.mark.parametrize(("because", "source", "between", "to"), LOSING)
def test_keeps(because: str, source: str, between: str, to: str) -> None:
    check_keeps(PASS, chain(source, between, to), because)


def test_like_another_and_other_users() -> None:
    check_rewrites(
        PASS,
        """main (float16[N] x, double[1] like) => (double[N] y, float[N] z) {
            t = Cast <to = 1> (x) y = CastLike (t, like) z = Neg (t) }""",
        after="t = Cast <to = 1> (x) y = Cast <to = 11> (x) z = Neg (t)",
    )


def test_what_the_second_says_stays() -> None:
    check_rewrites(
        PASS,
        """main (float16[N] x) => (float8e4m3fn[N] y) {
            t = Cast <to = 1> (x) y = Cast <to = 17, saturate = 0> (t) }""",
        after="y = Cast <to = 17, saturate = 0> (x)",
        opset=19,
    )


def test_the_caller_decides() -> None:
    check_keeps(
        PASS,
        """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
        main (float16[4] x) => (double[4] y) { y = f.F <to = 11> (x) }
        <domain: "f", opset_import: ["" : 17]>
        F <to> (x) => (q) { a = Cast <to = 1> (x) q = Cast <to : int = @to> (a) }""",
        "the function's caller decides to",
    )
