"""A wrong rewrite is found by bisection and left out; what is right stays; what cannot be repaired is never written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import pytest

from ortopt import (
    CancellationToken,
    GraphTransformer,
    OptimizationCancelled,
    OptimizeResult,
    VerificationError,
    optimize,
)
from ortopt.api import Optimization, make_options
from ortopt.graph import scope
from ortopt.observers import Observer
from ortopt.optimization import repair as repair_module
from ortopt.optimization.transformation import Transformation
from ortopt.options import TransformerLevel
from ortopt.reporting.report import as_dict, describe_repair
from ortopt.testing import parse
from ortopt.verification import verify as verify_module
from ortopt.verification.result_comparison import ResultComparison
from tests.verification.wrong_passes import (
    Crash,
    NoOffer,
    Swap,
    Unloadable,
    WrongAtTwoLevels,
    WrongAxis,
    WrongInAGroup,
    WrongRaw,
    WrongRelu,
    WrongSum,
    WrongTanh,
    WrongText,
)

pytestmark = pytest.mark.usefixtures("models_run_here")

NAMES = "wrong_relu,identity_elimination"


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for graph in model.graphs() for node in graph]


def repaired(
    text: str | ir.Model, wrong: Sequence[GraphTransformer], *, opset: int = 20, also: Sequence[str] = (), **more: Any
) -> OptimizeResult:
    model = parse(text, opset) if isinstance(text, str) else text
    names = [one.name for one in wrong]
    return optimize(model, transformers=wrong, only=[*names, "identity_elimination", *also], **more)


MAIN = "main (float[{n},4] x) => (float[{n},4] y) {{ a = Identity (x) b = Relu (a) c = Identity (b) y = Tanh (c) }}"
IN_IF = """
main (float[{n},4] x, bool c) => (float[{n},4] y) {{
    i = Identity (x)
    y = If (c) <
        then_branch = g () => (float[{n},4] t) {{ k = Identity (i) t = Relu (k) }},
        else_branch = h () => (float[{n},4] e) {{ e = Tanh (i) }}
    >
}}"""
IN_LOOP = """
main (float[{n},4] x, int64 m, bool c) => (float[{n},4] y) {{
    y = Loop (m, c, x) <
        body = b (int64 i, bool go, float[{n},4] s) => (bool on, float[{n},4] t) {{
            on = Identity (go)
            k = Identity (s)
            r = Relu (k)
            t = Tanh (r)
        }}
    >
}}"""
IN_FUNCTION = """
<ir_version: 10, opset_import: ["" : 20, "here" : 1]>
main (float[{n},4] x) => (float[{n},4] y) {{ i = Identity (x) y = here.Act (i) }}
<opset_import: ["" : 20], domain: "here">
Act (a) => (b) {{ k = Identity (a) r = Relu (k) b = Tanh (r) }}
"""
PLACES = {"main": MAIN, "if": IN_IF, "loop": IN_LOOP, "function": IN_FUNCTION}
GRAPHS = {"main": "main", "if": "then_branch", "loop": "body", "function": "function here.Act"}


@pytest.mark.parametrize(("place", "dim"), list(itertools.product(PLACES, ("2", "N"))))
def test_a_wrong_rule_is_found_wherever_it_strikes(place: str, dim: str) -> None:
    result = repaired(PLACES[place].format(n=dim), [WrongRelu()], keep_functions=True)
    assert result.verified
    (repair,) = result.repairs
    assert repair.rewrite.transformer == "wrong_relu"
    assert repair.left_out == "pass"
    assert (repair.rewrite.level, repair.rewrite.step) == (1, 1)
    assert GRAPHS[place] in repair.rewrite.graph
    assert [op for _, op in repair.rewrite.nodes] == ["Relu"]
    assert repair.error > 0.01
    assert repair.error_before < 1e-6
    found = [node.op_type for node in result.model.graph]
    found += [n.op_type for graph in result.model.graphs() for n in graph]
    found += [n.op_type for function in result.model.functions.values() for n in function]
    assert "Relu" in found
    assert "Neg" not in found
    assert found.count("Identity") <= 2 * (place == "loop")  # right passes are not left out


KINDS: dict[str, tuple[str, str, type[GraphTransformer], str]] = {
    "float": ("float", "Relu ({0})", WrongRelu, "an error of"),
    "integer": ("int64", "Add ({0}, z)", WrongSum, "elements differ"),
    "string": ("string", "StringConcat ({0}, z)", WrongText, "elements differ"),
}
NESTED = {
    "main": "main ({t}[{n}] x, {t}[{n}] z) => ({t}[{n}] y) {{ i = Identity (x) y = {op} }}",
    "if": """main ({t}[{n}] x, {t}[{n}] z, bool c) => ({t}[{n}] y) {{ y = If (c) <
        then_branch = g () => ({t}[{n}] t) {{ i = Identity (x) t = {op} }},
        else_branch = h () => ({t}[{n}] e) {{ i = Identity (x) e = {op} }}> }}""",
    "loop": """main ({t}[{n}] x, {t}[{n}] z, int64 m, bool c) => ({t}[{n}] y) {{
        u = Loop (m, c, x) <body = b (int64 k, bool go, {t}[{n}] s) => (bool on, {t}[{n}] r) {{
            on = Identity (go) r = Identity (s) }}>
        v = Loop (m, c, u) <body = d (int64 k, bool go, {t}[{n}] s) => (bool on, {t}[{n}] r) {{
            on = Identity (go) i = Identity (s) r = {op} }}>
        y = Identity (v) }}""",
    "function": """<ir_version: 10, opset_import: ["" : 20, "here" : 1]>
        main ({t}[{n}] x, {t}[{n}] z) => ({t}[{n}] y) {{ y = here.F (x, z) }}
        <opset_import: ["" : 20], domain: "here">
        F (x, z) => (y) {{ i = Identity (x) y = {op} }}""",
}


@pytest.mark.parametrize(("place", "kind", "dim"), list(itertools.product(NESTED, KINDS, ("3", "N"))))
def test_every_kind_of_output_everywhere(place: str, kind: str, dim: str) -> None:
    type_, op, wrong, says = KINDS[kind]
    result = repaired(NESTED[place].format(t=type_, n=dim, op=op.format("i")), [wrong()], keep_functions=True)
    assert result.verified
    (repair,) = result.repairs
    assert (repair.rewrite.transformer, repair.left_out) == (wrong().name, "pass")
    assert {"main": "main", "if": "_branch", "loop": "body", "function": "function here.F"}[
        place
    ] in repair.rewrite.graph
    assert [op_type for _, op_type in repair.rewrite.nodes] == [op.split()[0]]
    assert says in repair.reason
    kept = [*ops(result.model), *(node.op_type for one in result.model.functions.values() for node in one)]
    assert op.split()[0] in kept
    assert kept.count("Identity") <= 5 * (place == "loop"), "right passes are not left out"


def test_a_pass_that_is_wrong_in_groups_is_left_out_and_not_group_fusion() -> None:
    result = repaired(MAIN.format(n="N"), [WrongInAGroup()], level=4, also=["group_fusion"])
    assert result.verified
    assert [repair.rewrite.transformer for repair in result.repairs] == ["wrong_in_a_group"]
    (function,) = result.model.functions.values()
    assert [node.op_type for node in function if node.op_type != "Identity"] == ["Relu", "Tanh"]


def test_two_wrong_passes_at_two_levels_are_both_left_out_and_the_right_one_stays() -> None:
    result = repaired(MAIN.format(n="N"), [WrongRelu(), WrongTanh()])
    assert result.verified
    assert sorted(repair.rewrite.transformer for repair in result.repairs) == ["wrong_relu", "wrong_tanh"]
    assert {repair.rewrite.transformer: repair.rewrite.level for repair in result.repairs} == {
        "wrong_relu": 1,
        "wrong_tanh": 2,
    }
    assert ops(result.model) == ["Relu", "Tanh"]


def test_a_wrong_pass_of_two_levels_is_left_out_at_both() -> None:
    text = "main (float[N] x) => (float[N] y) { i = Identity (x) s = Sigmoid (i) t = Relu (s) y = Sigmoid (t) }"
    result = repaired(text, [WrongAtTwoLevels()])
    assert result.verified
    assert len(result.repairs) == 1
    assert ops(result.model) == ["Sigmoid", "Relu", "Sigmoid"]


@pytest.mark.parametrize(("kind", "op", "wrong"), [(WrongRaw, "Abs", "Neg"), (NoOffer, "Floor", "Ceil")])
def test_a_pass_that_offers_nothing_is_one_rewrite(kind: type[GraphTransformer], op: str, wrong: str) -> None:
    text = f"main (float[N] x) => (float[N] y) {{ i = Identity (x) a = {op} (i) y = Identity (a) }}"
    result = repaired(text, [kind()])
    assert result.verified
    (repair,) = result.repairs
    assert repair.rewrite.nodes == ()
    assert repair.rewrite.transformer == kind.name
    assert op in ops(result.model)
    assert wrong not in ops(result.model)


def test_only_the_rewrite_is_left_out_where_the_pass_is_kept() -> None:
    """Softmax over the first axis is right where both are one."""
    body = "y = Softmax <axis = -1> (x) w = Softmax <axis = -1> (z)"
    text = f"main (float[4] x, float[3,4] z) => (float[4] y, float[3,4] w) {{ {body} }}"
    whole = repaired(text, [WrongAxis()])
    assert whole.verified
    assert [node.attributes.get_int("axis", 7) for node in whole.model.graph] == [-1, -1]
    kept = repaired(text, [WrongAxis()], keep_pass=True)
    assert kept.verified
    assert [node.attributes.get_int("axis", 7) for node in kept.model.graph] == [0, -1]
    (repair,) = kept.repairs
    assert repair.left_out == "rewrite"
    assert repair.output == "w"
    assert repair.rewrite.number == 2


def test_a_pass_that_is_wrong_again_and_again_is_left_out_in_the_end() -> None:
    count = repair_module.MAX_REWRITES_LEFT_OUT + 3
    outputs = ", ".join(f"float[4] y{i}" for i in range(count))
    body = " ".join(f"y{i} = Relu (x{i})" for i in range(count))
    text = f"main ({outputs.replace('y', 'x')}) => ({outputs}) {{ {body} }}"
    result = repaired(text, [WrongRelu()], keep_pass=True)
    assert result.verified
    assert [repair.left_out for repair in result.repairs][-2:] == ["rewrite", "pass"]
    assert len(result.repairs) == repair_module.MAX_REWRITES_LEFT_OUT + 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("main (int64[N] x, int64[N] z) => (int64[N] y) { i = Identity (x) w = Abs (z) y = Mod (i, w) }", Crash),
        ("main (float[N] x) => (float[N] y) { i = Identity (x) y = Elu (i) }", Unloadable),
    ],
)
@pytest.mark.processes
def test_a_result_that_does_not_run_is_repaired_too(text: str, kind: type[GraphTransformer]) -> None:
    import numpy as np

    given = {name: np.arange(1, 5) for name in ("x", "z")} if kind is Crash else None
    result = repaired(text, [kind()], inputs=given)
    assert result.verified
    (repair,) = result.repairs
    assert repair.rewrite.transformer == kind.name
    assert "does not" in repair.reason
    assert repair.error == float("inf")


class Half(Swap):
    """Neg of Neg: wrong alone, right together with the next one."""

    roots = ("Elu",)
    becomes = "Neg"


class OtherHalf(Swap):
    """Undoes what the first one did wrong, in another spelling: with the first one's it would go on for ever."""

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Neg",)
    becomes = "Celu"


