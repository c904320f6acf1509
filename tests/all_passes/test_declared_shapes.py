"""What a file declares of a computed value may be wrong: ONNX Runtime only warns, and no rewrite may rest on it.

Each op whose result depends on data stands in each place where a claim can stand: a graph's output, value_info, the
output of a branch or of a loop's body, a function's value_info. Sizes, ranks and names of dimensions are declared that
the inputs contradict; what the optimized model gives must be what the original gives.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph

import ortopt
from ortopt.graph.match import ONLY_DECLARED
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps
from tests.sessions import unoptimized
from tests.texts import table

Array = np.ndarray[Any, Any]
Info = onnx.ValueInfoProto

FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING


def _floats(*dims: int) -> Array:
    return np.arange(np.prod(dims), dtype=np.float32).reshape(dims) - 3


TABLES = Path(__file__).parent / "cases" / "declared_shapes.txt"


class Case(NamedTuple):
    """Nodes that compute `t`, of a type, and what the inputs hold."""

    opset: int
    dtype: int
    inputs: str
    body: str
    feeds: str


CASES = {
    name: Case(int(opset), TensorProto.DataType.Value(kind.upper()), *more)
    for name, opset, kind, *more in table(TABLES, "values of t")
}
ELSEWHERE = {name: more for name, *more in table(TABLES, "elsewhere")}

TAIL = """
    flat_ = Constant<value = int64[1] {-1}>()
    s_ = Shape(t)
    n_ = Size(t)
    v_ = Reshape(t, flat_)
    e_ = Expand(t, s_)
    r_ = Reshape(e_, s_)
    z_ = ConstantOfShape(s_)
"""
"""What the claims would let passes rewrite."""

SLICES_BY_INPUTS = 10

AXES_TAIL = """
    zero_ = Constant<value = int64[1] {0}>()
    one_ = Constant<value = int64[1] {1}>()
    declared_ = Constant<value = int64[1] {size}>()
    ones_ = Constant<value = float[1] {1}>()
    c_ = Concat<axis = 0>(t, t)
    d_ = Shape(c_)
    l_ = Slice(t, zero_, declared_, zero_)
    first_ = Slice(s_, zero_, one_, zero_)
    other_ = Shape(like_)
    same_ = Equal(first_, other_)
    w_ = Expand(ones_, first_)
"""

RESULTS = {"s_": INT64, "n_": INT64, "v_": None, "r_": None, "z_": FLOAT}
RESULTS |= {"d_": INT64, "l_": None, "same_": BOOL, "w_": FLOAT}
"""What is compared besides `t`, and its type; None is the type of `t`."""


def _model(case: Case, declared: Sequence[int | str] | None, place: str) -> onnx.ModelProto:
    """The case with a declaration for `t`, and what follows from it, in one of the places."""
    size = declared[0] if declared and isinstance(declared[0], int) else 3
    tail = TAIL + (AXES_TAIL.replace("size", str(size)) if declared and case.opset >= SLICES_BY_INPUTS else "")
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {case.opset}, "local" : 1]>'
        f" main ({case.inputs}, float[L] like_) => () {{ {case.body} {tail} }}"
    )
    computed = {name for node in model.graph.node for name in node.output}
    results = [_typed(name, dtype or case.dtype) for name, dtype in RESULTS.items() if name in computed]
    return PLACES[place](model, _typed("t", case.dtype, declared), results)


def _typed(name: str, dtype: int, dims: Sequence[int | str] | None = None) -> Info:
    return helper.make_tensor_value_info(name, dtype, dims)


def _as_output(model: onnx.ModelProto, claim: Info, results: Sequence[Info]) -> onnx.ModelProto:
    model.graph.output.extend([claim, *results])
    return model


def _as_value_info(model: onnx.ModelProto, claim: Info, results: Sequence[Info]) -> onnx.ModelProto:
    model.graph.value_info.append(claim)
    model.graph.output.extend(results)
    return model


def _from_branch(model: onnx.ModelProto, claim: Info, results: Sequence[Info]) -> onnx.ModelProto:
    """As an output of both branches of an If, and of the If."""
    return _in_branches(model, [claim, *results], [])


def _within_branch(model: onnx.ModelProto, claim: Info, results: Sequence[Info]) -> onnx.ModelProto:
    """As value_info of a branch, which the main graph never names."""
    return _in_branches(model, results, [claim])


def _in_branches(model: onnx.ModelProto, results: Sequence[Info], told: Sequence[Info]) -> onnx.ModelProto:
    nodes = list(model.graph.node)
    branches = {
        name: helper.make_graph(nodes, name, [], results, value_info=told) for name in ("then_branch", "else_branch")
    }
    return _around(model, helper.make_node("If", ["which_"], _outer(results), **branches), results)


def _from_loop(model: onnx.ModelProto, claim: Info, results: Sequence[Info]) -> onnx.ModelProto:
    """As what a Loop's body gives in each iteration; there is one."""
    given = [claim, *results]
    body = helper.make_graph(
        [*model.graph.node, helper.make_node("Identity", ["go_in_"], ["go_on_"])],
        "body",
        [_typed("iteration_", INT64, []), _typed("go_in_", BOOL, [])],
        [_typed("go_on_", BOOL, []), *given],
    )
    node = helper.make_node("Loop", ["trips_", "which_"], _outer(given), body=body)
    dims = [dim.dim_value or dim.dim_param for dim in claim.type.tensor_type.shape.dim]
    model = _around(model, node, [_typed("t", claim.type.tensor_type.elem_type, [1, *dims]), *results])
    model.graph.initializer.append(helper.make_tensor("trips_", INT64, [], [1]))
    return model


