import os
import threading

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortopt.errors import UsageError
from ortopt.system import child_processes
from ortopt.system.child_processes import GREETING
from ortopt.verification import process, result_comparison, worker
from ortopt.verification.comparison import Comparison
from ortopt.verification.inputs import draw_inputs
from ortopt.verification.tolerances import TOLERANCES, tolerances
from ortopt.verification.verify import Verification, verify


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
        monkeypatch.setattr(child_processes.subprocess, "Popen", Thread)


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


def test_maps():
    type_ = "seq(map(int64,tensor(float)))"
    assert Comparison().of("z", type_, [{5: 1.0}], [{5: 1.0}]).agrees
    assert not Comparison().of("z", type_, [{5: 1.0}], [{5: 2.0}]).agrees
    assert not Comparison().of("z", type_, [{5: 1.0}], [{6: 1.0}]).agrees
    assert not Comparison().of("z", type_, [{5: 1.0}], []).agrees


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
    with pytest.raises(UsageError, match="lack 'i'"):
        verify(model, model, inputs={"x": good["x"]})


def test_a_provider_that_does_not_work_is_an_error():
    model = parsed(ADD.format(last=4))
    with pytest.raises(UsageError, match="does not work here"):
        verify(model, model, providers=["DmlExecutionProvider"])


# What an output may differ by

EACH = {
    "a": ("float", "a = Relu (x)"),
    "b": ("float", "h = Cast <to = 10> (x) b = Cast <to = 1> (h)"),
    "float16": ("float", "i = Add (half, half) float16 = Cast <to = 1> (i)"),
    "q": ("float", "u = QuantizeLinear (x, s) q = DequantizeLinear (u, s)"),
    "bf": ("float", "j = Identity (brain) k = Cast <to = 1> (j) bf = Add (k, x)"),
    "size": ("int64", "size = Shape (half)"),
    "mixed": ("float", "mixed = Add (a, b)"),
    "branch": ("float", "branch = If (c) <then_branch = t () => (float[N] p) { p = Neg (a) },"
               " else_branch = e () => (float[N] r) { r = Neg (b) }>"),
    "within": ("float", "within = If (c) <then_branch = t () => (float[N] p2) { m = Cast <to = 10> (x)"
               " p2 = Cast <to = 1> (m) }, else_branch = e () => (float[N] r2) { r2 = Neg (x) }>"),
    "fun": ("float", "fun = local.outer (x)"),
    "after": ("float", "after = Neg (fun)"),
    "plain": ("float", "plain = local.plain (x)"),
    "wide": ("double", "wide = Cast <to = 11> (x)"),
}  # fmt: skip
LOOSE = {"b": 2e-2, "float16": 2e-2, "q": 2e-2, "bf": 8e-2, "mixed": 2e-2, "branch": 2e-2, "within": 2e-2,
         "fun": 2e-2, "after": 2e-2}  # fmt: skip


def test_only_what_depends_on_something_coarse_may_differ_more():
    body = " ".join(text for _, text in EACH.values())
    outputs = ", ".join(f"{dtype}[] {name}" for name, (dtype, _) in EACH.items())
    text = (
        f"main (float[N] x, float16[N] half, bool c) => ({outputs}) <float s = {{0.1}}, bfloat16[1] brain = {{1}}>"
        f" {{ {body} }}"
        '<domain: "local", opset_import: ["": 17]> inner (x) => (y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }'
        '<domain: "local", opset_import: ["": 17, "local": 1]> outer (x) => (y) { y = local.inner (x) }'
        '<domain: "local", opset_import: ["": 17]> plain (x) => (y) { y = Relu (x) }'
    )
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17, "local": 1]> {text}'))
    found = tolerances(model)
    single = TOLERANCES[ir.DataType.FLOAT]
    assert {name: max(found[name], single) for name in EACH} == {name: LOOSE.get(name, single) for name in EACH}


def test_a_coarse_output_excuses_no_other():
    original = "h = Cast <to = 10> (x) y = Cast <to = 1> (h) z = Identity (x)"
    result = "h = Cast <to = 10> (x) y = Cast <to = 1> (h) k = Constant <value_float = 1.001> () z = Mul (x, k)"
    head = "main (float[N] x) => (float[N] y, float[N] z)"
    found = verify(parsed(f"{head} {{ {original} }}"), parsed(f"{head} {{ {result} }}"))
    assert (found.status, found.worst_output) == ("differs", "z")


# What is drawn


def test_symbols_are_bound_over_all_inputs():
    model = parsed("main (float[batch,seq] a, float[seq,batch,3] b, float[2*seq] c) => (float[batch,seq] y)"
                   " { y = Identity (a) }".replace("2*seq", "twice"))  # fmt: skip
    model.graph.inputs[2].shape = ir.Shape(["2*seq"])
    drawn = draw_inputs(model)
    assert drawn["a"].shape == drawn["b"].shape[1::-1]
    assert drawn["c"].shape == (2 * drawn["a"].shape[1],)
    assert draw_inputs(model, sizes={"seq": 5})["c"].shape == (10,)


