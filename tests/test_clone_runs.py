"""Transformers that bypass the editor: what they leave is checked, and takes the model's place wholly or not at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from ortopt import (
    GraphTransformerManager,
    Numerics,
    OnnxScriptRules,
    Options,
    RegistrationError,
    Target,
    TransformerError,
    optimize,
)
from ortopt.framework.workspace import ON_A_CLONE, Workspace
from ortopt.optimization.replay import RewriteLimit
from ortopt.serialization.save import save, to_bytes
from ortopt.testing import parse
from ortopt.transformer import Context, GraphTransformer
from tests.rules import applied

MODEL = """<ir_version: 10, opset_import: ["" : 17, "local" : 1]>
main (float[N] x) => (float[N] y) { a = Relu (x) b = local.twice (a) c = local.half (b) y = Neg (c) }
<domain: "local", opset_import: ["" : 17]> twice (p) => (q) { q = Add (p, p) }
<domain: "local", opset_import: ["" : 17]> half (r) => (s) { k = Constant <value_float = 0.5> () s = Mul (r, k) }
"""
Body = Callable[[ir.Graph, Context], object]


class Raw(GraphTransformer):
    """Edit a clone."""

    apply_once = True
    bypasses_editor = True
    numerics = Numerics.REORDERED

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        return self.body(graph, context)  # type: ignore[return-value]


def returns_nothing(graph: ir.Graph, context: Context) -> None:
    graph[0].doc_string = "seen"


def removes_a_used_node(graph: ir.Graph, context: Context) -> bool:
    graph.remove(graph[0])
    return True


def brings_no_names(graph: ir.Graph, context: Context) -> bool:
    graph[-1].replace_input_with(0, ir.Value())
    return True


def takes_an_output(graph: ir.Graph, context: Context) -> bool:
    graph.outputs.append(graph[0].outputs[0])
    return True


def renames_an_input(graph: ir.Graph, context: Context) -> bool:
    graph.inputs[0].name = "z"
    return True


def fixes_the_size_of_an_input(graph: ir.Graph, context: Context) -> bool:
    graph.inputs[0].shape = ir.Shape([7])
    return True


def calls_what_is_not_there(graph: ir.Graph, context: Context) -> bool:
    context.model.functions.pop(("local", "twice", ""))
    return True


def puts_a_graph_into_itself(graph: ir.Graph, context: Context) -> bool:
    graph[0].attributes["body"] = ir.AttrGraph("body", graph)
    return True


def uses_the_editor(graph: ir.Graph, context: Context) -> bool:
    context.edit.remove(graph[-1])
    return True


def substitutes(graph: ir.Graph, context: Context) -> bool:
    node = graph[0]
    return context.substitute({node.outputs[0]: ir.node("Tanh", node.inputs).outputs[0]}, before=node, origin=(node,))


def offers(graph: ir.Graph, context: Context) -> bool:
    return context.offer((graph[0],))


FAULTS: dict[Body, str] = {
    returns_nothing: "apply returned None: it must return True if it changed anything, else False",
    removes_a_used_node: "nothing defines 'a'",
    brings_no_names: "what it left is broken",
    takes_an_output: "and outputs 'y' FLOAT, 'a' FLOAT instead of",
    renames_an_input: "the model has inputs 'z' FLOAT",
    fixes_the_size_of_an_input: "the model has inputs 'x' FLOAT[7]",
    calls_what_is_not_there: "local.twice is called, and is no function of the model any more",
    puts_a_graph_into_itself: "stands at two places",
    uses_the_editor: ON_A_CLONE,
    substitutes: ON_A_CLONE,
    offers: ON_A_CLONE,
}


@pytest.mark.parametrize("body", FAULTS, ids=lambda body: body.__name__)
def test_a_fault_is_one_sentence_and_the_model_is_as_it_was(body: Body) -> None:
    model = parse(MODEL)
    before = to_bytes(model)
    manager, _ = applied(model, Raw(body), on_error="skip")
    (failure,) = manager.failures
    assert failure.transformer == "raw"
    assert FAULTS[body] in failure.reason
    assert "\n" not in str(failure)
    assert to_bytes(model) == before
    with pytest.raises(TransformerError, match="raw failed at level 1, step 1"):
        optimize(parse(MODEL), transformers=[Raw(body)], verify=False)


@pytest.mark.parametrize("body", FAULTS, ids=lambda body: body.__name__)
def test_others_go_on_and_their_numbers_too(body: Body) -> None:
    result = optimize(parse(MODEL), level=2, transformers=[Raw(body)], strict=False, verify=False)
    plain = optimize(parse(MODEL), level=2, verify=False)
    assert [failure.transformer for failure in result.summary.failures] == ["raw"]
    assert to_bytes(result.model) == to_bytes(plain.model)
    assert result.summary.rewrites == plain.summary.rewrites


def test_the_command_line_ends_as_for_any_pass_that_fails(tmp_path: Path) -> None:
    """Exit code 70 is for faults of ortopt."""
    save(parse(MODEL), tmp_path / "model.onnx")
    script = (
        "import sys; from ortopt import registry, cli; from tests.test_clone_runs import Raw, returns_nothing;"
        "Raw.__init__ = lambda self, **_: (super(Raw, self).__init__(), setattr(self, 'body', returns_nothing))[0];"
        "registry.installed().add(Raw, 'a test');"
        f"sys.argv = ['ortopt', 'optimize', {str(tmp_path / 'model.onnx')!r}, '--strict',"
        f" '-o', {str(tmp_path / 'out.onnx')!r}]; sys.exit(cli.main())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert "apply returned None" in done.stderr
    assert "report" not in done.stderr


def test_functions_come_and_go_with_the_clone() -> None:
    def exchanges(graph: ir.Graph, context: Context) -> bool:
        model = context.model
        (_, twice, half, _) = graph
        new = ir.node("Add", [twice.inputs[0], twice.inputs[0]])
        graph.insert_before(twice, new)
        twice.outputs[0].replace_all_uses_with(new.outputs[0])
        graph.remove(twice, safe=True)
        model.functions.pop(("local", "twice", ""))
        argument = ir.Value(name="argument")
        body = ir.node("Abs", [argument])
        added = ir.Graph([argument], body.outputs, nodes=[body], opset_imports={"": 17}, name="third")
        model.functions["local", "third", ""] = ir.Function("local", "third", graph=added, attributes=())
        call = ir.Node("local", "third", [half.outputs[0]], num_outputs=1)
        graph.insert_after(half, call)
        graph[-1].replace_input_with(0, call.outputs[0])
        model.metadata_props["seen"] = "yes"
        model.ir_version = 11
        return True

    manager, model = applied(MODEL, Raw(exchanges))
    assert manager.is_graph_modified
    assert [key[1] for key in model.functions] == ["half", "third"]
    assert [[node.op_type for node in function] for function in model.functions.values()] == [
        ["Constant", "Mul"],
        ["Abs"],
    ]
    assert [node.op_type for node in model.graph] == ["Relu", "Add", "half", "third", "Neg"]
    assert (dict(model.metadata_props), model.ir_version) == ({"seen": "yes"}, 11)


def test_functions_stay_where_the_clone_keeps_them() -> None:
    model = parse(MODEL)
    before = to_bytes(model)
    manager, _ = applied(model, Raw(lambda *_: True))
    assert manager.is_graph_modified
    assert to_bytes(model) == before

    def once(graph: ir.Graph, context: Context) -> bool:
        seen, graph[0].doc_string = graph[0].doc_string, "seen"
        return not seen

    result = optimize(parse(MODEL), level=1, transformers=[Raw(once)], keep_functions=True)
    assert result.verified
    assert {key[1] for key in result.model.functions} == {"half", "twice"}


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_what_is_not_accepted_leaves_model_and_editor_as_they_were(error: BaseException) -> None:
    workspace = Workspace(parse(MODEL), Options())
    other = parse("main (float[N] x) => (float[N] y) { y = Abs (x) }")
    model, edit, before = workspace.model, workspace.edit, to_bytes(workspace.model)

    def refuses() -> None:
        assert [node.op_type for node in model.graph] == ["Abs"]
        assert not model.functions
        raise error

    with pytest.raises(type(error)):
        workspace.swap_in(other, accept=refuses)
    assert to_bytes(model) == before
    assert workspace.edit is edit
    edit.rename(model.graph[0].outputs[0], "renamed")  # and it still edits what is there
    assert "renamed" in model.graph[1].inputs[0].name  # type: ignore[union-attr, operator]


def test_a_run_on_a_clone_may_be_refused_as_a_whole() -> None:
    manager, _ = applied(MODEL, Raw(lambda *_: True), observers=[RewriteLimit(0)])
    assert manager.history == ()


def test_what_is_for_a_target_alone_is_asked_as_a_whole_too() -> None:
    class ForOrt(Raw):
        """Edit a clone, for ONNX Runtime."""

        targets = (Target.ORT,)

    for target, runs in ((Target.ORT, 1), (Target.ONNX, 0)):
        manager, _ = applied(MODEL, ForOrt(lambda *_: False), options=Options(target=target))
        assert len(manager.history) == runs


def test_what_offers_no_single_nodes_cannot_be_for_some_providers() -> None:
    class OnCuda(Raw):
        """Edit a clone, of nodes on CUDA."""

        providers = ("CUDAExecutionProvider",)

    with pytest.raises(RegistrationError, match="cannot be for some providers only"):
        GraphTransformerManager().register(OnCuda(lambda *_: False))


def test_adapters_declare_what_they_bring() -> None:
    pattern = pytest.importorskip("onnxscript.rewriter.pattern")

    def rules() -> object:
        return pattern.RewriteRule(
            lambda op, x: op.Neg(x), lambda op, x: op.QuickGelu(x, alpha=1.0, _domain="com.microsoft"), name="quick"
        )

    model = "main (float[N] x) => (float[N] y) { a = Neg (x) y = Abs (a) }"
    undeclared = OnnxScriptRules(rules(), name="theirs", levels=[2])  # type: ignore[arg-type, list-item]
    declared = OnnxScriptRules(
        rules(),  # type: ignore[arg-type]
        name="theirs",
        levels=[2],  # type: ignore[list-item]
        produces=(("com.microsoft", "QuickGelu"),),
    )
    with pytest.raises(TransformerError, match=r"which it does not declare \(produces\)"):
        optimize(parse(model), level=2, only=["theirs"], transformers=[undeclared], verify=False)
    result = optimize(parse(model), level=2, only=["theirs"], transformers=[declared], verify=False)
    assert [node.op_type for node in result.model.graph] == ["QuickGelu", "Abs"]


def raises_the_opset(graph: ir.Graph, context: Context) -> bool:
    graph.opset_imports[""] = 99
    return True


def lowers_the_opset(graph: ir.Graph, context: Context) -> bool:
    graph.opset_imports[""] = 5
    return True


def brings_an_attribute(graph: ir.Graph, context: Context) -> bool:
    graph[0].attributes["alpha"] = ir.AttrFloat32("alpha", 0.5)
    return True


def brings_an_input(graph: ir.Graph, context: Context) -> bool:
    graph[0].resize_inputs(2)
    graph[0].replace_input_with(1, graph.inputs[0])
    return True


@pytest.mark.parametrize("body", [raises_the_opset, lowers_the_opset, brings_an_attribute, brings_an_input])
def test_nodes_that_are_others_now_are_checked_as_new_ones(body: Body) -> None:
    model = parse(MODEL)
    before = to_bytes(model)
    applied(model, Raw(body), on_error="skip")
    assert to_bytes(model) == before
