"""The traits against ONNX's schemas and shape inference, and by numbers under ONNX Runtime without optimization."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.defs
import pytest
from onnx import TensorProto, helper, shape_inference

from ortopt.semantics import op_traits
from ortopt.semantics.op_traits import (
    BITWISE,
    BOOLEAN_RESULTS,
    BROADCASTING,
    BROADCASTING_ONE_WAY,
    CASTS,
    COMMUTATIVE,
    CONTROL_FLOW,
    ELEMENTWISE,
    IDEMPOTENT,
    INVOLUTIONS,
    MOVING,
    NEUTRAL,
    PERMUTING,
    RANDOM_OPS,
    REDUCTIONS,
    REPEATING,
    RESHAPING,
    SAFE_TO_EVALUATE,
    SHAPE_OF_FIRST_INPUT,
    SHAPE_QUERIES,
    TRANSCENDENTAL,
    UNARY,
    UNARY_WITH_PARAMETERS,
    VARIADIC,
    ZERO_OF_ZERO,
)
from tests.sessions import unoptimized

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parents[2]
OPSET = 21
LAST_OPSETS = {"Scatter": 10}
SCHEMAS = {schema.name: schema for schema in onnx.defs.get_all_schemas() if not schema.domain}
BOOLEAN_OPERANDS = {"And", "Not", "Or", "Xor"}
SETS = {name: ops for name, ops in vars(op_traits).items() if isinstance(ops, frozenset)}


class Example(NamedTuple):
    """What an op takes besides its first operand.

    Attributes:
        attributes: Attributes that the op cannot do without.
        rest: The other operands.
    """

    attributes: dict[str, Any] = {}  # noqa: RUF012
    rest: tuple[Array, ...] = ()


def integers(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


SHAPE = (2, 3, 4, 5)
OF_CHANNELS = (np.ones(3, np.float32), np.zeros(3, np.float32))
OF_ROWS = (np.ones(5, np.float32),)
SCATTERED = (np.zeros((1, 1, 1, 2), np.int64), np.ones((1, 1, 1, 2), np.float32))
ALONG_AN_AXIS = Example(rest=(np.array(1, np.int64),))
EXAMPLES = {
    "BitShift": Example({"direction": "LEFT"}),
    "Cast": Example({"to": TensorProto.INT32}),
    "CastLike": Example(rest=(np.zeros(1, np.int32),)),
    "Clip": Example(rest=(np.array(-1, np.float32), np.array(1, np.float32))),
    "CumProd": ALONG_AN_AXIS,
    "CumSum": ALONG_AN_AXIS,
    "DequantizeLinear": Example(rest=(np.array(0.5, np.float32),)),
    "GroupNormalization": Example({"num_groups": 3}, OF_CHANNELS),
    "InstanceNormalization": Example(rest=OF_CHANNELS),
    "LRN": Example({"size": 3}),
    "LayerNormalization": Example(rest=OF_ROWS),
    "MeanVarianceNormalization": Example({"axes": (0, 2, 3)}),
    "PRelu": Example(rest=OF_ROWS),
    "QuantizeLinear": Example(rest=(np.array(0.5, np.float32),)),
    "RMSNormalization": Example(rest=OF_ROWS),
    "ReverseSequence": Example(rest=(integers(1, 2, 2),)),
    "Scatter": Example(rest=SCATTERED),
    "ScatterElements": Example(rest=SCATTERED),
    "ScatterND": Example(rest=(np.zeros((1, 4), np.int64), np.ones(1, np.float32))),
    "TensorScatter": Example(rest=(np.ones((2, 3, 1, 5), np.float32), integers(0, 1))),
}
MOVES = {
    "Compress": Example({"axis": 1}, (np.array([True, False, True, True]),)),
    "DepthToSpace": Example({"blocksize": 2}),
    "Expand": Example(rest=(integers(3, 1, 4, 2, 2),)),
    "Gather": Example({"axis": 1}, (integers(2, -1, 2),)),
    "GatherElements": Example({"axis": 1}, (np.array([[[[3, 0], [-1, 1]]]]),)),
    "GatherND": Example(rest=(np.array([[0, 3], [0, 1]]),)),
    "Reshape": Example(rest=(integers(2, 0, -1),)),
    "ReverseSequence": Example(rest=(integers(1, 1, 1, 1),)),
    "Slice": Example(rest=(integers(3), integers(0), integers(1), integers(-2))),
    "SpaceToDepth": Example({"blocksize": 2}),
    "Split": Example({"axis": 1}, (integers(1, 3),)),
    "Squeeze": Example(rest=(integers(0),)),
    "Tile": Example(rest=(integers(1, 2, 1, 3),)),
    "Unsqueeze": Example(rest=(integers(0, -1),)),
}


def opset_of(op: str) -> int:
    """The opset at which an op is looked at: that of most, or the first or last that has it."""
    if op in LAST_OPSETS:
        return LAST_OPSETS[op]
    return OPSET if onnx.defs.has(op, OPSET) else int(SCHEMAS[op].since_version)


def model_of(op: str, operands: tuple[Array, ...], attributes: dict[str, Any], outputs: int = 1) -> onnx.ModelProto:
    names = [f"x{place}" for place in range(len(operands))]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, operands, strict=True)
    ]
    results = [onnx.ValueInfoProto(name=f"y{place}") for place in range(outputs)]
    node = helper.make_node(op, names, [result.name for result in results], **attributes)
    graph = helper.make_graph([node], "g", inputs, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset_of(op))], ir_version=10)


def run(op: str, *operands: Array, outputs: int = 1, **attributes: Any) -> list[Array]:
    """What ONNX Runtime makes of one node."""
    model = shape_inference.infer_shapes(model_of(op, operands, attributes, outputs))
    session = unoptimized(model)
    results: list[Array] = session.run(None, {f"x{place}": array for place, array in enumerate(operands)})
    return results


def bits(array: Array) -> list[int]:
    numbers: list[int] = array.reshape(-1).view(f"u{array.dtype.itemsize}").tolist()
    return numbers


def operand(op: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Something that an op takes."""
    numbers = np.random.default_rng(seed).normal(size=shape)
    if op in BOOLEAN_OPERANDS:
        return numbers > 0
    if op == "BitShift":
        return np.abs(numbers * 3).astype(np.uint32)
    if op in BITWISE or op == "Mod":
        return (numbers * 9).astype(np.int64) | 1
    if op == "DequantizeLinear":
        return (np.abs(numbers) * 50).astype(np.uint8)
    return (np.abs(numbers) + 0.5 if op == "Pow" else numbers).astype(np.float32)


