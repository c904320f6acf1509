"""How two models differ, as data and on the terminal."""

from __future__ import annotations

import io
from typing import Any

import onnx_ir as ir

from ortopt.reporting import model_diff, report
from ortopt.testing import parse

A = """<ir_version: 8, opset_import: ["" : 17]>
main (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}> {
    m = MatMul (x, w) y = Add (m, b) }"""


def compared(a: str, b: str) -> dict[str, Any]:
    return model_diff.compare(parse(a), parse(b), "a.onnx", "b.onnx")


def shown(data: dict[str, Any]) -> str:
    out = io.StringIO()
    model_diff.show(data, report.console(out))
    return out.getvalue()


def test_a_model_does_not_differ_from_itself() -> None:
    data = compared(A, A)
    assert data["nodes"]["before"] == data["nodes"]["after"] == 2
    assert data["interface"] == data["header"] == []
    assert data["weights"] == {"same": 2, "renamed": 0, "changed": [], "removed": [], "added": []}
    assert "inputs and outputs: the same" in shown(data)


def test_nodes_are_counted_by_op() -> None:
    data = compared(A, A.replace("m = MatMul (x, w) y = Add (m, b)", "y = Gemm (x, w, b)"))
    assert data["nodes"]["by_op"] == {
        "Add": {"before": 1, "after": 0},
        "Gemm": {"before": 0, "after": 1},
        "MatMul": {"before": 1, "after": 0},
    }
    assert "2 nodes in A, 1 in B" in shown(data)


def test_the_interface_is_compared_by_name_type_shape_and_order() -> None:
    a = "main (float[N,2] x, float[2] z) => (float[N,2] y) { y = Add (x, z) }"
    b = "main (float[2] z, float[3,2] x) => (float[N,2] y, float[2] e) { y = Add (x, z) e = Neg (z) }"
    assert compared(a, b)["interface"] == [
        {"what": "input x", "kind": "another type", "a": "float[N, 2]", "b": "float[3, 2]"},
        {"what": "inputs", "kind": "another order", "a": "x, z", "b": "z, x"},
        {"what": "output e", "kind": "only in B", "a": None, "b": "float[2]"},
    ]


def test_the_header_is_compared() -> None:
    other = parse(A.replace("ir_version: 8", "ir_version: 9").replace('"" : 17', '"" : 18'))
    other.metadata_props["who"] = "me"
    rows = model_diff.compare(parse(A), other, "a", "b")["header"]
    assert [(row["what"], row["a"], row["b"]) for row in rows] == [
        ("IR version", "8", "9"),
        ("opset ai.onnx", "17", "18"),
        ("metadata who", None, "me"),
    ]


def test_weights_are_compared_by_what_they_hold() -> None:
    changed = A.replace("{1, 2, 3}>", "{1, 2, 4}>")
    assert compared(A, changed)["weights"]["changed"] == [{"name": "b", "type": "float[3]", "bytes": 12}]
    renamed = A.replace("float[3] b", "float[3] c").replace("(m, b)", "(m, c)")
    assert compared(A, renamed)["weights"] == {"same": 1, "renamed": 1, "changed": [], "removed": [], "added": []}
    other = A.replace("float[3] b = {1, 2, 3}", "float[1] c = {7}").replace("(m, b)", "(m, c)")
    found = compared(A, other)["weights"]
    assert [row["name"] for row in found["removed"]] == ["b"]
    assert [row["name"] for row in found["added"]] == ["c"]
    assert "only in A: 1, 12 B" in shown(compared(A, other))


def test_weights_of_one_content_and_another_type_or_shape_differ() -> None:
    other = A.replace("float[3] b = {1, 2, 3}", "float[1,3] b = {1, 2, 3}")
    assert [row["type"] for row in compared(A, other)["weights"]["changed"]] == ["float[1, 3]"]


def test_weights_of_strings_are_compared() -> None:
    models = []
    for text in ("a", "b"):
        model = parse("main (float[2] x) => (float[2] y) { y = Relu (x) }")
        tensor = ir.StringTensor([text.encode()], shape=ir.Shape([1]), name="s")
        value = ir.Value(name="s", const_value=tensor, type=ir.TensorType(ir.DataType.STRING), shape=ir.Shape([1]))
        model.graph.register_initializer(value)
        models.append(model)
    assert len(model_diff.compare(*models, "a", "b")["weights"]["changed"]) == 1


def test_names_are_fit_for_a_terminal() -> None:
    data = compared(A, A)
    data["weights"]["added"] = [{"name": "evil\x1b[31m\n", "type": "float[1]", "bytes": 4}]
    assert "\x1b" not in shown(data)
