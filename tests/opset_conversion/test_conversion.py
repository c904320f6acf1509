"""Every op that onnx can convert computes the same; all else is carried as it is, or refused by name."""

import io
import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from ortopt import zoo
from ortopt.cli.group import commands
from ortopt.errors import UsageError
from ortopt.opset_conversion import converter
from ortopt.opset_conversion.child import REQUEST, main
from ortopt.opset_conversion.conversion import convert
from ortopt.serialization.checks.structure import validate
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.verification.inputs import draw_inputs
from ortopt.verification.verify import verify
from tests.sessions import unoptimized


@pytest.fixture
def here(monkeypatch):
    """The converter in this process, which starts sooner; what it is shown."""
    shown = []

    def run_here(requests, version, _token):
        shown.extend(requests)
        answers = io.BytesIO()
        main(io.BytesIO(b"".join(REQUEST.pack(version, len(one)) + one for one in requests)), answers)
        return converter._answers(answers.getvalue())

    monkeypatch.setattr(converter, "_run", run_here)
    return shown


def parsed(text, opset, ir_version=8):
    return load(onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}, "local": 1]> {text}'))


def ops(graph):
    return [node.op_type for node in graph]


def run(model, feeds):
    return unoptimized(model).run(None, feeds)


def check(model, version):
    """Convert, run before and after, compare; the converted model."""
    before = load(model)
    converted = convert(model, version)
    validate(converted)
    assert converted.opset_imports[""] == version
    feeds = draw_inputs(before)
    for expected, got in zip(run(before, feeds), run(converted, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)
    return converted


IMAGE = "float[1,1,6,6] x"
SCALES = {"up": "1, 1, 2, 2", "down": "1, 1, 0.4, 0.4"}
OF_THE_OPSET = {
    (7, 17): [
        ("BatchNormalization (x, one, one, one, one)", "BatchNormalization"),
        ("Upsample <scales = [1.0, 1.0, 2.5, 2.0]> (x)", "Resize"),
        ('Upsample <mode = "linear", scales = [1.0, 1.0, 2.5, 2.0]> (x)', "Resize"),
        ("Softmax (x)", "Reshape"),
        ("PRelu (x, one)", "PRelu"),
    ],
    (9, 21): [("Upsample (x, up)", "Resize"), ("Slice <axes = [3], starts = [1], ends = [3]> (x)", "Slice"),
              ("Clip <min = -0.5, max = 0.5> (x)", "Clip"), ("Scatter <axis = 3> (x, i, u)", "ScatterElements")],
    (10, 17): [
        ("Resize (x, up)", "Resize"),
        ("Resize (x, down)", "Resize"),
        ('Resize <mode = "linear"> (x, down)', "Resize"),
        ("Pad <pads = [0, 0, 1, 0, 0, 0, 1, 0], value = 2.0> (x)", "Pad"),
        ("Dropout (x)", "Dropout"),
    ],
    (11, 23): [
        ("ReduceSum <axes = [3], keepdims = 0> (x)", "ReduceSum"),
        ("ReduceMean <axes = [-1]> (x)", "ReduceMean"),
        ("Squeeze <axes = [0]> (x)", "Squeeze"),
        ("Unsqueeze <axes = [0]> (x)", "Unsqueeze"),
        ("LogSoftmax <axis = 2> (x)", "Reshape"),
        ("AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (x)", "AveragePool"),
        ("Relu (x)", "Relu"),
    ],
    (16, 21): [("GridSample <mode = \"bilinear\"> (x, grid)", "GridSample"), ("GridSample (x, grid)", "GridSample"),
               ("Resize (x, , up)", "Resize")],
    (13, 11): [("ReduceSum (x, axes)", "ReduceSum"), ("Squeeze (x, zero)", "Squeeze"), ("MatMul (x, x)", "MatMul")],
}  # fmt: skip


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("before", "after"), OF_THE_OPSET)
def test_what_onnx_converts_computes_the_same(before, after):
    calls = OF_THE_OPSET[before, after]
    body = " ".join(f"y{i} = {call}" for i, (call, _) in enumerate(calls))
    outputs = ", ".join(f"float[] y{i}" for i in range(len(calls)))
    constants = ", ".join(f"float[4] {name} = {{{numbers}}}" for name, numbers in SCALES.items())
    constants += ", float[1] one = {1}, int64[1] axes = {3}, int64[1] zero = {0}"
    constants += ", int64[1,1,1,6] i = {5,4,3,2,1,0}, float[1,1,1,6] u = {1,2,3,4,5,6}"
    model = parsed(f"main ({IMAGE}, float[1,2,2,2] grid) => ({outputs}) <{constants}> {{ {body} }}", before)
    for value in model.graph.outputs:
        value.shape = None
    converted = check(model, after)
    for i, (_, op) in enumerate(calls):
        assert converted.graph.outputs[i].producer().op_type == op


