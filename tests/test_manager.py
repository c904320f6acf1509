"""GraphTransformerManager behaves as ONNX Runtime's does; one test for each of its behaviours."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import IdentityEliminationPass

from ortopt import (
    CancellationToken,
    Context,
    GraphTransformer,
    GraphTransformerManager,
    OptimizationCancelled,
    Options,
    RegistrationError,
    TransformerError,
    TransformerLevel,
    UnknownTransformerError,
    UsageError,
    optimize,
)
from ortopt import rule as rule_module
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import inputs, is_op
from ortopt.observers import Observer
from ortopt.options import Target
from ortopt.rule import Forwarded
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from ortopt.transformers.cleanup.constant_folding import ConstantFolding
from tests.rules import Swap, applied, ops

LEVEL1, LEVEL2 = TransformerLevel.LEVEL1, TransformerLevel.LEVEL2
pytestmark = pytest.mark.usefixtures("models_run_here")

CHAIN = "main (float[N] x) => (float[N] y) { a = Relu (x) b = Abs (a) c = Relu (b) d = Abs (c) y = Neg (d) }"


class Renames(Swap):
    """Relu becomes Sigmoid."""

    becomes = "Sigmoid"


class Watches(GraphTransformer):
    """Nothing becomes anything; counts its runs."""

    seen: ClassVar[list[str]] = []

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        self.seen.append(scope.label(graph))
        return False


class WatchesOnce(Watches):
    """Nothing becomes anything; counts its runs, once."""

    apply_once = True
    seen: ClassVar[list[str]] = []


class WatchesLoops(Watches):
    """Nothing becomes anything; counts its runs on models with a Neg or a loop."""

    needs = ("Loop", "Neg")
    seen: ClassVar[list[str]] = []


class WatchesForOnnx(Watches):
    """Nothing becomes anything; counts its runs for any ONNX runtime."""

    targets = (Target.ONNX,)
    offers_rewrites = True
    seen: ClassVar[list[str]] = []


class WatchesForCuda(Watches):
    """Nothing becomes anything; counts its runs where CUDA is among the providers."""

    providers = ("CUDAExecutionProvider",)
    offers_rewrites = True
    seen: ClassVar[list[str]] = []


class ListensToRefusals(Observer):
    """Wants to know why."""

    listens_to_refusals = True


class NeverDone(GraphTransformer):
    """Renames the first value for ever."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        value = graph[0].outputs[0]
        context.edit.rename(value, f"{value.name}x")
        return True


class Shortens(GraphTransformer):
    """Takes one Abs of an Abs away each time."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        for node in graph:
            (x,) = inputs(node, 1)
            if is_op(node, "Abs") and is_op(x.producer(), "Abs"):
                return bool(context.replace({node.outputs[0]: x}, before=node, origin=[node]))
        return False


class Raises(GraphTransformer):
    """Raises in the middle of an edit."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        node = graph[0]
        context.replace({node.outputs[0]: ir.node("Tanh", node.inputs).outputs[0]}, before=node, origin=[node])
        context.edit.remove(graph[-1])
        raise ValueError("no luck")


@pytest.fixture(autouse=True)
def _forget() -> None:
    Watches.seen.clear()
    WatchesOnce.seen.clear()


def test_register_keeps_a_list_per_level_and_refuses_a_second_of_the_same_name() -> None:
    manager = GraphTransformerManager()
    manager.register(Renames(), LEVEL1)
    manager.register(Renames(), LEVEL2)
    assert [t.name for t in manager.transformers(1)] == ["renames"]
    with pytest.raises(RegistrationError, match=r"level 1 already has .*Renames.*Renames"):
        manager.register(Renames(), LEVEL1)
    with pytest.raises(RegistrationError, match="two transformers are named constant_folding"):
        optimize(parse(CHAIN), transformers=[ConstantFolding()])


def test_register_without_a_level_uses_those_that_the_class_declares() -> None:
    manager = GraphTransformerManager()
    manager.register(Renames())
    assert manager.transformers(1)
    assert not manager.transformers(2)


def test_apply_runs_to_the_fixed_point() -> None:
    manager, model = applied(CHAIN, Renames())
    assert manager.is_graph_modified
    assert ops(model) == ["Sigmoid", "Abs", "Sigmoid", "Abs", "Neg"]
    assert max(entry.step for entry in manager.history) <= 2