@pytest.mark.parametrize("total", ["past_plus_seq", "total_sequence_length", "past_len + seq"])
def test_the_mask_of_a_model_with_a_past_is_as_long_as_both(total):
    past = "past" if total == "past_plus_seq" else "past_len"
    model = parsed(f"main (int64[b,seq] ids, int64[b,total] attention_mask, float[b,{past}] kv) => (int64[b,seq] y)"
                   " { y = Identity (ids) }")  # fmt: skip
    model.graph.inputs[1].shape = ir.Shape(["b", total])
    drawn = draw_inputs(model)
    assert drawn["attention_mask"].shape[1] == drawn["ids"].shape[1] + drawn["kv"].shape[1]
    assert set(np.unique(drawn["attention_mask"])) <= {0, 1}


def test_indices_stay_below_the_table_they_index():
    model = parsed(
        """main (int64[b,s] ids, int32[b,s] kind, float[5,4] other) => (float[b,s,4] y)
           <float[3,4] table = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}> {
            wide = Cast <to = 7> (kind) y = Gather (table, wide) z = Gather (other, ids) }"""
    )
    drawn = draw_inputs(model, sizes={"b": 50, "s": 50})
    assert drawn["kind"].max() == 2
    assert drawn["ids"].max() == 4
    assert drawn["kind"].dtype == np.int32
    assert min(drawn["kind"].min(), drawn["ids"].min()) == 0


def test_the_same_seed_draws_the_same():
    model = parsed("main (float[N] x, bool[N] b, string[N] s) => (float[N] y) { y = Identity (x) }")
    one, same, other = (draw_inputs(model, seed=seed) for seed in (1, 1, 2))
    assert all((one[name] == same[name]).all() for name in one)
    assert (one["x"] != other["x"]).any()


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


# How floats are compared

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("expected", "got", "agrees"),
    [
        ([1.0, NAN], [1.0, NAN], True),
        ([1.0, NAN], [1.0, 0.0], False),
        ([1.0, 0.0], [1.0, NAN], False),
        ([1.0, INF], [1.0, INF], True),
        ([1.0, INF], [1.0, -INF], False),
        ([1.0, 3e38], [1.0, INF], False),
        ([NAN, NAN], [NAN, NAN], True),
        ([1000.0, 0.001], [1000.0, 0.002], True),
        ([1000.0, 0.001], [1000.2, 0.001], False),
        ([1e-20, 2e-20], [1e-20, 3e-20], False),
        ([3e38, -3e38], [3e38, -3e38], True),
        ([0.0, 0.0], [1e-6, 0.0], True),
        ([0.0, 0.0], [1e-3, 0.0], False),
        ([0.0, -0.0], [-0.0, 0.0], False),
        ([0.0, -0.0], [0.0, -0.0], True),
    ],
)
def test_floats(expected, got, agrees):
    row = Comparison().of("y", "tensor(float)", np.array(expected, np.float32), np.array(got, np.float32))
    assert row.agrees is agrees
    assert bool(row.detail) is not agrees


@pytest.mark.parametrize(("type_", "error", "agrees"), [
    ("double", 1e-10, True), ("double", 1e-6, False), ("float", 5e-5, True), ("float", 1e-3, False),
    ("float16", 1e-2, True), ("float16", 5e-2, False)])  # fmt: skip
def test_tolerances_by_dtype(type_, error, agrees):
    dtype = {"double": np.float64, "float": np.float32, "float16": np.float16}[type_]
    row = Comparison().of("y", f"tensor({type_})", np.ones(3, dtype), (np.ones(3) * (1 + error)).astype(dtype))
    assert row.agrees is agrees


def test_bits_are_read_as_numbers():
    one, more = (np.array([x], ml_dtypes.bfloat16).view(np.uint16) for x in (1.0, 1.0078125))
    assert Comparison().of("y", "tensor(bfloat16)", one, more).agrees
    assert not Comparison().of("y", "tensor(uint16)", one, more).agrees


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, object])
def test_what_is_no_float_is_exact(dtype):
    one, other = np.array([1, 0]).astype(dtype), np.array([1, 1]).astype(dtype)
    assert Comparison().of("y", "tensor(int64)", one, one).agrees
    row = Comparison().of("y", "tensor(int64)", one, other)
    assert not row.agrees
    assert "1 of 2 elements differ, the first at [1]" in row.detail


def test_a_verification_is_a_value():
    assert Verification("verified") == Verification("verified")
    with pytest.raises(AttributeError):
        Verification("verified").status = "differs"
