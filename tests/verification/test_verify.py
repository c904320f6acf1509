import os
import subprocess
import threading
from concurrent.futures import Future

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortopt.errors import UsageError
from ortopt.system.child_processes import GREETING
from ortopt.verification import process, result_comparison, worker
from ortopt.verification.inputs import draw_inputs
from ortopt.verification.verify import Reference, Verification, verify


class Thread:
    """A worker in this process, where it starts sooner."""

    def __init__(self, *_, **__):
        requests, self.stdin = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
        self.stdout, answers = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
        self._thread = threading.Thread(target=self._serve, args=(requests, answers))
        self._thread.start()

    @staticmethod
    def _serve(*arguments):
        with arguments[-2], arguments[-1]:
            arguments[-1].write(GREETING)
            worker.main(*arguments)

    def kill(self):
        self.stdin.close()

    def wait(self):
        self._thread.join()
        return 0


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch, request):
    if "processes" not in request.keywords:
        monkeypatch.setattr(subprocess, "Popen", Thread)


def parsed(text, opset=17):
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}'))


ADD = (
    "main (float[N,4] x) => (float[N,4] y) {{ c = Constant <value = float[4] {{1, 2, 3, {last}}}> () y = Add (x, c) }}"
)


@pytest.mark.processes
def test_a_model_agrees_with_itself():
    model = parsed(ADD.format(last=4))
    found = verify(model, model)
    assert found.status == "verified"
    assert 3 <= found.input_sets <= 7  # one of them without elements, further ones as far as there is time
    assert found.worst == 0
    assert [row.name for row in found.outputs] == ["y"]
    assert found.seconds > 0


@pytest.mark.parametrize(("last", "status"), [("4.000001", "verified"), ("4.01", "differs")])
def test_rounding_is_not_a_difference(last, status):
    found = verify(parsed(ADD.format(last=4)), parsed(ADD.format(last=last)))
    assert found.status == status
    assert (status == "verified") == (found.reason == "")
    assert found.worst_output == "y"


def test_paths_work_and_external_data_too(tmp_path):
    proto = ir.to_proto(parsed(ADD.format(last=4)))
    weight = onnx.numpy_helper.from_array(np.ones((4, 600), np.float32), "w")
    proto.graph.initializer.append(weight)
    proto.graph.node.append(onnx.helper.make_node("MatMul", ["y", "w"], ["z"]))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, None))
    onnx.save(proto, tmp_path / "a.onnx", save_as_external_data=True, location="a.bin", size_threshold=0)
    found = verify(tmp_path / "a.onnx", str(tmp_path / "a.onnx"))
    assert found.status == "verified"


def test_a_shape_that_was_baked_in_is_found():
    original = parsed("main (float[N,4] x) => (int64[2] s) { s = Shape (x) }")
    frozen = parsed(
        "main (float[N,4] x) => (int64[2] s) { c = Constant <value = int64[2] {2, 4}> () s = Identity (c) }"
    )
    found = verify(original, frozen)
    assert found.status == "differs"
    assert "instead of" in found.reason


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("main (float[N] x) => (float[M] y) { y = Relu (x) }", "instead of"),
        ("main (float[N] x) => (double[N] y) { y = Cast <to = 11> (x) }", "float64"),
        ("main (float[N] x) => (float[N,1] y) { m = Constant <value_ints = [1]> () y = Unsqueeze (x, m) }", "float32"),
        ("main (float[N] x) => (float[N] other) { other = Identity (x) }", "outputs are"),
        ("main (float[N] x) => (float[N] y) { y = NoSuchOp (x) }", "the result does not"),
        ("main (float[N] x, float[N] more) => (float[N] y) { y = Add (x, more) }", "the result does not"),
    ],
)
def test_what_differs_is_said(result, reason):
    result_model = parsed(result)
    found = verify(parsed("main (float[N] x) => (float[N] y) { y = Identity (x) }"), result_model)
    assert found.status == "differs"
    assert reason in found.reason
    assert "\n" not in found.reason


@pytest.mark.processes
@pytest.mark.parametrize(
    "text",
    [
        "main (float[N] x) => (float[N] y) { y = NoSuchOp (x) }",
        "main (float[1,1,4,4] x) => (float[a,b,c,d] y) {"
        " w = Constant <value = float[1,1,1,1] {1}> () y = Conv <strides = [0, 0]> (x, w) }",
        "main (float[2] x, float[3] z) => (float[2] y) { y = Add (x, z) }",
    ],
)
def test_where_the_original_does_not_run_nothing_can_be_said(text):
    found = verify(parsed(text), parsed(text))
    assert found.status == "impossible"
    assert "the original does not run here" in found.reason
    assert "\n" not in found.reason


