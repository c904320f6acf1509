"""Integers of every dtype, at its bounds and at sizes where it wraps around: ONNX Runtime before and after."""

# ruff: noqa: E501 -- a model reads best in few lines

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortopt import optimize
from ortopt.graph import facts
from ortopt.graph.symbolic import UNKNOWN
from ortopt.serialization.save import to_bytes
from tests.analysis.truth import infer_proto
from tests.sessions import unoptimized
from tests.texts import table

Array = np.ndarray[Any, Any]

DTYPES = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
LEVELS = (1, 3)
FLOAT = TensorProto.FLOAT


def numbers_of(dtype: type[np.generic]) -> list[int]:
    """Eight numbers at the bounds of a type, around 0, and where a narrower type or a double ends."""
    info = np.iinfo(dtype)
    middle = {8: 100, 16: 2**8 + 1, 32: 2**24 + 1, 64: 2**53 + 1}[info.bits]
    low = [info.min, info.min + 1, -1] if info.min else [7, 2**info.bits // 2, 5]
    return [*low, 0, 1, 3, middle, info.max]


def run(session: onnxruntime.InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Array]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def runs(model: onnx.ModelProto) -> bool:
    try:
        run(unoptimized(model), {"x": np.zeros((1, 2), np.float32)})
    except Exception as error:  # ONNX Runtime's errors have no common type
        assert "NOT_IMPLEMENTED" in str(error) or "Type Error" in str(error), error
        return False
    return True


def same_after_optimizing(
    model: onnx.ModelProto, all_feeds: list[dict[str, Array]], **options: Any
) -> list[onnx.ModelProto]:
    """Optimize without verification, and compare each output bit by bit; the results."""
    made = []
    original = unoptimized(model)
    wanted = [run(original, feeds) for feeds in all_feeds]
    for level in LEVELS:
        result = optimize(model, level=level, verify=False, **options)
        assert not result.summary.failures
        made.append(onnx.load_from_string(to_bytes(result.model)))
        session = unoptimized(made[-1])
        for feeds, expected in zip(all_feeds, wanted, strict=True):
            found = run(session, feeds)
            for name, array in expected.items():
                sizes = [array.shape for array in feeds.values()]
                assert np.array_equal(found[name], array), (level, sizes, name, array, found[name])
    return made


# Numbers


def single(op: str, operands: Mapping[str, Array], **attributes: Any) -> tuple[onnx.NodeProto, list[onnx.TensorProto]]:
    """A node on constants, its result and the constants named after its result."""
    name = "_".join([op, *map(str, attributes.values()), *operands]).replace("-", "_")
    constants = [numpy_helper.from_array(array, f"{name}_{key}") for key, array in operands.items()]
    node = helper.make_node(op, [constant.name for constant in constants], [name], **attributes)
    return node, constants


def nodes_on(dtype: type[np.generic]) -> Iterator[tuple[onnx.NodeProto, list[onnx.TensorProto]]]:
    """Every op whose elements inference follows, on the numbers of a type: each with each where there are two."""
    numbers = np.array(numbers_of(dtype), dtype)
    left, right = (grid.reshape(-1) for grid in np.meshgrid(numbers, numbers))
    for op in ("Add", "Sub", "Mul", "Max", "Min", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        yield single(op, {"a": left, "b": right})
    overflows = (left == np.iinfo(dtype).min) & (right.astype(object) == -1)
    fine = (right != 0) & ~overflows  # the processor stops at these: there is nothing to compare
    yield single("Div", {"a": left[fine], "b": right[fine]})
    yield single("Mod", {"a": left[fine], "b": right[fine]})
    yield single("Mod", {"a": left[fine], "b": right[fine]}, fmod=1)
    yield single("Where", {"c": left > right, "a": left, "b": right})
    for op in ("Neg", "Abs", "Identity"):
        yield single(op, {"a": numbers})
    for to in (*DTYPES, np.bool_):
        yield single("Cast", {"a": numbers}, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))
    for op in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"):
        for first, second in ((0, 1), (0, 0), (5, 7), (6, 6), (6, 4), (7, 7), (3, 7)):
            yield single(op, {f"a{first}{second}": numbers[[first, second]]}, keepdims=0)
    bounds = [(0, 7, 100), (0, 7, 3), (4, 5, 1), (7, 3, -5)]
    for start, limit, step in bounds:
        spread = abs(int(numbers[limit]) - int(numbers[start]))
        by = max(spread // abs(step), 1) * (1 if step > 0 else -1) if abs(step) > 1 else step
        if np.iinfo(dtype).min <= by <= np.iinfo(dtype).max:
            chosen = {f"s{start}": numbers[start], f"l{limit}": numbers[limit], f"d{step % 1000}": np.array(by, dtype)}
            yield single("Range", {key: np.asarray(value) for key, value in chosen.items()})


def of(parts: list[tuple[onnx.NodeProto, list[onnx.TensorProto]]]) -> onnx.ModelProto:
    """A model of these nodes, all of them outputs, each once more as int64; it has shapes to fold too."""
    nodes = [helper.make_node("Shape", ["x"], ["shape"])]
    outputs = ["shape"]
    for node, _ in parts:
        nodes += [node, helper.make_node("Cast", list(node.output), [f"{node.output[0]}_wide"], to=TensorProto.INT64)]
        outputs += [node.output[0], f"{node.output[0]}_wide"]
    constants = [constant for _, own in parts for constant in own]
    graph = helper.make_graph(
        nodes,
        "numbers",
        [helper.make_tensor_value_info("x", FLOAT, ["N", 2])],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_numbers_have_the_arithmetic_of_their_type(dtype: type[np.generic]) -> None:
    parts = [part for part in nodes_on(dtype) if runs(of([part]))]
    done = {node.op_type for node, _ in parts}
    assert {"Add", "Sub", "Mul", "Div", "Mod", "Equal", "Greater", "Cast"} <= done
    model, feeds = of(parts), {"x": np.zeros((1, 2), np.float32)}
    true, values = run(unoptimized(model), feeds), infer_proto(model)
    for name, array in true.items():
        known = facts.all_contents(values[name])
        exact = name.split("_")[0] in {"Add", "Sub", "Mul", "Cast", "Max", "Equal", "Greater", "Where", "Abs", "Neg"}
        assert known is not None or not exact, name
        for element, number in zip(known or (), array.reshape(-1).tolist(), strict=known is not None):
            assert element == int(number) if isinstance(element, int) else not exact, (name, element, number)
    same_after_optimizing(model, [feeds], disable=["constant_folding"])  # inference says what the numbers are
    same_after_optimizing(model, [feeds])


def test_the_sum_of_two_bytes() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> main (float[N,2] x) => (int64[1] y, int64[2] z)
            <uint8[1] a = {200}, uint8[1] b = {100}> { z = Shape (x) p = Add (a, b) y = Cast <to = 7> (p) }"""
    )
    made = same_after_optimizing(model, [{"x": np.zeros((3, 2), np.float32)}])
    assert all([node.op_type for node in one.graph.node] == ["Shape"] for one in made), "the sum is folded"


# Expressions


def casts(value: str) -> list[onnx.NodeProto]:
    """A value in other types."""
    types = {"wide": TensorProto.INT64, "narrow": TensorProto.INT32, "truth": TensorProto.BOOL}
    return [helper.make_node("Cast", [value], [f"{name}_{value}"], to=kind) for name, kind in types.items()]


def expressions(dtype: type[np.generic]) -> onnx.ModelProto:
    """Arithmetic on the dimensions of two inputs in a type, and what is decided by it."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    numbers = [number for number in numbers_of(dtype) if number]
    constants = [numpy_helper.from_array(np.array([number], dtype), f"c{i}") for i, number in enumerate(numbers)]
    nodes = [
        helper.make_node("Shape", ["x"], ["sx"], end=1),
        helper.make_node("Shape", ["w"], ["sw"], end=1),
        helper.make_node("Cast", ["sx"], ["n"], to=kind),
        helper.make_node("Cast", ["sw"], ["m"], to=kind),
    ]
    results = ["n", "m"]

    def make(op: str, *operands: str, **attributes: Any) -> str:
        name = "_".join([op, *operands])
        if name not in results:
            nodes.append(helper.make_node(op, operands, [name], **attributes))
            results.append(name)
        return name

    square, both = make("Mul", "n", "n"), make("Mul", "n", "m")
    for one in (square, both, make("Add", "n", "m"), make("Sub", "n", "m"), make("Mul", square, both)):
        make("Sub", one, "n")
    make("Sub", square, make("Mul", "m", "m"))
    for i, number in enumerate(numbers):
        for operand in ("n", both):
            for op in ("Add", "Sub", "Mul"):
                make(op, operand, f"c{i}")
            if number not in (0, -1):
                make("Div", operand, f"c{i}")
                make("Mod", operand, f"c{i}")
    for operand in ("n", square):
        if np.iinfo(dtype).min:
            make("Neg", operand)
        make("Abs", operand)
    signs = [f"c{i}" for i, number in enumerate(numbers) if number in (-1, 1, 3, numbers[0], numbers[-1])]
    for result in list(results[2:]):
        for sign in signs:
            make("Greater", result, sign)
            make("Less", result, sign)
        make("Equal", result, "n")
        nodes.extend(casts(result))
    graph = helper.make_graph(
        nodes,
        "expressions",
        [helper.make_tensor_value_info(name, TensorProto.INT8, [dim, "K"]) for name, dim in (("x", "N"), ("w", "M"))],
        [onnx.ValueInfoProto(name=node.output[0]) for node in nodes[2:]],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


EXTENTS = [(0, 3), (1, 1), (16, 16), (5, 300), (70_000, 70_000), (50_000, 3), (2**21, 2**22)]
EXTENTS += [(2**31, 2), (2**32 - 1, 2**32), (2**32, 2**32), (2**40, 2**40), (2**40, 5)]
"""Lengths at which types wrap around; the large ones are those of inputs without elements."""


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_expressions_have_the_arithmetic_of_their_type(dtype: type[np.generic]) -> None:
    feeds = [
        {"x": np.zeros((n, int(max(n, m) < 2**20)), np.int8), "w": np.zeros((m, int(max(n, m) < 2**20)), np.int8)}
        for n, m in EXTENTS
    ]
    same_after_optimizing(expressions(dtype), feeds)


# What is decided by them

NARROW = "s = Shape (x) n = Cast <to = 6> (s) m = Mul (n, n) p = Cast <to = 7> (m) q = Mul (s, s)"
"""The square of the length of x, computed in 32 bits and in 64."""

CASES = Path(__file__).parent / "cases" / "integers.txt"
DECISIONS = dict(table(CASES, "decided"))
SIZED = dict(table(CASES, "sized"))
"""What gets its size from the square of a length; with 2^16 that is 0 in 32 bits, and 2^32 in 64."""
LENGTHS = [0, 1, 5, 8, 16, 17, 200, 256, 40_000, 50_000, 70_000, 2**21]


def _compared(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> main ({text.replace("NARROW", NARROW)}')


@pytest.mark.parametrize("what", DECISIONS)
def test_nothing_is_decided_by_integers_that_wrap_around(what: str) -> None:
    model = _compared(DECISIONS[what])
    feeds = []
    for length in LENGTHS:
        types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
        feeds.append({name: np.ones(length, helper.tensor_dtype_to_np_dtype(kind)) for name, kind in types.items()})
    same_after_optimizing(model, feeds)


@pytest.mark.parametrize("what", SIZED)
def test_no_size_is_that_of_a_wider_type(what: str) -> None:
    model = _compared(
        f"""int8[N] x) => (int64[1] y, int64[1] u) <int8 z = {{0}}, int8[1] one = {{1}}, bool t = {{1}}, int8[0] nothing = {{}},
        int64[1] v0 = {{0}}, int64[1] v1 = {{1}}, int64[1] v2 = {{2}}, int64[1] minus = {{-1}}> {{
        NARROW {SIZED[what]} y = Neg (h) u = Neg (q) }}"""
    )
    lengths = [3, 65_537] if what == "a Reshape" else [0, 1, 5, 65_536]
    same_after_optimizing(model, [{"x": np.zeros(length, np.int8)} for length in lengths])


def test_an_end_of_32_bits_is_an_end_and_a_start_is_none() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> main (int8[N,M] x) => (int64[2] y, int64[2] u, int64[2] v)
            <int64[1] v0 = {0}, int64[1] v1 = {1}, int64[1] last = {2147483647}, int64[1] more = {2147483648},
             int64[1] end = {9223372036854775807}> {
            a = Slice (x, v0, last, v1) y = Shape (a) b = Slice (x, v0, more, v1) u = Shape (b)
            c = Slice (x, last, end, v1) v = Shape (c) }"""
    )
    same_after_optimizing(model, [{"x": np.zeros((0, size), np.int8)} for size in (0, 3, 2**31, 2**40)])


def test_squares_of_two_types_are_two_values() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> main (int8[N] x) => (int64[1] y, int64[1] u) <int64[1] one = {1}> {
            s = Shape (x) n = Cast <to = 6> (s) p = Mul (n, n) q = Cast <to = 7> (p) r = Mul (s, s)
            y = Sub (q, one) u = Sub (r, one) }"""
    )
    same_after_optimizing(model, [{"x": np.zeros(length, np.int8)} for length in (3, 46341, 70_000)])


def test_sizes_that_one_input_has_together_are_still_shared() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> main (float[N,M,4] x) => (int64[1] y, int64[1] u)
            <int64 i0 = {0}, int64 i1 = {1}, int64[1] v0 = {0}, int64[1] v4 = {4}, int64[1] v1 = {1}> {
            s = Shape (x) n = Gather (s, i0) m = Gather (s, i1) p = Mul (n, m) q = Unsqueeze (p, v0) y = Mul (q, v4)
            t = Shape (x) k = ReduceProd <keepdims = 1> (t) u = Max (k, v0) }"""
    )
    made = same_after_optimizing(model, [{"x": np.zeros(shape, np.float32)} for shape in ((2, 3, 4), (0, 5, 4))])
    assert all(sum(node.op_type == "ReduceProd" for node in one.graph.node) == 0 for one in made)


def test_sizes_of_32_bits_follow_from_the_tensors_of_every_run() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> main (float[N,S] x, bool c) => (float[?,?] y, int64[2] k)
        <int32[1] four = {4}, int64[1] wide = {4096}, int64[1] axis = {2}> {
        s = Shape (x) s32 = Cast <to = 6> (s) t32 = Mul (s32, four) k = Cast <to = 7> (t32)
        u = Unsqueeze (x, axis) e = Shape (u) o = Expand (u, wide) r = ReduceSum (o, axis) y = Flatten (r) }"""
    model = onnx.parser.parse_model(text)
    assert [str(element) for element in facts.all_contents(infer_proto(model)["k"]) or ()] == ["4*N", "4*S"]
    same_after_optimizing(model, [{"x": np.ones((2, 3), np.float32), "c": np.array(True)}])
    unread = onnx.parser.parse_model(text.replace("r = ReduceSum (o, axis)", "r = Identity (x)"))
    assert all(element == UNKNOWN for element in facts.all_contents(infer_proto(unread)["k"]) or ())
    narrow = onnx.parser.parse_model(text.replace("4096", "16"))
    assert all(element == UNKNOWN for element in facts.all_contents(infer_proto(narrow)["k"]) or ())


# Floats between integers


def test_sizes_of_32_bits_follow_from_what_reshaped_ids_look_up() -> None:
    """Decoders of TensorFlow cut ids to [-1, S] first: what is looked up has N times S rows, however it is cut."""
    text = """<ir_version: 9, opset_import: ["": 17]> main (int64[N,S] ids, float[9,128] table) => (float[?,?,?] y)
        <int32[1] open = {-1}, int64[1] one = {1}, int64[1] two = {2}> {
        s = Shape (ids) i = Cast <to = 6> (s) l = Slice (i, one, two) c = Concat <axis = 0> (open, l)
        t = Cast <to = 7> (c) r = Reshape (ids, t) g = Gather (table, r) y = Neg (g) }"""
    assert str(infer_proto(onnx.parser.parse_model(text))["g"].shape) == "[N,S,128]"
    narrow = onnx.parser.parse_model(text.replace("128", "64"))  # 2^32 ids could be looked up
    assert str(infer_proto(narrow)["g"].shape) != "[N,S,64]"


def test_a_far_end_is_that_of_every_dimension_that_never_reaches_it() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> main (float[N,S,512] x) => (float[?,?,?] y)
        <int64[2] zeros = {0, 0}, int64[2] ends = {1000000000, 1000000000}> { z = Slice (x, zeros, ends) y = Neg (z) }"""
    assert str(infer_proto(onnx.parser.parse_model(text))["z"].shape) == "[N,S,512]"
    narrow = onnx.parser.parse_model(text.replace("512", "256"))
    assert "min" in str(infer_proto(narrow)["z"].shape)


def test_floats_between_integers_round() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> main (int8[N] x) => (int64[1] y, bool[1] u, int64[1] v, bool[1] w)
            <float[1] two = {2.0}, float[1] half = {0.5}, int64[1] c = {16777217}, float[1] minus = {-1.5}> {
            s = Shape (x) f = Cast <to = 1> (s) d = Div (f, two) r = Floor (d) y = Cast <to = 7> (r)
            g = Cast <to = 1> (c) k = Cast <to = 7> (g) u = Equal (s, k) h = Cast <to = 7> (f) v = Add (h, s)
            n = Cast <to = 7> (minus) w = Less (n, s) }"""
    )
    same_after_optimizing(model, [{"x": np.zeros(length, np.int8)} for length in (0, 5, 2**24, 2**24 + 1, 2**24 + 3)])
    floats = np.array([0.0, -0.5, 0.5, -1.5, 127.5, 255.9, 300.5, 3e9, -3e9, 1e30, np.nan, np.inf], np.float32)
    for dtype in (*DTYPES, np.bool_):
        parts = [single("Cast", {"a": floats}, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))]
        one, feeds = of(parts), {"x": np.zeros((1, 2), np.float32)}
        name = parts[0][0].output[0]
        known, true = facts.all_contents(infer_proto(one)[name]) or (), run(unoptimized(one), feeds)[name].tolist()
        for element, number in zip(known, true, strict=bool(known)):
            assert not isinstance(element, int) or element == number, (dtype, element, number)
        same_after_optimizing(one, [feeds], disable=["constant_folding"])
