"""Whole numbers that come as floats, wherever from: what is computed of them stays the same integer, row or branch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto, helper, numpy_helper

from ortopt import RewriteRule, optimize, registry
from ortopt.errors import InvalidModelError
from ortopt.framework.workspace import Workspace
from ortopt.graph.match import inputs, producer
from ortopt.options import Numerics, Options
from ortopt.rule import Forwarded
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import all_fusions, run
from ortopt.verification.inputs import draw_inputs
from tests.all_passes.pass_examples import examples
from tests.all_passes.test_rounding import on_a_path
from tests.sessions import unoptimized
from tests.texts import table

CASES = Path(__file__).parent / "cases" / "whole_numbers.txt"
SOURCES = {name: more for name, *more in table(CASES, "from")}
CHAINS = dict(table(CASES, "to"))
MASK = np.tri(500, dtype=bool)
ARRAYS = {
    "UP": np.arange(5000),
    "ZEROS": np.zeros(500),
    "TRUE": MASK[-1],
    "MASK": MASK,
    "LENGTHS": MASK * np.arange(500),
}


def array_of(text: str, value: onnx.ValueInfoProto) -> np.ndarray:
    """Numbers, or the beginning of one of `ARRAYS`, in the type and rank that an input declares."""
    name, *size = text.split()
    found = ARRAYS[name][: int(*size or [500])] if name in ARRAYS else np.array([float(one) for one in text.split()])
    declared = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(declared.elem_type)
    return found.astype(dtype).reshape([dim.dim_value or -1 for dim in declared.shape.dim])


KINDS = {"float": np.float32, "float16": np.float16, "double": np.float64}


def model_of(source: str, chain: str, kind: str) -> tuple[ModelProto, dict[str, np.ndarray]]:
    given, body, feeds = SOURCES[source]
    dtype = KINDS[kind]
    to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    text = f"""<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
        main ({given}) => (int64 y) {{ {body} {CHAINS[chain]} }}
        <domain: "own", opset_import: ["" : 17]> whole (a) => (r) {{ r = Cast <to = TO> (a) }}"""
    for short, long in (("TO", str(to)), ("F[", f"{kind}["), ("F ", f"{kind} ")):
        text = text.replace(short, long)
    model = onnx.parser.parse_model(text)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.INT64, None))
    numbers = {"c0": 0, "c1": 1, "c7": 7, "c10": 10, "c31": 31, "c49": 49, "c217": 217, "c500": 500}
    numbers |= {"tenth": 0.1, "third": 0.3, "both": 0.4, "ones": np.ones(500), "kernel": np.ones((1, 1, 217))}
    numbers |= {"table": np.arange(500), "long": np.arange(1 << 21) % 500, "bits": [0, 1]}
    constants = {name: np.asarray(content, dtype) for name, content in numbers.items()}
    constants |= {"unit": np.float32(1), "zero": np.array(0), "depth": np.array(500), "squares": np.arange(9999) ** 2}
    constants |= {name: np.array([number]) for name, number in (("first", 0), ("one", 1), ("many", 500))}
    constants["ends"] = np.array([1, 1])
    used = set(text.replace(",", " ").replace("(", " ").replace(")", " ").split())
    for name in sorted(used & constants.keys()):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(constants[name]), name))
    held = dict(feed.split(" = ") for feed in feeds.split(", "))
    return model, {value.name: array_of(held[value.name], value) for value in model.graph.input}


def answers(model: ModelProto | bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(found) for found in unoptimized(model).run(None, feeds)]


def check(source: str, chain: str, kind: str, level: int) -> None:
    model, feeds = model_of(source, chain, kind)
    (expected,) = answers(model, feeds)
    result = optimize(model, level=level, verify=False)
    (found,) = answers(to_bytes(result.model), feeds)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize("source", SOURCES)
def test_wherever_they_come_from(source: str, level: int) -> None:
    check(source, "another integer", "float", level)


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize("source", ["an input", "the length of a mask", "a row of a table"])
@pytest.mark.parametrize("chain", CHAINS)
def test_wherever_they_go(chain: str, source: str, level: int) -> None:
    check(source, chain, "float", level)


@pytest.mark.parametrize("kind", ["float16", "double"])
@pytest.mark.parametrize("source", ["an input", "the length of a mask", "a product with ones", "positions"])
def test_of_any_precision(source: str, kind: str) -> None:
    check(source, "another integer", kind, 3)


def test_paths_of_weights_end() -> None:
    """Behind a product with weights everything is folded as ever."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
        main (float[N, 2] x) => (int64[N, 2] y)
        <float[2, 2] w = {0.3, 1.0, 2.0, 0.7}, float c49 = {49.0}, float c7 = {7.0}>
        { n = MatMul (x, w) d = Div (n, c49) e = Mul (d, c7) y = Cast <to = 7> (e) }""")
    result = optimize(model, level=1, verify=False)
    assert len(list(result.model.graph)) < 4


# -- passes that nothing keeps away from paths ------------------------------------------------------------------------

UNASKED = sorted(
    kind.name
    for kind in registry.installed()
    if (kind.numerics is Numerics.EXACT or kind.keeps_elementwise)
    and kind.__module__.startswith("ortopt.")
    and kind.name != "group_fusion"
)


def integers_on_a_path(model: ir.Model) -> list[int]:
    """The results of a model that are converted from floats on a path, by position."""
    exactness = Workspace(model, Options()).exactness
    found: list[int] = []
    for position, value in enumerate(model.graph.outputs):
        conversion = value.producer()
        floats = None if conversion is None or conversion.op_type != "Cast" else conversion.inputs[0]
        node = None if floats is None else floats.producer()
        if node is not None and exactness.step_behind([node]) is not None:
            found.append(position)
    return found


def differing(before: ir.Model, after: ir.Model) -> int | None:
    """How many integers on paths differ for small whole inputs; None if none is on a path, or not both models run."""
    exact = integers_on_a_path(before)
    if not exact:
        return None
    given = draw_inputs(before)
    rng = np.random.default_rng(0)
    for name in given:
        if name.endswith("_whole"):
            given[name] = rng.integers(-9, 60, given[name].shape).astype(given[name].dtype)
    try:
        expected, found = answers(to_bytes(before), given), answers(to_bytes(after), given)
    except Exception:  # a kernel of another provider, or operands that were drawn unluckily
        return None
    return sum(int(((expected[one] != found[one]) & (np.abs(expected[one]) < 1 << 24)).sum()) for one in exact)


def between_whole_numbers(model: ModelProto) -> ModelProto | None:
    results = [value.name for graph in (model.graph, *branches(model.graph)) for value in graph.output]
    if len(set(results)) < len(results):
        return None  # ONNX Runtime mixes up what a branch returns twice
    return on_a_path(model, every=True, whole=True)


def branches(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    return [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]


@pytest.mark.parametrize("name", UNASKED)
def test_a_pass_that_is_not_asked_keeps_integers(name: str) -> None:
    compared = 0
    for example, more in examples(name):
        model = between_whole_numbers(example)
        if model is None:
            continue
        try:
            before, after = load(model), load(model)
        except InvalidModelError:  # converted, it is no model any more: the name of its input is one within
            continue
        options = more.get("options") or all_fusions(more.get("target", "ort"))
        changed, _ = run(name, after, level=more.get("level"), options=options)
        difference = differing(before, after) if changed else None
        assert not difference
        compared += difference is not None
    if not compared:
        pytest.skip("it gives nothing on a path in its examples, or ONNX Runtime does not run them here")


class DivisionByThree(RewriteRule[Forwarded]):
    """``Div(x, 3) * 7`` → ``x * (7 / 3)``, and says that it is exact."""

    name = "division_that_says_it_is_exact"
    roots = ("Mul",)

    def match(self, root: ir.Node) -> Forwarded:
        division = producer(inputs(root, 1)[0], "Div")
        return Forwarded((division, root), division.inputs[0])  # type: ignore[arg-type]

    def rewrite(self, found: Forwarded) -> ir.Node:
        sevenths = ir.node("Div", [found.nodes[1].inputs[1], found.nodes[0].inputs[1]])
        return ir.node("Mul", [found.value, sevenths.outputs[0]])


def test_what_says_it_is_exact_and_rounds_is_found_so() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
        main (float[5000] n) => (float[5000] e) <float c3 = {3.0}, float c7 = {7.0}>
        { d = Div (n, c3) e = Mul (d, c7) }""")
    between = between_whole_numbers(model)
    assert between is not None
    before, after = load(between), load(between)
    changed, _ = run(DivisionByThree(), after)
    assert changed
    assert differing(before, after)