@pytest.mark.processes
def test_a_result_that_kills_its_process_differs():
    start = "main (float[1,1,4,4] x) => (float[1,1,4,4] y) { w = Constant <value = float[1,1,1,1] {1}> () y = Conv "
    found = verify(parsed(start + "(x, w) }"), parsed(start + "<group = 0> (x, w) }"))
    assert found.status == "differs"
    assert "the result does not" in found.reason


ENDLESS = """main (float[2] x) => (float[2] y) {
    n = Constant <value_int = 9000000000000000000> () t = Constant <value = bool {1}> ()
    y = Loop (n, t, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] r)
        { d = Identity (c) r = Add (s, s) }> }"""


@pytest.mark.processes
def test_an_endless_model_is_given_up():
    loop = parsed(ENDLESS)
    found = verify(loop, loop, timeout=3)
    assert found.status == "impossible"
    assert "it took longer than 3 s" in found.reason
    assert found.seconds < 10


@pytest.mark.processes
def test_an_original_that_ends_as_the_wait_for_it_does(monkeypatch):
    """The result comes after the wait and before the question whether there is one."""

    class Late(Future):
        def result(self, timeout=None):
            result = super().result()
            if timeout is not None:
                raise TimeoutError
            return result

    monkeypatch.setattr("ortopt.verification.verify.Future", Late)
    model = parsed("agree (float[N] x) => (float[N] y) { y = Relu (x) }")
    with Reference(model) as reference:
        reference.begin()
        assert reference.run() is None
        assert reference.compare(model).status == "verified"


@pytest.mark.processes
def test_by_default_too(monkeypatch):
    monkeypatch.setattr(process, "PATIENCE", 2)
    loop = parsed(ENDLESS)
    found = verify(loop, loop)
    assert found.status == "impossible"
    assert "the original does not run here: it took longer than 2 s" in found.reason


@pytest.mark.processes
@pytest.mark.parametrize(("times", "status"), [(20, "differs"), (1e9, "impossible")])
def test_an_endless_result_differs_if_the_original_was_quick(monkeypatch, times, status):
    deadline = result_comparison.Deadline
    monkeypatch.setattr(result_comparison, "Deadline", lambda _: deadline(1))  # the result's, after the original's time
    monkeypatch.setattr(result_comparison, "_TIMES_THE_ORIGINAL", times)
    found = verify(parsed("main (float[2] x) => (float[2] y) { y = Add (x, x) }"), parsed(ENDLESS))
    assert found.status == status
    assert "the result: it took longer than 1 s" in found.reason


def test_patience_grows_with_the_model(monkeypatch):
    asked = []
    deadline = process.Deadline
    for module in (process, result_comparison):
        monkeypatch.setattr(module, "Deadline", lambda seconds: asked.append(seconds) or deadline(seconds))
    body = " ".join(f"v{i + 1} = Neg (v{i})" for i in range(500))
    model = parsed(f"main (float[2] v0) => (float[2] v500) {{ {body} }}")
    assert verify(model, model).status == "verified"
    assert [round(one) for one in asked if round(one) != 120][:2] == [125, 125]
    assert 125 < asked[-1] < 125 + 20 * 60


def test_what_stays_random_is_compared_by_shape_only():
    model = parsed("main (float[N,3] x) => (float[N,3] y) { y = RandomNormalLike (x) }", opset=10)
    found = verify(model, model)
    assert found.status == "not shown"
    assert found.random
    assert found.reason == "not shown: 'y' (random, so compared by dtype and shape only)"
    other = parsed("main (float[N,3] x) => (float[a,b] y) { r = RandomNormalLike (x) y = Transpose (r) }", opset=10)
    assert verify(model, other).status == "differs"


@pytest.mark.parametrize("types", ["float double float16 int64 int8 uint8 bool string", "bfloat16 float bool int32"])
def test_every_dtype_goes_in_and_out(types):
    dtypes = types.split(" ")
    taken, given = (", ".join(f"{dtype}[N,3] {side}{i}" for i, dtype in enumerate(dtypes)) for side in "xy")
    body = " ".join(f"y{i} = Identity (x{i})" for i in range(len(dtypes)))
    model = parsed(f"main ({taken}) => ({given}) {{ {body} }}")
    found = verify(model, model)
    assert found.status == "verified", found.reason
    assert len(found.outputs) == len(dtypes)