def test_what_a_later_rewrite_hides_is_no_failure() -> None:
    text = "main (float[N] x) => (float[N] y) { i = Identity (x) y = Elu (i) }"
    result = repaired(text, [Half(), OtherHalf()])
    assert result.verified
    assert not result.repairs


def test_a_failure_that_comes_goes_and_comes_again_is_repaired() -> None:
    text = "main (float[N] x) => (float[N] y, float[N] z) { i = Identity (x) y = Elu (i) z = Tanh (i) }"
    result = repaired(text, [Half(), OtherHalf(), WrongTanh()])
    assert result.verified
    assert {"wrong_tanh"} <= {repair.rewrite.transformer for repair in result.repairs}
    assert sorted(ops(result.model)) == ["Celu", "Tanh"]


def test_probes_grow_with_the_logarithm_and_compare_only_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    plain = ResultComparison.verdict

    def counted(self: ResultComparison, result: Any, **more: Any) -> Any:
        asked.append((self.reference.wanted, tuple(self.reference.sets)))
        return plain(self, result, **more)

    monkeypatch.setattr(ResultComparison, "verdict", counted)
    body = " ".join(f"i{i} = Identity (x) y{i} = Abs (i{i})" for i in range(32))
    outputs = ", ".join(f"float[N] y{i}" for i in range(32))
    text = f"main (float[N] x) => ({outputs}, float[N] r) {{ {body} r = Relu (x) }}"
    result = repaired(text, [WrongRelu()])
    assert result.verified
    (repair,) = result.repairs
    assert repair.probes <= 7
    (first, _), *probes, (last, _) = asked
    assert len(probes) == repair.probes
    assert {wanted for wanted, _ in probes} == {frozenset({"r"})}
    assert len(first) == len(last) == 33  # what was found first, and the repaired result, are compared as a whole


