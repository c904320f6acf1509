"""ONNX's own tests as runtimes are given them: in the opsets and forms in which they read them."""

from __future__ import annotations

from onnx import ModelProto

from tools.probe_targets import Forms, _count, cases, forms, recurrent_layers


def _version(model: ModelProto) -> int:
    return next(one.version for one in model.opset_import if not one.domain)


def test_a_test_has_forms_of_an_older_opset_and_with_constants() -> None:
    seen: dict[str, list[tuple[int, int]]] = {}
    for op, model, inputs, _ in cases():
        if op not in seen:
            seen[op] = [(_version(one), len(one.graph.initializer)) for one, _ in forms(model, inputs)]
            for one, given in forms(model, inputs):
                fixed = {value.name for value in one.graph.initializer}
                assert fixed | given.keys() == inputs.keys()
                assert [value.name for value in one.graph.input] == [name for name in inputs if name not in fixed]
    assert seen["Tan"][1][0] < seen["Tan"][0][0]  # 7, of float16, is older than 22, with bfloat16
    assert any(count for _, count in seen["Expand"])
    assert {version for version, _ in seen["Swish"]} == {seen["Swish"][0][0]}  # there is no older one


def test_tests_of_a_form_are_counted_together() -> None:
    known: Forms = []
    for op, model, inputs, _ in cases():
        if op == "Pad":
            _count(known, model, inputs, right=model.graph.node[0].attribute[0].s != b"wrap")
    counted = {
        (form["attributes"]["mode"], form["dtype"], form["given"]): (form["right"], form["tests"]) for form in known
    }
    assert counted["wrap", "int32", "xx>x"] == (0, 1)
    assert counted["wrap", "int64", "xx>x"] == (0, 1)
    assert counted["constant", "float", "xxx>x"] == (1, 1)
    assert counted["constant", "float", "xxxx>x"] == (2, 2)
    assert len(counted) == len(known)


def test_comparisons_of_integers_are_tested_with_floats() -> None:
    types = {str(next(iter(inputs.values())).dtype) for op, _, inputs, _ in cases() if op == "Equal"}
    assert types >= {"int32", "int64", "float32"}
    types = {str(next(iter(inputs.values())).dtype) for op, _, inputs, _ in cases() if op == "Mod"}
    assert types >= {"int32", "int64"}


def test_recurrent_layers_have_initial_states() -> None:
    known: Forms = []
    for _, model, inputs, outputs in recurrent_layers():
        assert outputs[0].shape[:1] == inputs["x"].shape[:1]
        _count(known, model, inputs, right=True)
    assert {form["given"] for form in known} == {"xxxx>xx", "xxxx>xxx", "xxxx-x>xx", "xxxx-xx>xxx"}
    assert {form["attributes"].get("linear_before_reset") for form in known} == {None, 0, 1}