def test_steps_that_make_the_graph_smaller_are_not_counted() -> None:
    body = " ".join(f"v{n + 1} = Abs (v{n})" for n in range(9))
    text = f"main (float[N] x) => (float[N] y) {{ v0 = Relu (x) {body} y = Neg (v9) }}"
    manager, model = applied(text, Shortens(), steps=2)
    assert ops(model) == ["Relu", "Abs", "Neg"]
    assert not manager.bound_reached
    assert max(entry.step for entry in manager.history) == 9


def test_apply_stops_at_the_bound_and_says_so() -> None:
    with pytest.warns(RuntimeWarning, match="level 1 still changed the graph in step 3"):
        manager, _ = applied(CHAIN, NeverDone(), steps=3)
    assert manager.bound_reached == [LEVEL1]
    assert len(manager.history) == 3


def test_apply_leaves_other_levels_alone() -> None:
    manager, model = GraphTransformerManager(), parse(CHAIN)
    manager.register(Renames())
    assert not manager.apply_transformers(model, 2)
    assert "Relu" in ops(model)


def test_apply_once_is_skipped_after_the_first_step() -> None:
    applied(CHAIN, Renames(), WatchesOnce())
    assert len(WatchesOnce.seen) == 1


def test_a_transformer_is_skipped_where_nothing_changed_since_it_said_so() -> None:
    class After(Watches):
        """Nothing; runs after the renaming."""

        name = "after_renames"
        after = ("renames",)

    applied(CHAIN, Renames(), After())
    assert len(Watches.seen) == 1  # step 2 finds the graph as After left it


def test_is_graph_modified_covers_the_last_call_and_can_be_cleared() -> None:
    manager, model = GraphTransformerManager(), parse(CHAIN)
    manager.register(Renames())
    assert not manager.is_graph_modified
    manager.apply_transformers(model, 1)
    assert manager.is_graph_modified
    manager.clear_graph_modified()
    assert not manager.is_graph_modified
    manager.apply_transformers(model, 1)
    assert not manager.is_graph_modified


def test_steps_can_be_set_and_read() -> None:
    manager = GraphTransformerManager()
    assert manager.steps == 10
    manager.set_steps(4)
    assert manager.steps == 4
    with pytest.raises(UsageError, match="at least 1"):
        manager.set_steps(0)
    with pytest.raises(UsageError, match=r"steps must be a whole number, not 1\.5"):
        manager.set_steps(1.5)  # type: ignore[arg-type]
    assert manager.steps == 4


def test_transformers_run_by_after_then_name_and_circles_are_refused() -> None:
    def transformer(name_: str, *after_: str) -> GraphTransformer:
        return type(name_, (Watches,), {"__doc__": "x", "name": name_, "after": after_})()

    manager = GraphTransformerManager()
    for one in (transformer("c"), transformer("a", "c"), transformer("b")):
        manager.register(one)
    assert [t.name for t in manager.transformers(1)] == ["b", "c", "a"]
    manager.register(transformer("d", "e"))
    manager.register(transformer("e", "d"))
    with pytest.raises(RegistrationError, match=r"circle: d, e"):
        manager.transformers(1)


NESTED = """<ir_version: 10, opset_import: ["" : 17, "local" : 1]>
main (float[N] x, bool c) => (float[N] y) {
    r = Relu (x)
    t = If (c) <
        then_branch = yes () => (float[N] p) { p = Relu (r) },
        else_branch = no () => (float[N] q) {
            q = If (c) <
                then_branch = yes2 () => (float[N] s) { s = Relu (x) },
                else_branch = no2 () => (float[N] u) { u = Neg (r) }
            >
        }
    >
    y = local.half (t)
}
<domain: "local", opset_import: ["" : 17]> half (a) => (b) { b = Relu (a) }
"""


def test_the_framework_visits_subgraphs_and_functions() -> None:
    _, model = applied(NESTED, Renames(), Watches())
    everywhere = [node.op_type for graph in scope.graphs(model) for node in graph]
    assert "Relu" not in everywhere
    assert everywhere.count("Sigmoid") == 4
    seen = set(Watches.seen)
    assert len(seen) == 6
    assert "function local.half" in seen
    assert "main/If:else_branch/If:then_branch" in {label.replace("/If_", "/If") for label in seen}, seen