def test_observers_that_watch_are_not_told_of_replays_and_those_that_decide_are_asked() -> None:
    class Watches(Observer):
        def __init__(self) -> None:
            self.events: list[str] = []

        def begin(self) -> None:
            self.events.append("begin")

        def before(self, *_: Any) -> None:
            self.events.append("before")

    class Decides(Observer):
        def __init__(self) -> None:
            self.asked = 0

        def offer(self, transformer: GraphTransformer, nodes: Any, number: int, why: str) -> bool:
            self.asked += 1
            return transformer.name != "identity_elimination"

    watches, decides = Watches(), Decides()
    result = repaired(MAIN.format(n="N"), [WrongRelu()], observers=[watches, decides])
    assert result.verified
    assert watches.events.count("begin") == 2
    assert decides.asked > 4
    assert ops(result.model).count("Identity") == 2
    assert [repair.rewrite.transformer for repair in result.repairs] == ["wrong_relu"]


def test_a_limit_holds_in_replays() -> None:
    result = repaired(MAIN.format(n="N"), [WrongRelu(), WrongTanh()], limit=1)
    assert result.verified
    assert len(ops(result.model)) == 3
    assert not {"Neg", "Sin"} & set(ops(result.model))


class Unsteady(WrongRelu):
    """Relu becomes Neg the first time only."""

    def __init__(self) -> None:
        super().__init__()
        self.done = False

    def rewrite(self, found: Any) -> ir.Node:
        node = ir.node("Relu" if self.done else "Neg", [found.value], doc_string="told")
        self.done = True
        return node

    def match(self, root: ir.Node) -> Any:
        found = super().match(root)
        if root.doc_string == "told":
            scope.of(root.graph)
            from ortopt.graph.match import Refusal

            raise Refusal("it was", found.value)
        return found