# -- schemas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SETS))
def test_ops_exist(name: str) -> None:
    known = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas_with_history()}
    for op in SETS[name]:
        assert isinstance(op, tuple) or ("", op) in known, op
        assert not isinstance(op, tuple) or op[0] == "com.microsoft" or op in known, op


@pytest.mark.parametrize("op", sorted(UNARY))
def test_unary_ops_have_one_operand_and_one_result(op: str) -> None:
    assert (len(SCHEMAS[op].inputs), len(SCHEMAS[op].outputs)) == (1, 1)


def test_ops_of_one_operand_are_all_known() -> None:
    """What a new version of ONNX adds is looked at: an elementwise op belongs to `UNARY`."""
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    ops = {
        op
        for op, schema in SCHEMAS.items()
        if [formal.option for formal in schema.inputs] == [single] and len(schema.outputs) == 1
    }
    assert ops - UNARY == {
        *("ArgMax", "ArgMin", "AveragePool", "Bernoulli", "BitCast", "BlackmanWindow", "ConcatFromSequence"),
        *("ConstantOfShape", "DepthToSpace", "Det", "EyeLike", "Flatten", "GlobalAveragePool", "GlobalLpPool"),
        *("GlobalMaxPool", "HammingWindow", "HannWindow", "Hardmax", "If", "ImageDecoder", "LRN", "LogSoftmax"),
        *("LpNormalization", "LpPool", "MeanVarianceNormalization", "Multinomial", "NonZero", "OptionalGetElement"),
        *("RandomNormalLike", "RandomUniformLike", "RegexFullMatch", "SequenceLength", "Shape", "Size", "Softmax"),
        *("SpaceToDepth", "StringNormalizer", "TfIdfVectorizer", "Transpose"),
    }


@pytest.mark.parametrize("op", sorted(ELEMENTWISE - UNARY))
def test_other_elementwise_ops_have_several_operands(op: str) -> None:
    schema = SCHEMAS[op]
    variadic = schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    assert variadic == (op in VARIADIC)
    assert variadic or len(schema.inputs) > 1
    assert len(schema.outputs) == 1 or op == "Dropout"


def allowed_types(op: str, formal: Any) -> set[str]:
    for constraint in SCHEMAS[op].type_constraints:
        if constraint.type_param_str == formal.type_str:
            return set(constraint.allowed_type_strs)
    return {formal.type_str}


def test_results_that_are_booleans() -> None:
    boolean = {op for op in ELEMENTWISE if allowed_types(op, SCHEMAS[op].outputs[0]) == {"tensor(bool)"}}
    assert boolean == BOOLEAN_RESULTS


def test_ops_of_integers_alone() -> None:
    assert {op for op in ELEMENTWISE if all("int" in kind for kind in allowed_types(op, SCHEMAS[op].inputs[0]))} == (
        BITWISE
    )