def test_bfloat16_is_compared_as_numbers():
    text = "main (bfloat16[N] x) => (bfloat16[N] y) {{ f = Cast <to = 1> (x) c = Constant <value_float = {}> () "
    text += "g = Mul (f, c) y = Cast <to = 16> (g) }}"
    assert verify(parsed(text.format("1.0")), parsed(text.format("1.001"))).status == "verified"
    found = verify(parsed(text.format("1.0")), parsed(text.format("1.5")))
    assert found.status == "differs"
    assert 0.1 < found.worst < 3


def test_sequences_and_optionals():
    model = parsed("main (seq(float[N]) s) => (seq(float[N]) t, float[K] c) { t = Identity (s)"
                   " c = ConcatFromSequence <axis = 0> (s) }")  # fmt: skip
    found = verify(model, model)
    assert found.status == "verified", found.reason
    assert [row.name for row in found.outputs] == ["t", "c"]


def test_a_classifier_with_a_zipmap(tmp_path):
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17, "ai.onnx.ml": 3]>
        main (float[N,3] x) => (float[N,3] z) { z = ai.onnx.ml.ZipMap <classlabels_int64s = [5, 6, 7]> (x) }"""
    )
    kind = onnx.TypeProto()
    kind.sequence_type.elem_type.map_type.key_type = onnx.TensorProto.INT64
    kind.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    proto.graph.output[0].type.CopyFrom(kind)
    onnx.save(proto, tmp_path / "z.onnx")
    found = verify(tmp_path / "z.onnx", tmp_path / "z.onnx")
    assert found.status == "verified", found.reason


def test_a_model_without_inputs():
    model = parsed("main () => (float[2] y) { y = Constant <value = float[2] {1, 2}> () }")
    assert verify(model, model).status == "verified"


def test_given_inputs_are_used():
    model = parsed("main (float[N] x, int64[N] i) => (float[N] y) { y = Gather (x, i) }")
    good = {"x": np.ones(3, np.float32), "i": np.array([0, 2, 1])}
    assert verify(model, model, inputs=good).status == "verified"
    found = verify(model, model, inputs={**good, "i": np.array([0, 2, 77])})
    assert found.status == "impossible"
    with pytest.raises(UsageError, match="do not contain 'i'"):
        verify(model, model, inputs={"x": good["x"]})


def test_a_provider_that_does_not_work_is_an_error():
    model = parsed(ADD.format(last=4))
    with pytest.raises(UsageError, match="does not work here"):
        verify(model, model, providers=["DmlExecutionProvider"])


def test_a_coarse_output_excuses_no_other():
    original = "h = Cast <to = 10> (x) y = Cast <to = 1> (h) z = Identity (x)"
    result = "h = Cast <to = 10> (x) y = Cast <to = 1> (h) k = Constant <value_float = 1.001> () z = Mul (x, k)"
    head = "main (float[N] x) => (float[N] y, float[N] z)"
    found = verify(parsed(f"{head} {{ {original} }}"), parsed(f"{head} {{ {result} }}"))
    assert (found.status, found.worst_output) == ("differs", "z")


# What is drawn


def test_initializers_that_are_inputs_keep_their_value():
    model = parsed("main (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Add (x, w) }")
    assert list(draw_inputs(model)) == ["x"]
    assert verify(model, model).status == "verified"


def test_an_enormous_input_is_refused():
    model = parsed("main (float[1000000,1000000] x) => (float[1000000,1000000] y) { y = Identity (x) }")
    with pytest.raises(UsageError, match="would have the shape"):
        draw_inputs(model)
    assert verify(model, model).status == "impossible"


def test_shape_inputs_are_found_by_trying():
    model = parsed("main (float[6] x, int64[2] shape) => (float[a,b] y) { y = Reshape (x, shape) }")
    found = verify(model, model)
    assert found.status in ("verified", "impossible")  # 6 elements: a target of [1, 6] is luck
    model = parsed("main (float[1] x, int64[2] shape) => (float[a,b] y) { y = Expand (x, shape) }")
    assert verify(model, model).status == "verified"


def test_a_verification_is_a_value():
    assert Verification("verified") == Verification("verified")
    with pytest.raises(AttributeError):
        Verification("verified").status = "differs"
