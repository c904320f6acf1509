"""Grouped models of every kind: all dtypes between groups, odd graphs, hostile ones."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_array_equal

from ortopt import InferenceSession
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from tests.releases import since
from tests.runtime.models import FUNCTION, HEADER, Twice, floats, session
from tests.runtime.side_by_side import PARALLEL, SEQUENTIAL, check, quiet


class Same(Twice):
    """Hands its operand on, whatever it is."""

    def _run(self, x: Any) -> tuple[Any, ...]:
        return (x,)


DTYPES = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "bool": np.bool_,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
def test_every_dtype_from_group_to_host_to_group(dtype: str, shape: tuple[int, ...]) -> None:
    text = f"""{HEADER} main ({dtype}[{",".join(map(str, shape))}] x) => ({dtype}[] y) {{
        a = ortopt.group.group_0 (x) b = my.Same (a) y = ortopt.group.group_1 (b) }}
    {FUNCTION} group_0 (p) => (r) {{ r = Identity (p) }} {FUNCTION} group_1 (p) => (r) {{ r = Identity (p) }}"""
    if not shape:
        text = text.replace(f"{dtype}[] x", f"{dtype} x")
    array = np.random.default_rng(0).integers(0, 2, shape).astype(DTYPES[dtype])
    (got,) = session(text, host_ops=[Same]).run(None, {"x": array})
    assert got.dtype == array.dtype
    assert_array_equal(got, array)


@pytest.mark.parametrize(
    ("name", "number", "dtype"),
    [
        ("bfloat16", 16, ml_dtypes.bfloat16),
        ("float8e4m3fn", 17, ml_dtypes.float8_e4m3fn),
        ("float8e5m2", 19, ml_dtypes.float8_e5m2),
    ],
)
def test_dtypes_that_numpy_lacks(name: str, number: int, dtype: Any) -> None:
    text = f"""{HEADER.replace('"" : 17', '"" : 19')} main (float[N] x) => (float[N] y, {name}[N] z) {{
        a = Cast <to = {number}> (x) z = my.Same (a) y = ortopt.group.group_0 (z) }}
    {FUNCTION.replace('"" : 17', '"" : 19')} group_0 (p) => (r) {{ r = Cast <to = 1> (p) }}"""
    x = np.array([1, -2, 0.5, 0], np.float32)
    y, z = session(text, host_ops=[Same]).run(None, {"x": x})
    assert_array_equal(y, x)
    assert z.dtype == dtype
    assert_array_equal(z.astype(np.float32), x)


def test_ort_values_of_dtypes_that_numpy_lacks() -> None:
    text = f"""{HEADER} main (bfloat16[N] x) => (float[N] y) {{ a = my.Same (x) y = ortopt.group.group_0 (a) }}
    {FUNCTION} group_0 (p) => (r) {{ r = Cast <to = 1> (p) }}"""
    bits = np.array([1.5, -2], ml_dtypes.bfloat16).view(np.uint16)
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)
    (got,) = session(text, host_ops=[Same]).run(None, {"x": value})
    assert got.tolist() == [1.5, -2]


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "outputs that nobody computes": (
        f"""{HEADER} main (float[N] x, float[2] d) => (float[2] c, float[2] e, float[N] y)
        <float[2] c = {{1, 2}}, float[2] d = {{3, 4}}> {{
            e = Identity (d) a = my.Same (x) y = ortopt.group.group_0 (a) }}
        {FUNCTION} group_0 (p) => (r) {{ r = Neg (p) }}""",
        {"d": np.array([7, 8], np.float32)},
    ),
    "constants as nodes and missing optional arguments": (
        f"""{HEADER} main (float[N] x) => (float[N] y) {{
            low = Constant <value = float {{-0.5}}> () high = Constant <value_float = 0.5> ()
            a = ortopt.group.group_0 (x, low, high) b = my.Same (a) y = ortopt.group.group_1 (b) }}
        {FUNCTION} group_0 (p, l, h) => (r) {{ r = Clip (p, l, h) }}
        {FUNCTION} group_1 (p, l, h) => (r) {{ r = Clip (p, l, h) }}""",
        {},
    ),
    "functions in groups": (
        """<ir_version: 10, opset_import: ["" : 17, "ortopt.group" : 1, "lib" : 1, "my" : 1]>
        main (float[N] x) => (float[N] y) { a = ortopt.group.group_0 (x) b = my.Same (a) y = lib.outer (b) }
        <domain: "ortopt.group", opset_import: ["" : 17, "lib" : 1]> group_0 (p) => (r) { r = lib.outer (p) }
        <domain: "lib", opset_import: ["" : 17, "lib" : 1]> outer (p) => (r) { s = lib.inner (p) r = Neg (s) }
        <domain: "lib", opset_import: ["" : 18]> inner (p) => (r) { r = Relu (p) }""",
        {},
    ),
    "a group that is used by many": (
        f"""{HEADER} main (float[N] x) => (float[N] y, float[N] z, float[N] a) {{
            a, b = ortopt.group.group_0 (x) c = ortopt.group.group_1 (a, b) y = Add (c, a) z = Sub (c, x) }}
        {FUNCTION} group_0 (p) => (r, s) {{ r = Neg (p) s = Exp (r) }}
        {FUNCTION} group_1 (p, q) => (r) {{ r = Mul (p, q) }}""",
        {},
    ),
}
"""Models, and what they may be given beside x."""


@pytest.mark.parametrize("name", MODELS)
def test_models_give_what_onnx_runtime_makes_of_them(name: str) -> None:
    text, more = MODELS[name]
    x = {"x": floats(9)}
    check(text, x, x | more, host_ops=[Same])


def test_outputs_of_a_group_that_nobody_uses_are_not_asked_for() -> None:
    text = f"""{HEADER} main (float[N] x) => (float[N] y) {{
        a, unused = ortopt.group.group_0 (x) none, nobody = ortopt.group.group_1 (x) y = my.Same (a) }}
    {FUNCTION} group_0 (p) => (r, s) {{ r = Neg (p) s = Exp (p) }}
    {FUNCTION} group_1 (p) => (r, s) {{ r = Neg (p) s = Exp (p) }}"""
    mine = check(text, {"x": np.ones(2, np.float32)}, host_ops=[Same])
    assert [group.spec.name for group in mine.groups] == ["group_0", "leftover_0"]
    assert len(mine.groups[0].spec.outputs) == 1


def test_functions_with_own_ops_inside_run_on_the_host() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "lib" : 1, "my" : 1]>
    main (float[N] x) => (float[N] y) { a = Neg (x) b = lib.f (a) y = Relu (b) }
    <domain: "lib", opset_import: ["" : 17, "lib" : 1]> f (p) => (r) { s = lib.g (p) r = Neg (s) }
    <domain: "lib", opset_import: ["" : 17, "my" : 1]> g (p) => (r) { r = my.Twice (p) }"""
    mine = check(text, {"x": np.array([-1, 2], np.float32)}, expected=[[0, 4]], host_ops=[Twice])
    assert [group.provider for group in mine.groups].count("host") == 1