def test_transcendental_functions_are_elementwise_and_nothing_else() -> None:
    assert TRANSCENDENTAL < ELEMENTWISE
    assert TRANSCENDENTAL.isdisjoint(BOOLEAN_RESULTS | BITWISE | CASTS | MOVING | BROADCASTING)


def test_reductions_are_all_there_are() -> None:
    assert {op for op in SCHEMAS if op.startswith("Reduce")} == REDUCTIONS


def test_control_flow_is_what_holds_graphs() -> None:
    graph = onnx.defs.OpSchema.AttrType.GRAPH
    assert {op for op in SCHEMAS if any(item.type == graph for item in SCHEMAS[op].attributes.values())} == CONTROL_FLOW


def test_random_ops_are_what_onnx_calls_so() -> None:
    never = onnx.defs.OpSchema.NodeDeterminism.NonDeterministic
    named = {op for op, schema in SCHEMAS.items() if schema.node_determinism == never}
    assert named - CONTROL_FLOW == {op for domain, op in RANDOM_OPS if not domain} | {
        "AffineGrid",  # which has no random part: its function body only holds an If
        "Dropout",  # in training mode only
    }


def test_what_is_safe_is_neither_random_nor_holds_graphs() -> None:
    assert SAFE_TO_EVALUATE.isdisjoint(CONTROL_FLOW | {op for domain, op in RANDOM_OPS if not domain} | {"Dropout"})


# -- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", sorted(SHAPE_OF_FIRST_INPUT))
def test_the_result_has_the_shape_of_the_first_input(op: str) -> None:
    example = EXAMPLES.get(op, Example())
    operands = (operand(op, SHAPE), *example.rest)
    inferred = shape_inference.infer_shapes(model_of(op, operands, example.attributes), strict_mode=True)
    dims = tuple(dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim)
    if op == "GroupNormalization":  # of its body the dimensions are unknown to onnx
        dims = run(op, *operands, **example.attributes)[0].shape
    assert dims == SHAPE


@pytest.mark.parametrize("op", sorted(SHAPE_QUERIES))
def test_contents_do_not_matter_to_shape_queries(op: str) -> None:
    first, second = (run(op, operand(op, SHAPE, seed)) for seed in (0, 1))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("op", sorted(REDUCTIONS))
def test_reductions_leave_one_element_along_their_axes(op: str) -> None:
    (result,) = run(op, operand(op, SHAPE), integers(0, -1))
    assert result.shape == (1, 3, 4, 1)


# -- elements ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", sorted(UNARY | UNARY_WITH_PARAMETERS | BROADCASTING_ONE_WAY))
def test_an_element_of_the_result_depends_on_the_one_there(op: str) -> None:
    example = EXAMPLES.get(op, Example())
    x, other = operand(op, SHAPE), operand(op, SHAPE, seed=1)
    kept = np.random.default_rng(2).random(SHAPE) < 0.5
    (result,) = run(op, x, *example.rest, **example.attributes)
    (mixed,) = run(op, np.where(kept, x, other), *example.rest, **example.attributes)
    (of_other,) = run(op, other, *example.rest, **example.attributes)
    assert result.shape == x.shape
    assert np.array_equal(mixed, np.where(kept, result, of_other), equal_nan=mixed.dtype.kind == "f")


@pytest.mark.parametrize("op", sorted(BROADCASTING))
def test_operands_broadcast(op: str) -> None:
    example = EXAMPLES.get(op, Example())
    shapes = [(2, 1, 3), (4, 1), (1, 3)][: 3 if op in VARIADIC or op == "Where" else 2]
    operands = [operand(op, shape, seed) for seed, shape in enumerate(shapes)]
    if op == "Where":
        operands[0] = operands[0] > 0
    (result,) = run(op, *operands, **example.attributes)
    (whole,) = run(op, *(np.ascontiguousarray(np.broadcast_to(x, (2, 4, 3))) for x in operands), **example.attributes)
    assert result.shape == (2, 4, 3)
    assert np.allclose(result, whole, rtol=1e-6)


# -- algebra ----------------------------------------------------------------------------------------------------------

SPECIAL = np.array(
    [0.0, -0.0, 1, -1, 0.5, 1.5, -2.5, 1e-40, -1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan, 7.25], np.float32
)
EXTREME = np.array([0, 1, -1, 2, 7, np.iinfo(np.int32).max, np.iinfo(np.int32).min], np.int32)
TRUTHS = np.array([False, True])
FLOATS_ONLY = {"Ceil", "Floor", "Round"}


def kinds(op: str) -> list[Array]:
    """Operands of each kind that an op takes, with what is special of the kind."""
    if op in BOOLEAN_OPERANDS:
        return [TRUTHS]
    if op in BITWISE:
        return [EXTREME]
    return [SPECIAL] if op in FLOATS_ONLY or op == "Sum" else [SPECIAL, EXTREME]