def _in_function(model: onnx.ModelProto, claim: Info, results: Sequence[Info]) -> onnx.ModelProto:
    """As value_info of a function, and as the output that its call gives."""
    given = [value.name for value in model.graph.input]
    computed = [claim, *results]
    names = [value.name for value in computed]
    opsets = [one for one in model.opset_import if not one.domain]
    function = helper.make_function("local", "f", given, names, list(model.graph.node), opsets, value_info=[claim])
    model.functions.append(function)
    return _around(model, helper.make_node("f", given, _outer(computed), domain="local"), computed)


def _outer(values: Sequence[Info]) -> list[str]:
    return [f"{value.name}outer" for value in values]


def _around(model: onnx.ModelProto, node: onnx.NodeProto, values: Sequence[Info]) -> onnx.ModelProto:
    """The model with one node, that holds all the others and gives these."""
    del model.graph.node[:]
    model.graph.node.append(node)
    model.graph.input.append(_typed("which_", BOOL, []))
    for value, name in zip(values, _outer(values), strict=True):
        outer = model.graph.output.add()
        outer.CopyFrom(value)
        outer.name = name
    return model


PLACES = {
    "output": _as_output,
    "value_info": _as_value_info,
    "branch's output": _from_branch,
    "branch's value_info": _within_branch,
    "loop's output": _from_loop,
    "function": _in_function,
}

LIES: dict[str, Callable[[Sequence[int]], list[int | str]]] = {
    "sizes": lambda shape: [size + 1 for size in shape],
    "rank": lambda shape: [*shape, 1],
    "names": lambda shape: ["L" for _ in shape],
}
"""Declarations that are wrong for a value of some shape."""

LIES_IN = {"output": LIES, "value_info": LIES, "function": ("sizes", "names")}
"""Which of them a place is tested with; elsewhere names, for ONNX Runtime plans the memory of bodies by numbers."""

REFUSALS = (InvalidArgument, InvalidGraph, Fail)
"""How ONNX Runtime refuses to run: it plans memory by what is declared, and may see then that it does not fit."""


UNFIT = {("Upsample", "loop's output"), ("SequenceMap", "function")}
"""What ONNX Runtime does not load: a Loop of opset 9 and a function in a function."""


def _run(model: bytes, feeds: Mapping[str, Any]) -> list[Any]:
    session = unoptimized(model)
    wanted = {value.name for value in session.get_inputs()}
    return session.run(None, {name: value for name, value in feeds.items() if name in wanted})


def _feeds(text: str, model: onnx.ModelProto) -> dict[str, Any]:
    given = {name: content for name, _, content in (one.partition(" ") for one in text.split("; "))}
    given |= {"like_": "[7]", "which_": "1"}
    return {value.name: _array(given[value.name], value.type.tensor_type) for value in model.graph.input}


def _array(text: str, declared: onnx.TypeProto.Tensor) -> Array:
    """The elements, or the numbers from -3 on in a shape, in the type and rank that an input declares."""
    if declared.elem_type == STRING:
        return np.array(shlex.split(text), object)
    dtype = helper.tensor_dtype_to_np_dtype(declared.elem_type)
    if text.startswith("["):
        return _floats(*map(int, text[1:-1].split(","))).astype(dtype)
    array = np.array([float(one) for one in text.split()]).astype(dtype)
    return array.reshape([dim.dim_value or -1 for dim in declared.shape.dim])