@pytest.mark.parametrize(
    ("model", "runs"),
    [
        (CHAIN, 1),
        ("main (float[N] x) => (float[N] y) { a = Relu (x) y = Abs (a) }", 0),
        (
            """main (bool c, float[2] x) => (float[2] y) { y = If (c) <
                then_branch = yes () => (float[2] p) { p = Neg (x) },
                else_branch = no () => (float[2] r) { r = Abs (x) } > }""",
            3,
        ),
    ],
)
def test_a_transformer_runs_where_the_model_has_an_op_that_it_needs(model: str, runs: int) -> None:
    WatchesLoops.seen.clear()
    optimize(to_bytes(parse(model)), level=1, verify=False, transformers=[WatchesLoops()])
    assert len(WatchesLoops.seen) == runs


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (WatchesForOnnx, Options(target=Target.ONNX)),
        (WatchesForCuda, Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"))),
    ],
)
def test_a_transformer_for_another_target_or_provider_runs_only_to_say_why(
    kind: type[Watches], options: Options
) -> None:
    applied(CHAIN, kind(), options=options)
    assert kind.seen
    kind.seen.clear()
    applied(CHAIN, kind())
    assert not kind.seen
    applied(CHAIN, kind(), observers=[ListensToRefusals()])
    assert kind.seen


def test_history_names_level_step_transformer_graph_and_figures() -> None:
    manager, _ = applied(CHAIN, Renames())
    (entry,) = manager.history[:1]
    assert (entry.level, entry.step, entry.transformer, entry.graph) == (1, 1, "renames", "main")
    assert (entry.modified, entry.rewrites, entry.nodes_before, entry.nodes_after) == (True, 2, 5, 5)
    assert entry.seconds > 0
    with pytest.raises(AttributeError):
        entry.seconds = 0.0  # type: ignore[misc]


def test_an_exception_rolls_the_transformer_back_and_is_named() -> None:
    model = parse(CHAIN)
    before = to_bytes(model)
    with pytest.raises(
        TransformerError, match=r"raises failed at level 1, step 1, on graph 'main': ValueError: no luck"
    ):
        applied(model, Raises())
    assert to_bytes(model) == before


def test_a_failing_transformer_can_be_skipped_and_the_others_go_on() -> None:
    manager, model = applied(CHAIN, Raises(), Renames(), on_error="skip")
    assert [failure.transformer for failure in manager.failures] == ["raises"]
    assert ops(model) == ["Sigmoid", "Abs", "Sigmoid", "Abs", "Neg"]


def test_a_failing_rule_costs_only_itself() -> None:
    class Breaks(Renames):
        """Neg breaks."""

        name = "breaks"
        roots = ("Neg",)

        def rewrite(self, found: Forwarded) -> ir.Node:
            ir.node("Tanh", [found.value])
            raise KeyError("gone")

    manager, model = applied(CHAIN, Breaks(), Renames(), on_error="skip")
    assert [failure.transformer for failure in manager.failures] == ["breaks"]
    assert ops(model) == ["Sigmoid", "Abs", "Sigmoid", "Abs", "Neg"]
    (user,) = [use.node for use in model.graph[-2].outputs[0].uses()]
    assert user.op_type == "Neg"  # the half-built Tanh is no user any more