def test_functions_with_attributes_run_on_the_host() -> None:
    """onnx.reference gives most ops no attributes of the function that they are in."""
    text = """<ir_version: 10, opset_import: ["" : 17, "lib" : 1, "my" : 1]>
    main (float[N] x) => (float[N] y) { a = lib.f <slope: float = 0.25> (x) b = lib.f <slope: float = 0.5> (x)
        y = Sub (a, b) }
    <domain: "lib", opset_import: ["" : 17, "lib" : 1]> f <slope> (p) => (r) { r = lib.g <slope: float = @slope> (p) }
    <domain: "lib", opset_import: ["" : 17, "my" : 1]> g <slope> (p) => (r) {
        s = my.Twice (p) r = LeakyRelu <alpha: float = @slope> (s) }"""
    check(text, {"x": np.array([-2, 2], np.float32)}, expected=[[1, 0]], host_ops=[Twice])


MAIN = f"{HEADER} main (float[N] x) => (float[N] y)"
HOSTILE = {
    "a group that is not there": f"{MAIN} {{ a = my.Same (x) y = ortopt.group.g (a) }}",
    "a group that calls itself": f"""{MAIN} {{ a = my.Same (x) y = ortopt.group.g (a) }}
        <domain: "ortopt.group", opset_import: ["" : 17, "ortopt.group" : 1]> g (p) => (r) {{
            r = ortopt.group.g (p) }}""",
    "too many arguments": f"""{HEADER} main (float[N] x) => (float[N] y) {{
        a = my.Same (x) y = ortopt.group.g (a, a, a) }} {FUNCTION} g (p) => (r) {{ r = Neg (p) }}""",
    "too many results": f"""{HEADER} main (float[N] x) => (float[N] y, float[N] z) {{
        a = my.Same (x) y, z = ortopt.group.g (a) }} {FUNCTION} g (p) => (r) {{ r = Neg (p) }}""",
    "types that do not fit": f"""{HEADER} main (float[N] x, int64[N] i) => (float[N] y) {{
        a = my.Same (x) y = ortopt.group.g (a, i) }} {FUNCTION} g (p, q) => (r) {{ r = Add (p, q) }}""",
    "an op that is not there": f"""{HEADER} main (float[N] x) => (float[N] y) {{
        a = my.Same (x) y = ortopt.group.g (a) }} {FUNCTION} g (p) => (r) {{ r = Nonsense (p) }}""",
    "a missing argument": f"""{HEADER} main (float[N] x) => (float[N] y) {{
        a = my.Same (x) y = ortopt.group.g (a) }} {FUNCTION} g (p, q) => (r) {{ r = Add (p, q) }}""",
}