def _check(model: onnx.ModelProto, feeds: Mapping[str, Any], told: str) -> bool:
    """Compare the optimized model with the original; false where the original does not run."""
    try:
        expected = _run(model.SerializeToString(), feeds)
    except REFUSALS:
        return False
    result = ortopt.optimize(model.SerializeToString(), verify=False).model
    got = _run(to_bytes(result), feeds)
    for value, one, other in zip(model.graph.output, expected, got, strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype, f"{told}: {value.name}"
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other), err_msg=f"{told}: {value.name}")
    assert list(onnx.ModelProto.FromString(to_bytes(result)).graph.output) == list(model.graph.output)
    return True


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("op", CASES)
def test_no_rewrite_rests_on_a_claim(op: str, place: str) -> None:
    case = CASES[op]
    honest = _model(case, None, "output")
    shape = _run(honest.SerializeToString(), _feeds(case.feeds, honest))[0].shape
    ran = False
    for lie in LIES_IN.get(place, ("names",)):
        declared = LIES[lie](shape)
        model = _model(case, declared, place)
        ran |= _check(model, _feeds(case.feeds, model), f"{lie} {declared} of {list(shape)}")
    assert ran is ((op, place) not in UNFIT)


def _main(text: str, opset: int = 18) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}, "local" : 1]> {text}')


@pytest.mark.parametrize("claim", ELSEWHERE)
def test_claims_elsewhere(claim: str) -> None:
    opset, text, given = ELSEWHERE[claim]
    model = _main(text, int(opset))
    if claim == "an initializer":
        model.graph.value_info.append(_typed("w", FLOAT, ["K", "L"]))
    assert _check(model, _feeds(given, model), claim)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("op", ["Reshape", "NonZero", "Loop"])
def test_a_declared_type_is_enforced(op: str, place: str) -> None:
    """So no rewrite can rest on a wrong one: ONNX Runtime loads no such model."""
    case = CASES[op]._replace(dtype=TensorProto.DOUBLE)
    model = _model(case, None, place)
    with pytest.raises(REFUSALS):
        _run(model.SerializeToString(), _feeds(case.feeds, model))


@pytest.mark.parametrize("op", ["Reshape", "NonZero", "Loop"])
def test_a_type_declared_in_a_function_is_none(op: str) -> None:
    """ONNX Runtime does not read it."""
    model = _model(CASES[op], None, "function")
    model.functions[0].value_info[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    assert _check(model, _feeds(CASES[op].feeds, model), op)


def test_believed_where_inference_cannot_know() -> None:
    model = _main("g (float[N] x) => (int64[2] y) { t = local.Mystery(x) y = Shape(t) }")
    model.graph.value_info.append(_typed("t", FLOAT, [3, 4]))
    assert [node.op_type for node in ortopt.optimize(model, verify=False).model.graph] == ["Mystery"]
    model.graph.node[0].CopyFrom(helper.make_node("FutureOp", ["x"], ["t"]))
    assert [node.op_type for node in ortopt.optimize(model, verify=False).model.graph] == []


def test_what_is_claimed_is_still_declared() -> None:
    model = _main(
        "g (float[N,4] x, int64[K,4] w) => (int64[2,J] v, int64[P,Q] y, int64[R,S,T] z) {"
        " a = Constant<value = int64[1] {0}>() t = NonZero(x) u = NonZero(w) e = Unsqueeze(u, a)"
        " v = Neg(t) y = Neg(u) z = Neg(e) }"
    )
    told = {"t": [2, "count"], "u": [3, 5], "e": ["A", "B", 4]}
    model.graph.value_info.extend(_typed(name, INT64, dims) for name, dims in told.items())
    saved = onnx.ModelProto.FromString(to_bytes(ortopt.optimize(model, level=1, verify=False).model))
    kept = {
        info.name: [dim.dim_value or dim.dim_param for dim in info.type.tensor_type.shape.dim]
        for info in saved.graph.value_info
    }
    assert kept["t"] == [2, "count"]  # nothing is proven of how many there are
    assert kept["u"] == [2, ""]  # the 3 is wrong, so the 5 may be
    assert kept["e"] == [1, 2, 4]


RENAMES = (
    "g (float[N,4] x) => (int64[2,3] y) { t = NonZero(x) a = Constant<value = int64[2] {2, 3}>() y = Reshape(t, a) }"
)


def test_a_refusal_says_that_more_is_declared() -> None:
    text = ELSEWHERE["sizes of an output"][1]
    check_keeps("reshape_fusion", load(_main(text)), f"neither numbers nor the input's own; {ONLY_DECLARED} (s, y)")
    model = _main(RENAMES)
    model.graph.value_info.append(_typed("t", INT64, [2, 3]))
    check_keeps("reshape_elimination", load(model), f"the axes come apart into others; {ONLY_DECLARED} (t)")


def test_a_refusal_does_not_name_claims_that_make_no_difference() -> None:
    model = _main(RENAMES)
    model.graph.value_info.append(_typed("t", INT64, [2, "K"]))
    check_keeps("reshape_elimination", load(model), "the axes come apart into others (t)")