class Exhausts(GraphTransformer):
    """Everything becomes too much."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        context.edit.append(graph, ir.node("Abs", [graph.inputs[0]]))
        raise MemoryError


class ExhaustsAsRule(Renames):
    """Relu becomes too much."""

    def rewrite(self, found: Forwarded) -> ir.Node:
        raise MemoryError


class ExhaustsRaw(Exhausts):
    """The clone becomes too much."""

    bypasses_editor = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        raise MemoryError


@pytest.mark.parametrize("kind", [Exhausts, ExhaustsAsRule, ExhaustsRaw])
def test_memory_that_runs_out_ends_the_run_whoever_needed_it(kind: type[GraphTransformer]) -> None:
    manager, model = GraphTransformerManager(on_error="skip"), parse(CHAIN)
    before = to_bytes(model)
    manager.register(kind())
    with pytest.raises(MemoryError):
        manager.apply_transformers(model, 1)
    assert to_bytes(model) == before
    assert manager.failures == []


class CancelsAfter(Renames):
    """Relu becomes Sigmoid; sets the token after the first."""

    token: ClassVar[CancellationToken]

    def rewrite(self, found: Forwarded) -> ir.Node:
        self.token.cancel()
        return super().rewrite(found)


def test_cancellation_keeps_exactly_the_completed_rewrites() -> None:
    model = parse(CHAIN)
    CancelsAfter.token = CancellationToken()
    with pytest.raises(OptimizationCancelled):
        applied(model, CancelsAfter(), cancellation=CancelsAfter.token)
    assert ops(model) == ["Sigmoid", "Abs", "Relu", "Abs", "Neg"]


def test_cancellation_in_mid_edit_goes_back_to_the_last_completed_rewrite() -> None:
    class Stops(GraphTransformer):
        """Stops half-way through its second rewrite."""

        offers_rewrites = True

        def apply(self, graph: ir.Graph, context: Context) -> bool:
            for number, node in enumerate([node for node in graph if node.op_type == "Relu"], 1):
                assert context.offer([node])
                new = ir.node("Sigmoid", node.inputs)
                context.replace({node.outputs[0]: new.outputs[0]}, before=node, origin=[node])
                if number == 2:
                    context.edit.rename(graph[-2].outputs[0], "half_way")
                    context.cancellation.cancel()
                    context.cancellation.check()
            return True

    model = parse(CHAIN)
    with pytest.raises(OptimizationCancelled):
        applied(model, Stops(), cancellation=CancellationToken())
    assert ops(model) == ["Sigmoid", "Abs", "Relu", "Abs", "Neg"]
    assert "half_way" not in {value.name for node in model.graph for value in node.outputs}


def test_cancellation_carries_what_was_reached_through_the_api() -> None:
    CancelsAfter.token = CancellationToken()
    with pytest.raises(OptimizationCancelled) as caught:
        optimize(
            parse(CHAIN),
            level=1,
            passes="cancels_after",
            transformers=[CancelsAfter()],
            cancellation=CancelsAfter.token,
        )
    assert caught.value.result is not None
    assert ops(caught.value.result.model) == ["Sigmoid", "Abs", "Relu", "Abs", "Neg"]


def test_another_thread_may_cancel_within_a_tenth_of_a_second_on_a_large_graph() -> None:
    body = " ".join(f"v{i + 1} = Relu (v{i})" for i in range(4_000))
    model = parse(f"main (float[N] v0) => (float[N] v4000) {{ {body} }}")

    class Slow(Renames):
        """Relu becomes Sigmoid, slowly."""

        name = "slow"

        def match(self, root: ir.Node) -> Forwarded:
            if not timer.is_alive() and not cancelled:
                timer.start()
            time.sleep(0.001)
            return super().match(root)

    token = CancellationToken()
    cancelled = []

    def cancel() -> None:
        cancelled.append(time.monotonic())
        token.cancel()

    timer = threading.Timer(0.2, cancel)
    with pytest.raises(OptimizationCancelled):
        applied(model, Slow(), cancellation=token)
    assert cancelled
    left = ops(model).count("Relu")
    assert 0 < left < 4_000
    timer.join()


def test_a_deadline_returns_the_best_so_far_marked_stopped() -> None:
    class Waits(Renames):
        """Relu becomes Sigmoid, after the deadline."""

        name = "waits"

        def rewrite(self, found: Forwarded) -> ir.Node:
            time.sleep(0.3)
            return super().rewrite(found)

    result = optimize(parse(CHAIN), level=1, passes="waits", transformers=[Waits()], timeout=0.2, verify=False)
    assert result.stopped
    assert ops(result.model).count("Sigmoid") <= 1


def test_disabled_by_name_and_unknown_names_are_errors_with_the_nearest() -> None:
    text = "main (float[N] x) => (float[N] y) { t = Identity (x) y = Relu (t) }"
    assert ops(optimize(parse(text), level=1, verify=False).model) == ["Relu"]
    for name in ("identity_elimination", "IdentityElimination", "identity_elimination@1"):
        assert ops(optimize(parse(text), level=1, disable=[name], verify=False).model) == ["Identity", "Relu"]
    with pytest.raises(UnknownTransformerError, match="did you mean identity_elimination"):
        optimize(parse(text), disable=["identity_eliminatoin"], verify=False)
    with pytest.raises(UsageError, match="has no level '7'"):
        optimize(parse(text), disable=["identity_elimination@7"], verify=False)


def test_free_dimensions_are_overridden_by_name_or_denotation_and_conflicts_are_errors() -> None:
    text = "main (float[N,M] x, float[N] z) => (float[N,M] y) { y = Relu (x) }"
    model = optimize(parse(text), level=1, dims={"N": 3}, verify=False).model
    assert [str(value.shape) for value in model.graph.inputs] == ["[3,M]", "[3]"]
    assert str(model.graph.outputs[0].shape) == "[3,M]"
    denoted = parse(text)
    denoted.graph.inputs[0].shape = ir.Shape(["N", "M"], denotations=["DATA_BATCH", None])
    assert str(optimize(denoted, level=1, dims={"DATA_BATCH": 5}, verify=False).model.graph.inputs[1].shape) == "[5]"
    with pytest.raises(UsageError, match="ask for two values"):
        optimize(denoted, level=1, dims={"DATA_BATCH": 5, "N": 4}, verify=False)
    with pytest.raises(UsageError, match="no input has a dimension named K; the names: M, N"):
        optimize(parse(text), level=1, dims={"K": 3}, verify=False)
    with pytest.raises(UsageError, match="the size of dimension N must be at least 0, not -1"):
        optimize(parse(text), level=1, dims={"N": -1}, verify=False)
    with pytest.raises(UsageError, match="cannot be 9223372036854775808"):
        optimize(parse(text), level=1, dims={"N": 1 << 63}, verify=False)


def test_a_text_is_read_as_the_flags_value_and_never_letter_by_letter() -> None:
    model = parse("main (float[N] x) => (float[N] y) { a = Identity (x) y = Relu (a) }")
    for option in ("disable", "enable", "only"):
        with pytest.raises(UsageError, match="'nonsense'"):
            optimize(model, **{option: "nonsense"})  # type: ignore[arg-type]
    kept = optimize(model, disable="identity_elimination, cast_elimination", verify=False)
    assert [node.op_type for node in kept.model.graph] == ["Identity", "Relu"]
    for wrong in (5, [5], b"cpu"):
        with pytest.raises(UsageError, match="providers takes names, not"):
            optimize(model, providers=wrong)  # type: ignore[arg-type]


def test_what_is_asked_for_by_name_runs_or_is_an_error() -> None:
    model = parse("main (float[N] x) => (float[N] y) { y = Relu (x) }")
    asked = ({"only": ["group_fusion"]}, {"passes": "group_fusion"}, {"settings": {"group_fusion": {}}})
    for options in (*asked, {"enable": ["group_fusion"]}, {"transformers": [LevelFour()]}):
        with pytest.raises(UsageError, match=r"runs at level 4, and this run ends at level 1"):
            optimize(model, level=1, **options)  # type: ignore[arg-type]
        optimize(model, level=4, verify=False, **options)  # type: ignore[arg-type]
    optimize(model, level=1, transformers=[LevelFour()], disable=["level_four"], verify=False)
    with pytest.raises(UsageError, match=r"level_four .* it is not among the only ones that may"):
        optimize(model, level=4, transformers=[LevelFour()], only=["identity_elimination"], verify=False)
    with pytest.raises(UsageError, match=r"level_four .* the pipeline does not name it"):
        optimize(model, level=4, transformers=[LevelFour()], passes="identity_elimination", verify=False)
    with pytest.raises(UsageError, match="belong into the pipeline"):
        optimize(model, level=4, passes="group_fusion", settings={"group_fusion": {"policy": "literal"}}, verify=False)


class LevelFour(GraphTransformer):
    """Nothing becomes something else."""

    levels = (TransformerLevel.LEVEL4,)

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        return False


WRONG_ARGUMENTS: list[tuple[dict[str, object], str]] = [
    ({"transformers": [LevelFour]}, r"pass an instance, LevelFour\(\), not the class LevelFour"),
    ({"transformers": LevelFour()}, "a list of instances"),
    ({"transformers": LevelFour}, "a list of instances"),
    ({"transformers": ["level_four"]}, "pass an instance of GraphTransformer or RewriteRule, not str"),
    ({"dims": {"N": 0.5}}, r"the size of dimension N must be a whole number, not 0\.5"),
    ({"dims": {"N": True}}, "the size of dimension N must be a whole number, not True"),
    ({"dims": {0: 1}}, "0 is no name"),
    ({"dims": ["N"]}, "dims maps names of dimensions to sizes"),
    ({"dims": "N"}, "dims takes NAME=VALUE, several separated by commas, not 'N'"),
    ({"steps": 1.5}, r"steps must be a whole number, not 1\.5"),
    ({"steps": 0}, "steps must be at least 1, not 0"),
    ({"limit": "2"}, "limit must be a whole number, not '2'"),
    ({"opset": 18.0}, r"opset must be a whole number, not 18\.0"),
    ({"level": 2.5}, r"level must be a whole number, not 2\.5"),
    ({"max_growth": "10 furlongs"}, "'10 furlongs' is no size"),
    ({"max_growth": 1e6}, r"max_growth must be a whole number, not 1000000\.0"),
    ({"timeout": "1s"}, "the timeout must be a positive number of seconds, not '1s'"),
]


@pytest.mark.parametrize(("options", "says"), WRONG_ARGUMENTS)
def test_values_of_a_wrong_kind_are_refused_at_the_call(options: dict[str, object], says: str) -> None:
    model = parse("main (float[N] x) => (float[N] y) { y = Relu (x) }")
    with pytest.raises(UsageError, match=says):
        optimize(model, **{"level": 4, **options})  # type: ignore[arg-type]


def test_integers_of_numpy_are_whole_numbers() -> None:
    model = parse("main (float[N] x) => (float[N] y) { y = Relu (x) }")
    result = optimize(model, dims={"N": np.int64(3)}, steps=np.int32(2), verify=False)  # type: ignore[arg-type]
    assert result.model.graph.inputs[0].shape == ir.Shape([3])


def test_the_manager_says_what_to_pass() -> None:
    manager = GraphTransformerManager()
    with pytest.raises(UsageError, match=r"pass an instance, LevelFour\(\), not the class"):
        manager.register(LevelFour)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"not IdentityEliminationPass .*ortopt\.adapters"):
        manager.register(IdentityEliminationPass())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no level 7"):
        manager.register(LevelFour(), 7)
    with pytest.raises(UsageError, match=r"takes an onnx_ir\.Model, which it changes in place, not ModelProto"):
        manager.apply_transformers(ir.to_proto(parse(CHAIN)), 1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no level 0"):
        manager.apply_transformers(parse(CHAIN), 0)


@pytest.mark.parametrize("number", ["inf", "nan", "-inf", "0"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Max"])
def test_constants_without_bounds_make_no_noise(op: str, number: str) -> None:
    text = f"""main (float[2] x, float[2,2] m) => (float[2] y, float[2,2] n) <float[1] one = {{3}}> {{
        a = {op} (x, c) b = {op} (a, one) e = {op} (b, c) y = Exp (e) p = MatMul (m, w) n = {op} (p, c) }}"""
    model = parse(text.replace("<float", "<float[1] c = {1}, float[2,2] w = {1,1,1,1}, float"))
    for name, shape in (("c", (1,)), ("w", (2, 2))):
        model.graph.initializers[name].const_value = ir.Tensor(np.full(shape, float(number), np.float32), name=name)
    optimize(model, level=3)  # warnings are errors in tests


def test_a_bound_reached_is_that_of_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_module, "MAX_REWRITES", 100)

    class Grows(Swap):
        """Relu becomes another Relu."""

        becomes = "Relu"

    manager = GraphTransformerManager()
    manager.register(Grows())
    with pytest.warns(RuntimeWarning, match="were not done"):
        manager.apply_transformers(parse("main (float[N] x) => (float[N] y) { y = Relu (x) }"), 1)
    assert manager.bound_reached == [TransformerLevel.LEVEL1]
    manager.apply_transformers(parse("main (float[N] x) => (float[N] y) { y = Abs (x) }"), 1)
    assert manager.bound_reached == []


def test_rules_run_only_on_nodes_placed_on_their_providers() -> None:
    class OnCuda(Renames):
        """Relu becomes Sigmoid on CUDA."""

        name = "on_cuda"
        providers = ("CUDAExecutionProvider",)

    for providers, renamed in ((("CPUExecutionProvider",), 0), (("CUDAExecutionProvider", "CPUExecutionProvider"), 2)):
        _, model = applied(CHAIN, OnCuda(), options=Options(providers=providers))
        assert ops(model).count("Sigmoid") == renamed


def test_levels_run_in_order_and_again_while_level_4_changes_something() -> None:
    runs: list[int] = []

    class Level2(GraphTransformer):
        """Watches level 2."""

        levels = (TransformerLevel.LEVEL2,)

        def apply(self, graph: ir.Graph, context: Context) -> bool:
            runs.append(2)
            return False

    class Level4(GraphTransformer):
        """Turns the first Relu into a Sigmoid, one a round."""

        levels = (TransformerLevel.LEVEL4,)
        apply_once = True

        def apply(self, graph: ir.Graph, context: Context) -> bool:
            runs.append(4)
            for node in graph:
                if node.op_type == "Relu":
                    new = ir.node("Sigmoid", node.inputs)
                    context.replace({node.outputs[0]: new.outputs[0]}, before=node, origin=[node])
                    return True
            return False

    optimize(parse(CHAIN), level=4, passes="level4,level2", transformers=[Level2(), Level4()], verify=False)
    assert runs in ([2, 4, 2, 4, 2, 4], [2, 4, 2, 4, 4])


def test_the_same_model_gives_the_same_bytes() -> None:
    assert len({to_bytes(optimize(parse(NESTED), level=1).model) for _ in range(3)}) == 1


def test_tensors_that_were_given_keep_their_names() -> None:
    """The result shares their contents, and gives what it moves or renames a name of its own."""
    given = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17, "local" : 1]>
        main (float[2] x) => (float[2] y, float[2] z) {
            c = Constant <value = float[2] {1,2}> () y = Add (x, c) z = local.f (x)
        }
        <domain: "local", opset_import: ["" : 17]>
        f (a) => (b) { d = Constant <value = float[2] {3,4}> () b = Mul (a, d) }""")
    model = ir.from_proto(given)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    result = optimize(model, verify=False)
    assert not any(node.op_type == "Constant" for node in result.model.graph)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    names = [initializer.name for initializer in ir.to_proto(result.model).graph.initializer]
    assert sorted(names) == sorted(result.model.graph.initializers)