def test_a_pass_that_cannot_be_replayed_is_said_to_be_one() -> None:
    with pytest.raises(VerificationError, match="does not do the same each time"):
        repaired("main (float[N] x) => (float[N] y) { y = Relu (x) }", [Unsteady()])


def test_without_repair_a_wrong_result_is_an_error() -> None:
    with pytest.raises(VerificationError, match="differs from the original: output 'y'") as caught:
        repaired(MAIN.format(n="N"), [WrongRelu()], repair=False)
    assert "blamed" not in str(caught.value)


def test_what_differs_before_the_first_rewrite_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Transformation._prepare

    def wrong(self: Any, token: CancellationToken) -> None:
        prepare(self, token)
        next(node for node in self.model.graph if node.op_type == "Tanh").op_type = "Sin"

    monkeypatch.setattr(Transformation, "_prepare", wrong)
    with pytest.raises(VerificationError, match="differs before the first rewrite"):
        repaired(MAIN.format(n="N"), [WrongRelu()])


def test_cancelling_during_a_repair_leaves_the_model_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortopt.optimization.bisection import Bisection

    token = CancellationToken()
    compare = Bisection.compare

    def cancels(self: Any, *arguments: Any, **more: Any) -> Any:
        token.cancel()
        return compare(self, *arguments, **more)

    monkeypatch.setattr(Bisection, "compare", cancels)
    with pytest.raises(OptimizationCancelled) as caught:
        repaired(MAIN.format(n="N"), [WrongRelu()], cancellation=token)
    assert caught.value.result is not None
    assert ops(caught.value.result.model) == ["Identity", "Relu", "Identity", "Tanh"]