@pytest.mark.filterwarnings("ignore:group ")
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_groups_end_in_an_error(what: str) -> None:
    with pytest.raises(Exception) as caught:
        session(HOSTILE[what], host_ops=[Same]).run(
            None, {"x": np.ones(2, np.float32), **({"i": np.ones(2, np.int64)} if "int64" in HOSTILE[what] else {})}
        )
    assert not isinstance(caught.value, AssertionError | RecursionError | KeyError | IndexError)
    assert str(caught.value)


def test_a_model_without_nodes() -> None:
    text = "main (float[2] x) => (float[2] c) <float[2] c = {1, 2}> { }"
    check(text, {"x": np.zeros(2, np.float32)}, expected=[[1, 2]], run_type="debug")


NEW = {11: since(1, 23, "IR version 11"), 12: since(1, 24, "IR version 12"), 13: since(1, 24, "IR version 13")}


@pytest.mark.parametrize("version", [3, 8, 10, *(pytest.param(version, marks=NEW[version]) for version in NEW)])
def test_ir_versions(version: int) -> None:
    model = parse("main (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Add (x, w) y = Neg (a) }")
    again = load(to_bytes(model))
    again.ir_version = version
    mine = InferenceSession(again, providers=["cpu"], run_type="debug")
    assert mine.run(None, {"x": np.zeros(2, np.float32)})[0].tolist() == [-1, -2]


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [1, 2]}, {"classlabels_strings": ["a", "b"]}], ids=str)
def test_maps(labels: dict[str, Any]) -> None:
    """What scikit-learn's classifiers give."""
    ((attribute, (first, second)),) = labels.items()
    key = "int64" if attribute == "classlabels_int64s" else "string"
    text = f"""<ir_version: 10, opset_import: ["" : 17, "ai.onnx.ml" : 3, "my" : 1]>
        main (float[N,2] x) => (seq(map({key},float)) y) {{
            a = my.Twice (x) y = ai.onnx.ml.ZipMap <{attribute} = {json.dumps([first, second])}> (a) }}"""
    mine = InferenceSession(onnx.parser.parse_model(text), providers=["cpu"], host_ops=[Twice])
    assert mine.get_outputs()[0].type == f"seq(map({key},tensor(float)))"
    assert mine.run(None, {"x": np.array([[1, 2]], np.float32)}) == [[{first: 2.0, second: 4.0}]]


def test_a_session_closed_in_the_middle_of_a_run_ends_it() -> None:
    class Close(Twice):
        def _run(self, x: Any) -> tuple[Any, ...]:
            mine.close()
            return (x,)

    Close.__name__ = "Close"
    text = f"""{HEADER} main (float[N] x) => (float[N] y) {{
        a = my.Close (x) b = ortopt.group.group_0 (a) c = ortopt.group.group_1 (a) y = Add (b, c) }}
    {FUNCTION} group_0 (p) => (r) {{ r = Neg (p) }} {FUNCTION} group_1 (p) => (r) {{ r = Exp (p) }}"""
    for mode in (SEQUENTIAL, PARALLEL):
        mine = session(text, host_ops=[Close], sess_options=quiet(execution_mode=mode))
        assert mine.run(None, {"x": np.zeros(2, np.float32)})[0].tolist() == [1, 1]