def test_what_was_given_is_never_changed() -> None:
    model = parse(NESTED)
    proto = ir.to_proto(model)
    bytes_before = proto.SerializeToString()
    optimize(model, level=1)
    optimize(proto, level=1)
    assert ir.to_proto(model).SerializeToString() == bytes_before == proto.SerializeToString()


def test_constants_become_nodes_in_functions_and_initializers_elsewhere() -> None:
    class AddsOne(Swap):
        """Relu becomes Add one."""

        def rewrite(self, found: Forwarded) -> ir.Node:
            return ir.node("Add", [found.value, constant(1.0)])

    _, model = applied(NESTED, AddsOne())
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Constant", "Add"]
    assert len(model.graph.initializers) == 1
    assert "Constant" not in ops(model)


def test_a_result_for_a_provider_that_is_not_here_is_verified_on_the_cpu() -> None:
    from ortopt.analysis.providers import usable

    if usable("CUDAExecutionProvider")[0]:
        pytest.skip("CUDA works here")
    with pytest.warns(RuntimeWarning, match=r"CUDAExecutionProvider does not work here .* verified on CPUExecution"):
        result = optimize(parse(CHAIN), level=1, providers=["cuda", "cpu"])
    assert result.verified
    assert result.verified_on == ("CPUExecutionProvider",)
    assert result.not_shown is None
    assert optimize(parse(CHAIN), level=1, providers=["cuda", "cpu"], verify=False).verification is None