@pytest.mark.usefixtures("here")
def test_the_interface_and_what_people_wrote_are_kept():
    model = parsed(
        "main (float[batch,4] x, float[2] w = {1, 2}) => (float[batch,1] y, float[2] z) <int64[1] axes = {1}>"
        " { s = ReduceSum (x, axes) y = Relu (s) z = Identity (w) }", 13)  # fmt: skip
    node = model.graph[0]
    node.name, node.doc_string = "sum", "adds"
    node.metadata_props["origin"] = "here"
    node.outputs[0].metadata_props["note"] = "mine"
    model.metadata_props["author"] = "somebody"
    model.graph.doc_string = "a graph"
    model.opset_imports["custom"] = 3
    relu = model.graph[1]
    converted = convert(model, 11)
    assert [(one.name, str(one.shape)) for one in converted.graph.inputs] == [("x", "[batch,4]"), ("w", "[2]")]
    assert [one.name for one in converted.graph.outputs] == ["y", "z"]
    assert (node.name, node.doc_string, node.metadata_props["origin"]) == ("sum", "adds", "here")
    assert (node.outputs[0].name, node.outputs[0].metadata_props["note"]) == ("s", "mine")
    assert list(node.attributes["axes"].as_ints()) == [1]
    assert list(converted.graph.initializers) == ["w"]  # the axes have become an attribute
    assert converted.graph[1] is relu
    assert converted.opset_imports == {"": 11, "local": 1, "custom": 3}
    assert (converted.metadata_props["author"], converted.graph.doc_string) == ("somebody", "a graph")
    assert converted.ir_version == 8


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("version", "expected"), [(17, 8), (21, 10), (23, 11), (26, 13)])
def test_the_ir_version_is_raised_only_where_the_opset_needs_it(version, expected):
    assert (
        convert(parsed("main (float[2] x) => (float[2] y) { y = LeakyRelu (x) }", 16), version).ir_version == expected
    )


def test_subgraphs_are_converted_with_what_they_capture():
    model = parsed(
        """main (bool c, float[N,4] x, int64 n) => (float[] y, float[] z) {
            y = If (c) <
                then_branch = t () => (float[] p) { p = ReduceSum <axes = [1]> (x) },
                else_branch = e () => (float[] q) { q = Softmax <axis = 0> (x) }>
            z = Loop (n, c, x) <body = b (int64 i, bool d, float[N,4] s) => (bool f, float[N,4] r)
                { f = Identity (d) r = Dropout <ratio = 0.5> (s) }> }""", 11)  # fmt: skip
    converted = check(model, 21)
    branch = converted.graph[0].attributes["then_branch"].as_graph()
    assert ops(branch) == ["Constant", "ReduceSum"]
    assert ops(converted.graph[1].attributes["body"].as_graph()) == ["Identity", "Constant", "Dropout"]
    assert not branch.initializers


FUNCTION = '<domain: "local", opset_import: ["": {}]> total {} (x) => (y) {{ y = ReduceSum {} (x) }}'


@pytest.mark.usefixtures("here")
def test_functions_are_converted():
    text = "main (float[N,4] x) => (float[] y) { y = local.total (x) } "
    model = parsed(text + FUNCTION.format(11, "", "<axes = [1]>"), 11)
    converted = check(model, 18)
    (function,) = converted.functions.values()
    assert function.opset_imports == {"": 18}
    assert ops(function) == ["Constant", "ReduceSum"]


@pytest.mark.usefixtures("here")
def test_a_function_of_another_opset_is_brought_to_the_same():
    text = "main (float[N,4] x) => (float[] y) { y = local.total (x) } "
    model = parsed(text + FUNCTION.format(11, "", "<axes = [1]>"), 13)
    converted = convert(model, 13)
    (function,) = converted.functions.values()
    assert (function.opset_imports, ops(function)) == ({"": 13}, ["Constant", "ReduceSum"])


@pytest.mark.usefixtures("here")
def test_reference_attributes_stay_where_the_operator_is_the_same():
    text = "main (float[N,4] x) => (float[] y) { y = local.f <a = 0.5> (x) } "
    text += '<domain: "local", opset_import: ["": 13]> f <a> (x) => (y) { y = CALLED (x) }'
    converted = convert(parsed(text.replace("CALLED", "LeakyRelu <alpha: float = @a>"), 13), 17)
    (function,) = converted.functions.values()
    assert function[0].attributes["alpha"].ref_attr_name == "a"
    with pytest.raises(UsageError, match="ReduceMean: it has an attribute of the function, and its operator changed"):
        convert(parsed(text.replace("CALLED", "ReduceMean <axes: ints = @a>"), 13), 18)


def test_alike_nodes_are_shown_once(here):
    body = " ".join(f"v{i + 1} = Softmax <axis = 0> (v{i})" for i in range(50))
    converted = convert(parsed(f"main (float[2,3] v0) => (float[2,3] v50) {{ {body} }}", 11), 13)
    (data,) = here
    assert ops(onnx.ModelProto.FromString(data).graph.node) == ["Softmax"]
    assert len(list(converted.graph)) == 200
    validate(converted)