def cases(ops: Iterator[str]) -> list[tuple[str, Array]]:
    return [(op, array) for op in ops for array in kinds(op)]


@pytest.mark.parametrize(("op", "values"), cases(iter(sorted(COMMUTATIVE))))
def test_operands_may_change_places(op: str, values: Array) -> None:
    x, y = (np.ascontiguousarray(side) for side in np.broadcast_arrays(values[:, None], values[None]))
    assert bits(run(op, x, y)[0]) == bits(run(op, y, x)[0])


def test_maximum_and_minimum_are_not_commutative() -> None:
    x, y = SPECIAL[:1], SPECIAL[1:2]
    assert {"Max", "Min"}.isdisjoint(COMMUTATIVE)
    assert any(bits(run(op, x, y)[0]) != bits(run(op, y, x)[0]) for op in ("Max", "Min"))


@pytest.mark.parametrize(("op", "values"), cases(iter(sorted(IDEMPOTENT))))
def test_the_second_time_changes_nothing(op: str, values: Array) -> None:
    (once,) = run(op, values)
    assert bits(run(op, once)[0]) == bits(once)


@pytest.mark.parametrize(("op", "values"), cases(iter(sorted(INVOLUTIONS))))
def test_the_second_time_takes_the_first_back(op: str, values: Array) -> None:
    assert bits(run(op, run(op, values)[0])[0]) == bits(values)


@pytest.mark.parametrize("op", sorted(ZERO_OF_ZERO))
def test_zero_gives_zero(op: str) -> None:
    assert run(op, np.zeros(3, np.float32))[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("op", "values"), cases(iter(sorted(NEUTRAL))))
def test_a_neutral_operand_gives_back_the_other(op: str, values: Array) -> None:
    neutral = np.array([-0.0 if op == "Add" and values.dtype.kind == "f" else NEUTRAL[op]], values.dtype)
    assert bits(run(op, values, neutral)[0]) == bits(values)


# -- moving elements --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", sorted(MOVING))
def test_results_hold_elements_of_the_first_operand(op: str) -> None:
    """Bit for bit: numbers of all kinds, NaNs with payloads among them, each once."""
    numbers = np.random.default_rng(0).choice(1 << 32, 32, replace=False).astype(np.uint32)
    numbers[:4] = 0x7FC00001, 0xFFC00002, 0x80000000, 0x7F800000
    x = numbers[:16].view(np.float32).reshape(1, 4, 2, 2)
    example = MOVES.get(op, Example())
    results = run(op, x, *example.rest, outputs=2 if op == "Split" else 1, **example.attributes)
    moved = [number for result in results for number in bits(result)]
    assert moved
    assert set(moved) <= set(bits(x))
    if op in PERMUTING:
        assert sorted(moved) == sorted(bits(x))
    if op in RESHAPING:
        assert moved == bits(x)
    if op in REPEATING:
        assert set(moved) == set(bits(x))
        assert len(moved) > x.size


# -- one place --------------------------------------------------------------------------------------------------------

FEWEST = 4
NEAR = 0.7
"""The share of ops in both, of those in either, from which on a list is called a copy of a trait."""


def listed(node: ast.expr) -> set[str]:
    """The op types that a set, a tuple or a list of words names."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        return listed(node.args[0])
    if not isinstance(node, ast.Set | ast.Tuple | ast.List):
        return set()
    words: set[str] = set()
    for element in node.elts:
        if isinstance(element, ast.Starred):
            words |= listed(element.value)
        elif isinstance(element, ast.Constant) and isinstance(element.value, str):
            words.add(element.value)
    return words & SCHEMAS.keys()


def lists_of_ops() -> Iterator[tuple[str, set[str]]]:
    paths = [*(ROOT / "ortopt").rglob("*.py"), *(ROOT / "transformers").rglob("*.py")]
    for path in paths:
        parts = path.relative_to(ROOT).parts
        if parts[:2] in {("ortopt", "transformers"), ("ortopt", "semantics")}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Set | ast.Tuple | ast.List):
                ops = listed(node)
                if len(ops) >= FEWEST:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", ops


def test_no_other_list_is_nearly_a_trait() -> None:
    traits = {name: ops for name, ops in SETS.items() if len(ops) >= FEWEST and all(isinstance(op, str) for op in ops)}
    for where, ops in lists_of_ops():
        for name, trait in traits.items():
            share = len(ops & trait) / len(ops | trait)
            assert share < NEAR, f"{where} is nearly {name}: write it as an expression, with what differs and why"


@pytest.mark.parametrize("text", ['("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose")', "{*RELU, 'Abs'}"])
def test_lists_are_found(text: str) -> None:
    ops = listed(ast.parse(text, mode="eval").body)
    assert (len(ops & RESHAPING) == len(RESHAPING)) == (len(ops) >= FEWEST)