def test_a_repair_without_time_gives_the_best_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search is stopped after two probes: what they found to agree is what comes out."""
    from ortopt.cancellation import DeadlinePassed
    from ortopt.optimization.bisection import Bisection

    compare, left = Bisection.compare, itertools.count()

    def late(self: Any, *arguments: Any, **more: Any) -> Any:
        if next(left) >= 2:
            raise DeadlinePassed
        return compare(self, *arguments, **more)

    monkeypatch.setattr(Bisection, "compare", late)
    body = " ".join(f"i{i} = Identity (x) y{i} = Abs (i{i})" for i in range(8))
    outputs = ", ".join(f"float[N] y{i}" for i in range(8))
    text = f"main (float[N] x) => ({outputs}, float[N] r) {{ {body} r = Relu (x) }}"
    result = repaired(text, [WrongRelu()], timeout=100.0)
    assert result.stopped
    assert result.verified
    assert "Neg" not in ops(result.model)
    assert 0 < ops(result.model).count("Identity") < 8


def test_verification_without_time_leaves_the_model_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair_module, "TIME_TO_CHECK", 1e-6)

    def late(self: Any, result: Any, **_: Any) -> Any:
        import time

        time.sleep(0.2)
        return verify_module.Verification("impossible", "it took longer than 0 s")

    monkeypatch.setattr(verify_module, "Reference", lambda *_, **__: type("Late", (Stub,), {"compare": late})())
    result = repaired(MAIN.format(n="N"), [WrongRelu()], timeout=0.1)
    assert result.stopped
    assert not result.verified
    assert ops(result.model) == ["Identity", "Relu", "Identity", "Tanh"]


class Stub:
    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def test_the_report_names_pass_rewrite_nodes_and_error() -> None:
    data = as_dict(repaired(IN_FUNCTION.format(n="N"), [WrongRelu()], keep_functions=True))
    (row,) = data["repairs"]
    assert row["pass"] == "wrong_relu"
    assert row["nodes"] == [{"name": "r", "op": "Relu"}]
    assert row["error"] > 0.01
    assert data["verified"] is True
    line = describe_repair(row)
    assert f"rewrite {row['rewrite']} of Relu 'r' by wrong_relu (level 1, step 1, graph function here.Act)" in line
    assert line.endswith("wrong_relu was left out")
    assert "'y'" in line


def test_the_same_model_gives_the_same_repair() -> None:
    from ortopt.serialization.save import to_bytes

    first, second = (repaired(MAIN.format(n="N"), [WrongRelu(), WrongTanh()]) for _ in range(2))
    assert to_bytes(first.model) == to_bytes(second.model)
    assert [repair.rewrite for repair in first.repairs] == [repair.rewrite for repair in second.repairs]


def test_a_run_in_phases_is_repaired_in_place() -> None:
    options = make_options(
        level=3, providers=("cpu",), target="ort", steps=10, passes=None, only=("identity_elimination", "wrong_relu")
    )
    run = Optimization(parse(MAIN.format(n="N")), options, transformers=[WrongRelu()])
    run.transform()
    assert "Neg" in ops(run.model)
    assert run.verify().status == "verified"
    assert "Neg" not in ops(run.model)
    assert len(run.result(run.verification).repairs) == 1
