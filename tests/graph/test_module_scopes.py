"""The modules that PyTorch's exporter writes into metadata: read, and joined for nodes that stand for several."""

from __future__ import annotations

from ortopt.graph.module_scopes import CLASSES_KEY, NAMESPACE_KEY, SCOPES_KEY, joined, modules

ADD = {
    SCOPES_KEY: "['', 'm', 'm.layer.0', 'add']",
    CLASSES_KEY: "['Model', 'Bert', 'Layer', 'aten.add.Tensor']",
    NAMESPACE_KEY: ": Model/m: Bert/m.layer.0: Layer/add: aten.add.Tensor",
}
MUL = {
    SCOPES_KEY: "['', 'm', 'm.layer.1', 'mul']",
    CLASSES_KEY: "['Model', 'Bert', 'Layer', 'aten.mul.Tensor']",
    NAMESPACE_KEY: ": Model/m: Bert/m.layer.1: Layer/mul: aten.mul.Tensor",
}
NOWHERE = {SCOPES_KEY: "['_empty_nn_module_stack_from_metadata_hook', 'sym_size_int']"}


def test_one_says_what_it_said() -> None:
    assert joined([ADD], "node_Gemm", "Gemm") == ADD
    assert joined([ADD, dict(ADD), {}], "node_Gemm", "Gemm") == ADD


def test_several_say_what_they_share() -> None:
    assert joined([ADD, MUL], "/a/Gemm", "Gemm") == {
        SCOPES_KEY: "['', 'm', '/a/Gemm']",
        CLASSES_KEY: "['Model', 'Bert', 'Gemm']",
        NAMESPACE_KEY: ": Model/m: Bert/.a.Gemm: Gemm",
    }
    assert modules(joined([ADD, MUL], "node_Gemm", "Gemm")[SCOPES_KEY]) == ("m",)


def test_what_no_module_is_known_of_says_nothing_beside_others() -> None:
    assert joined([NOWHERE, ADD], "node_Gemm", "Gemm") == ADD
    assert joined([NOWHERE], "node_Gemm", "Gemm") == NOWHERE


def test_what_cannot_be_read_says_nothing_beside_others() -> None:
    unread = {SCOPES_KEY: "[1]"}
    assert joined([unread, ADD], "n", "Gemm")[SCOPES_KEY] == "['', 'm', 'm.layer.0', 'n']"
    assert joined([{}, {}], "n", "Gemm") == {}
    assert modules("[1]") is None
