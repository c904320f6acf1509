"""Checked passes: who breaks the model is named and left out, and costs only itself; good passes are never blamed."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from ortopt import GraphTransformer, InvalidModelError, TransformerError, optimize, zoo
from ortopt.instrumentation.check_each import CheckEach
from ortopt.partition.groups import groups_of
from ortopt.testing import parse
from tests.verification.wrong_passes import (
    BreaksAGroup,
    LeavesAUser,
    OutOfOrder,
    Raises,
    RenamesOutput,
    Tears,
    TearsAGroupCall,
    TearsInARule,
    WrongType,
)

pytestmark = pytest.mark.usefixtures("models_run_here")

MODEL = (
    "main (float[N,4] x) => (float[N,4] y) { a = Identity (x) b = Relu (a) c = Identity (b) e = Exp (c) y = Tanh (e) }"
)
CASES: list[tuple[type[GraphTransformer], str]] = [
    (Tears, "past the editor"),
    (OutOfOrder, "before it is computed"),
    (RenamesOutput, "has become output 'renamed'"),
    (LeavesAUser, "which is in no graph of the model"),
    (WrongType, "is said to be int64, where it computes float"),
    (TearsInARule, "past the editor"),
]


@pytest.mark.parametrize(("kind", "says"), CASES)
def test_who_breaks_the_model_is_named_and_costs_only_itself(kind: type[GraphTransformer], says: str) -> None:
    result = optimize(parse(MODEL), transformers=[kind()], check_each=True, strict=False, verify=False)
    (failure,) = result.summary.failures
    assert failure.transformer == kind.name
    assert (failure.level, failure.step) == (1, 1)
    assert failure.graph == "main"
    assert says in failure.reason
    assert [node.op_type for node in result.model.graph] == ["Relu", "Exp", "Tanh"]


@pytest.mark.parametrize("kind", [kind for kind, _ in CASES])
def test_under_strict_it_ends_the_run(kind: type[GraphTransformer]) -> None:
    with pytest.raises(TransformerError, match=kind.name):
        optimize(parse(MODEL), transformers=[kind()], check_each=True, strict=True, verify=False)


@pytest.mark.parametrize("kind", [Tears, OutOfOrder])
def test_a_result_that_is_broken_is_made_again_with_checks(kind: type[GraphTransformer]) -> None:
    result = optimize(parse(MODEL), transformers=[kind()], only=[kind.name], strict=False, verify=False)
    assert [failure.transformer for failure in result.summary.failures] == [kind.name]
    assert len(list(result.model.graph)) == 5


@pytest.mark.parametrize("check_each", [False, True])
def test_a_call_of_a_group_that_somebody_broke_is_not_blamed_on_who_reads_it(check_each: bool) -> None:
    text = "main (float[N,4] x, float[N,4] z) => (float[N,4] y) { a = Exp (x) b = MatMul (a, w) y = Add (b, z) }"
    model = parse(text.replace("{ a", "<float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> { a"))
    wrong = TearsAGroupCall()
    result = optimize(
        model, level=4, transformers=[wrong], settings={"group_fusion": {"deny": "Exp"}}, strict=False,
        check_each=check_each, verify=False,
    )  # fmt: skip
    assert [failure.transformer for failure in result.summary.failures] == [wrong.name]
    assert "has 2 inputs, and its call 1" in result.summary.failures[0].reason
    assert any(entry.transformer == "group_fusion" and entry.modified for entry in result.history)


@pytest.mark.parametrize(("check_each", "verify"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("kind", BreaksAGroup.__subclasses__())
def test_who_breaks_a_group_is_named_and_not_group_fusion(
    kind: type[BreaksAGroup], check_each: bool, verify: bool
) -> None:
    result = optimize(
        parse(MODEL), level=4, transformers=[kind()], strict=False, check_each=check_each, verify=verify
    )  # fmt: skip
    assert [failure.transformer for failure in result.summary.failures] == [kind.name]
    assert "the group 'group_0'" in result.summary.failures[0].reason
    assert [found.name for found in groups_of(result.model)] == ["group_0"]
    with pytest.raises(TransformerError, match=kind.name):
        optimize(parse(MODEL), level=4, transformers=[kind()], check_each=check_each, verify=verify)


@pytest.mark.parametrize("check_each", [False, True])
def test_nobody_is_blamed_for_groups_that_were_broken_in_the_file(check_each: bool) -> None:
    model = optimize(parse(MODEL), level=4, verify=False).model
    (group,) = groups_of(model)
    del group.function.metadata_props["ortopt.provider"]
    result = optimize(model, level=3, strict=False, check_each=check_each, verify=False)
    assert not result.summary.failures
    with pytest.raises(InvalidModelError, match=r"does not say its ortopt\.provider"):
        optimize(model, level=4, strict=False, check_each=check_each, verify=False)


def test_a_rule_that_raises_costs_only_itself() -> None:
    result = optimize(parse(MODEL), transformers=[Raises()], strict=False, check_each=True)
    assert [failure.transformer for failure in result.summary.failures] == ["raises"]
    assert result.verified
    assert [node.op_type for node in result.model.graph] == ["Relu", "Exp", "Tanh"]


@pytest.mark.parametrize(("asked", "looks"), [(False, 0), (True, 1)])
def test_nobody_looks_unless_asked_to(monkeypatch: pytest.MonkeyPatch, asked: bool, looks: int) -> None:
    seen: list[bool] = []
    inspect = CheckEach.inspect

    def counted(self: CheckEach, model: ir.Model, changed: bool) -> None:
        seen.append(changed)
        inspect(self, model, changed)

    monkeypatch.setattr(CheckEach, "inspect", counted)
    optimize(parse(MODEL), only=["identity_elimination"], check_each=asked, verify=False)
    assert seen.count(True) == looks


@pytest.mark.parametrize(
    "name", ["bert_small__dyn20raw", "control_flow__script17", "resnet18_qdq__qdq", "yolo_v8ish__ts17"]
)
def test_the_zoo_under_checks(name: str) -> None:
    result: Any = optimize(zoo.cached(name), check_each=True, verify=False)
    assert not result.summary.failures
