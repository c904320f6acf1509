"""Supported nodes become one function of the domain ortopt.group, and the numbers stay."""

import json

import onnx
import pytest

from ortopt import registry
from ortopt.api import optimize
from ortopt.cancellation import CancellationToken
from ortopt.errors import OptimizationCancelled
from ortopt.manager import GraphTransformerManager
from ortopt.partition.groups import groups_of
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites, parse, run

PASS = "group_fusion"


def test_a_model_that_one_provider_runs_whole_is_one_group() -> None:
    model = check_rewrites(
        PASS,
        """main (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
            t = MatMul (x, w)
            y = Relu (t)
        }""",
    )
    (group,) = groups_of(model)
    assert group.provider == "CPUExecutionProvider"
    assert (group.name, [node.op_type for node in group.nodes]) == ("group_0", ["Constant", "MatMul", "Relu"])
    assert [value.name for value in group.inputs] == ["x"]
    assert [value.name for value in group.outputs] == ["y"]
    assert group.origin_count == 2
    assert model.ir_version >= 10
    onnx.checker.check_model(onnx.load_from_string(to_bytes(model)))


def test_types_and_metadata_are_in_the_file() -> None:
    model = check_rewrites(PASS, "main (float[N,4] x) => (float[N,4] y) { t = Abs (x) y = Relu (t) }")
    (function,) = onnx.load_from_string(to_bytes(model)).functions
    assert [info.name for info in function.value_info] == ["x", "t", "y"]
    said = {entry.key: entry.value for entry in function.metadata_props}
    assert said["ortopt.provider"] == "CPUExecutionProvider"
    assert said["ortopt.weights"] == "0"
    assert json.loads(said["ortopt.origin"])[-1] == 2


def test_the_origin_tells_names_of_eight_nodes_or_of_their_results_at_most() -> None:
    model = parse("main (float[N] x) => (float[N] y) { a = Exp (x) b = Sin (a) c = Cos (b) y = Tan (c) }")
    for node, name in zip(model.graph, ("first", None, "third", ""), strict=True):
        node.name = name
    assert run(PASS, model)[0]
    (found,) = groups_of(model)
    assert found.origin == ("first", "b", "third", "y")
    body = " ".join(f"t{i} = Exp (t{i - 1})" for i in range(1, 12))
    model = parse(f"main (float[N] t0) => (float[N] t11) {{ {body} }}")
    for place, node in enumerate(model.graph):
        node.name = f"n{place}"
    assert run(PASS, model)[0]
    (found,) = groups_of(model)
    assert (found.origin, found.origin_count) == (tuple(f"n{place}" for place in range(8)), 11)


def test_a_second_run_leaves_groups_alone() -> None:
    model = parse("main (float[N] x) => (float[N] y) { y = Relu (x) }")
    assert run(PASS, model)[0]
    before = to_bytes(model)
    assert not run(PASS, model)[0]
    assert to_bytes(model) == before


class Countdown(CancellationToken):
    """Cancels at its n-th check."""

    def __init__(self, checks: int) -> None:
        super().__init__()
        self.left_over = checks

    def check(self) -> None:
        self.left_over -= 1
        if self.left_over < 0:
            self.cancel()
        super().check()


@pytest.mark.parametrize("policy", ["cost", "literal"])
def test_stopped_anywhere_the_model_is_as_it_was(policy: str) -> None:
    body = " ".join(f"t{i} = {'Neg' if i % 20 == 0 else 'Abs'} (t{i - 1})" for i in range(1, 50))
    before = to_bytes(parse(f"main (float[2,2] x) => (float[2,2] y) {{ t0 = MatMul (x, x) {body} y = Relu (t49) }}"))
    checks = 0
    while True:
        model = load(before)
        manager = GraphTransformerManager()
        manager.register(registry.installed().find(PASS)(deny="Neg", policy=policy))
        try:
            manager.apply_transformers(model, 4, cancellation=Countdown(checks))
        except OptimizationCancelled:
            assert to_bytes(model) == before
            checks += 1
            continue
        break
    assert len(groups_of(model)) > 1
    assert checks > 15


def test_levels_2_to_4_run_again_and_come_to_an_end() -> None:
    result = optimize(
        parse(
            """main (float[N,4] x, float[4,4] w) => (float[N,4] y)
            <float half = {0.5}, float one = {1}, float r = {1.41421354}> {
            t = MatMul (x, w) d = Div (t, r) e = Erf (d) a = Add (e, one) m = Mul (t, a) y = Mul (m, half) }"""
        ),
        level=4,
    )
    assert result.verified
    assert result.summary.bound_reached == ()
    runs = [entry for entry in result.history if entry.transformer == PASS]
    assert [entry.modified for entry in runs if entry.graph == "main"] == [True, False]
    (found,) = groups_of(result.model)
    assert [node.op_type for node in found.nodes] == ["MatMul", "Gelu"]


def test_before_opset_9_integers_are_weights_of_a_group() -> None:
    """A Constant of a function could not hold them."""
    model = check_rewrites(
        PASS,
        """main (float[2,1] x) => (float[2,4] y) <int64[2] s = {2, 4}, float c = {2.0}> {
            e = Expand (x, s) t = Mul (e, c) y = Relu (t) }""",
        opset=8,
    )
    (found,) = groups_of(model)
    assert [node.op_type for node in found.nodes] == ["Constant", "Expand", "Mul", "Relu"]
    assert [value.name for value in found.weight_inputs] == ["s"]


KEPT = {
    "no chosen provider runs it": "y = Neg (x)",
    "its session would cost more than it saves": "t = Neg (x) u = Abs (t) y = Neg (u)",
    "a view at the edge costs nothing outside": "t = Neg (x) s = Shape (t) u = Reshape (t, s) y = Neg (u)",
}


@pytest.mark.parametrize("because", KEPT)
def test_reasons(because: str) -> None:
    fusion = registry.installed().find(PASS)(deny="Neg,Shape")
    check_keeps(fusion, f"main (float[N] x) => (float[N] y) {{ {KEPT[because]} }}", because)