def test_weights_are_neither_shown_nor_copied(here, tmp_path):
    weight = np.arange(300 * 300, dtype=np.float32).reshape(300, 300)
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 12]> main (float[2,300] x) => (float[2,300] y) { m = MatMul (x, w)'
        " big = Constant <value = float[1] {0}> () y = Add (m, big) }"
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    proto.graph.node[1].attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(weight[0]))
    onnx.save(proto, tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    before = [model.graph.initializers["w"].const_value, model.graph[1].attributes["value"].as_tensor()]
    converted = convert(model, 21)
    after = [converted.graph.initializers["w"].const_value, converted.graph[1].attributes["value"].as_tensor()]
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert max(map(len, here)) < 1000


REFUSED = [
    ("y = NoSuchOp (x)", 13, 17, "NoSuchOp: ai.onnx does not have it at opset 13"),
    ("y = Gelu (x)", 20, 17, "Gelu: ai.onnx does not have it at opset 17"),
    ("y = Add <broadcast = 1, axis = 0> (x, x)", 6, 13, "Add: onnx's converter"),
    ("y = If (b) <then_branch = t () => (float[] p) { p = Gelu (x) }, else_branch = e () => (float[] q)"
     " { q = Identity (x) }>", 20, 17, "Gelu"),
    ("y = GroupNormalization <num_groups = 2> (x, x, x)", 18, 21, "GroupNormalization: its scale and bias"),
    ("y = Resize (x, x)", 10, 11, "Resize: whether it enlarges or shrinks"),
    ("y = ReduceSum (x, i)", 13, 11, "ReduceSum: onnx's converter"),
    ("y = Constant <value_ints = [1, 2]> ()", 13, 11, "Constant: it has no attribute 'value_ints' there"),
    ("y = Constant <value = bfloat16[1] {1}> ()", 13, 12, "Constant: it cannot be of type BFLOAT16 there"),
    ("b16 = Cast <to = 16> (x) s = Add (b16, b16) y = Cast <to = 1> (s)", 13, 12,
     "Cast: it has the type BFLOAT16, and fewer are allowed"),
]  # fmt: skip


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("body", "before", "after", "reason"), REFUSED)
def test_what_cannot_be_converted_is_named_and_nothing_is_changed(body, before, after, reason):
    body += " other = ReduceMean (x)" if after > before else ""
    model = parsed(f"main (float[N] x, int64[1] i, bool b) => (float[] y) {{ {body} }}", before)
    graphs = [ops(graph) for graph in model.graphs()]
    with pytest.raises(UsageError, match=f"opset {before} cannot become opset {after}") as caught:
        convert(model, after)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [ops(graph) for graph in model.graphs()] == graphs
    assert (model.opset_imports[""], model.ir_version) == (before, 8)


@pytest.mark.parametrize("version", [0, -1, 1000])
def test_a_version_that_is_none(version):
    with pytest.raises(UsageError, match="knows the opsets 1 to"):
        convert(parsed("main (float[2] x) => (float[2] y) { y = Relu (x) }", 13), version)


def test_a_converter_that_crashes_is_refused(monkeypatch):
    monkeypatch.setattr(converter, "_MODULE", "ortopt.no_such_module")
    with pytest.raises(UsageError, match="Relu: onnx's converter: it ended its process with status 1"):
        convert(parsed("main (float[2] x) => (float[2] y) { y = Relu (x) }", 13), 14)


def test_without_nodes_to_convert_no_process_starts(monkeypatch):
    monkeypatch.setattr(converter, "_run", None)
    model = parsed("main (float[2] x) => (float[2] y) { y = Sigmoid (x) }", 13)
    assert convert(model, 17).opset_imports[""] == 17


@pytest.mark.parametrize(("name", "versions"), [("lstm_tagger__ts13", (17, 21)), ("control_flow__script17", (21,))])
def test_zoo_models(name, versions, tmp_path):
    path = tmp_path / "model.onnx"
    zoo.grow(name, path)
    model = load(path)
    for version in versions:
        model = convert(model, version)
        validate(model)
        assert verify(path, model).status == "verified"


def test_from_the_command_line(tmp_path):
    path, out, told = tmp_path / "m.onnx", tmp_path / "o.onnx", tmp_path / "told.json"
    path.write_bytes(to_bytes(parsed("main (float[N,4] x) => (float[] y) { y = ReduceMean <axes = [1]> (x) }", 13)))
    command = ["optimize", str(path), "-o", str(out), "--json", str(told), "--opset"]
    done = CliRunner().invoke(commands, [*command, "18"])
    assert done.exit_code == 0, done.output
    proto = onnx.load(out)
    assert proto.opset_import[0].version == 18
    assert [node.op_type for node in proto.graph.node] == ["ReduceMean"]
    assert [one.name for one in proto.graph.initializer] == list(proto.graph.node[0].input)[1:]
    assert json.loads(told.read_text())["verification"]["status"] == "verified"
    done = CliRunner().invoke(commands, [*command, "99"])
    assert done.exit_code == 1
    assert "knows the opsets 1 to" in done.output
