"""Sequences, optionals, maps, strings, sparse tensors with several groups: ONNX Runtime's answers and errors."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_array_equal
from onnx.reference.op_run import OpRun

from ortopt.errors import UsageError
from ortopt.runtime.session import InferenceSession
from ortopt.runtime.values.containers import as_ort_value, as_python
from ortopt.runtime.values.tensors import tensor_to_ort, to_ort
from tests.releases import needs
from tests.runtime.models import FUNCTION, HEADER, Backwards, Twice, floats, plain_session, session
from tests.runtime.side_by_side import alike, both, bound, in_threads, quiet, same

SEQUENCE = f"""{HEADER}
main (seq(float[]) q, float[] x, int64 i) => (seq(float[]) r, seq(float[]) e, float[] y, seq(float[]) p) {{
    a = ortopt.group.group_0 (q, x) r = ortopt.group.group_1 (a, i) y = ortopt.group.group_2 (a, i)
    e = SequenceEmpty <dtype = 1> () p = Identity (q) }}
{FUNCTION} group_0 (q, x) => (r) {{ s = Neg (x) r = SequenceInsert (q, s) }}
{FUNCTION} group_1 (q, i) => (r) {{ r = SequenceErase (q, i) }}
{FUNCTION} group_2 (q, i) => (r) {{ s = SequenceAt (q, i) r = Relu (s) }}
"""
STRINGS = f"""{HEADER}
main (string[N] x, string[N] z) => (string[N] y, seq(string[]) q, string[N] c) <string[1] k = {{"k"}}> {{
    y, q = ortopt.group.group_0 (x, z) c = ortopt.group.group_1 (y) }}
{FUNCTION} group_0 (x, z) => (y, q) {{ y = Identity (z) q = SequenceConstruct (x, z) }}
{FUNCTION} group_1 (x) => (y) {{ y = Identity (x) }}
"""
MAPS = """<ir_version: 10, opset_import: ["" : 17, "ai.onnx.ml" : 3, "ortopt.group" : 1]>
main (float[N,2] x) => (seq(map(int64,float)) r, seq(map(string,float)) s, float[N,2] y) {
    y = ortopt.group.group_0 (x) r = ortopt.group.group_1 (y) s = ortopt.group.group_2 (y) }
<domain: "ortopt.group", opset_import: ["" : 17]> group_0 (x) => (y) { y = Neg (x) }
<domain: "ortopt.group", opset_import: ["ai.onnx.ml" : 3]> group_1 (x) => (y) {
    y = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 5]> (x) }
<domain: "ortopt.group", opset_import: ["ai.onnx.ml" : 3]> group_2 (x) => (y) {
    y = ai.onnx.ml.ZipMap <classlabels_strings = ["a", "b"]> (x) }
"""


OPTIONAL = """<ir_version: 10, opset_import: ["" : 18, "ortopt.group" : 1]>
main (optional(float[N]) q) => (bool h, optional(float[N]) r) {
    a = ortopt.group.group_0 (q) h = ortopt.group.group_1 (a) r = Identity (a) }
<domain: "ortopt.group", opset_import: ["" : 18]> group_0 (p) => (o) { o = Identity (p) }
<domain: "ortopt.group", opset_import: ["" : 18]> group_1 (p) => (o) { o = OptionalHasElement (p) }
"""
OPTIONAL_SEQUENCE = OPTIONAL.replace("optional(float[N])", "optional(seq(float[N]))")

X = floats(3)
FEEDS: dict[str, Any] = {
    "two": {"q": [X, floats(2, 2)], "x": floats(4), "i": np.array(0)},
    "one": {"q": [X], "x": X, "i": np.array(-1)},
    "none": {"q": [], "x": X, "i": np.array(0)},
    "empty tensors": {"q": [np.zeros((0, 3), np.float32)], "x": np.zeros(0, np.float32), "i": np.array(1)},
    "a place that is not there": {"q": [], "x": X, "i": np.array(5)},
    "an array": {"q": X, "x": X, "i": np.array(0)},
    "a tuple": {"q": (X,), "x": X, "i": np.array(0)},
    "numbers": {"q": [1.0], "x": X, "i": np.array(0)},
    "another dtype": {"q": [X.astype(np.int64)], "x": X, "i": np.array(0)},
    "several dtypes": {"q": [X, X.astype(np.int64)], "x": X, "i": np.array(0)},
    "nothing": {"q": None, "x": X, "i": np.array(0)},
    "missing": {"x": X, "i": np.array(0)},
    "a list where a tensor is": {"q": [X], "x": [X], "i": np.array(0)},
    "a dict": {"q": {1: 2.0}, "x": X, "i": np.array(0)},
    "a sparse tensor": {
        "q": [X],
        "x": onnxruntime.SparseTensor.sparse_coo_from_numpy(
            np.array([2, 2]), np.array([1.0], np.float32), np.array([0]), onnxruntime.OrtDevice.make("cpu", 0)
        ),
        "i": np.array(0),
    },
}


@pytest.mark.parametrize("what", FEEDS)
def test_sequences_as_onnx_runtime_takes_them(what: str) -> None:
    if what == "nothing":
        needs(1, 27, "Fail for None, as ortopt raises it: before it is a RuntimeException")
    alike(both(SEQUENCE), lambda one: one.run(None, FEEDS[what]))


OPTIONALS: dict[str, Any] = {
    "a tensor": (OPTIONAL, {"q": X}),
    "nothing": (OPTIONAL, {"q": None}),
    "missing": (OPTIONAL, {}),
    "another dtype": (OPTIONAL, {"q": X.astype(np.int64)}),
    "another name": (OPTIONAL, {"z": X}),
    "another rank": (OPTIONAL, {"q": floats(2, 2)}),
    "a sequence": (OPTIONAL_SEQUENCE, {"q": [X, X]}),
    "an empty sequence": (OPTIONAL_SEQUENCE, {"q": []}),
    "no sequence": (OPTIONAL_SEQUENCE, {"q": None}),
    "a tensor for a sequence": (OPTIONAL_SEQUENCE, {"q": X}),
}


@pytest.mark.parametrize("what", OPTIONALS)
def test_optionals_as_onnx_runtime_takes_them(what: str) -> None:
    model, feed = OPTIONALS[what]
    alike(both(model), lambda one: one.run(None, feed))


def test_strings_and_maps() -> None:
    feed = {"x": np.array(["a", "bb"], object), "z": np.array(["", "ü"], object)}
    assert isinstance(alike(both(STRINGS), lambda one: one.run(None, feed)), list)
    for names, rows in ((None, 3), (["s"], 0)):
        found = alike(both(MAPS), lambda one, names=names, rows=rows: one.run(names, {"x": floats(rows, 2)}))
        assert isinstance(found, list)


def ort(value: Any) -> Any:
    """An ``onnxruntime.OrtValue`` of anything."""
    return onnxruntime.OrtValue(as_ort_value(value))


def told(value: Any) -> Any:
    """What an ``onnxruntime.OrtValue`` says of itself, and holds."""
    if not value.has_value():
        return "nothing"
    return value.data_type(), value.is_tensor(), value.is_tensor_sequence(), as_python(value._ortvalue)


ORT_FEEDS: dict[str, Any] = {
    "sequence": (SEQUENCE, {"q": [X, floats(2, 2)], "x": floats(4), "i": np.array(0)}),
    "empty sequence": (SEQUENCE, {"q": [], "x": X, "i": np.array(0)}),
    "long sequence": (SEQUENCE, {"q": [floats(2, seed=i) for i in range(150)], "x": X, "i": np.array(149)}),
    "strings": (STRINGS, {"x": np.array(["a", "bb"], object), "z": np.array(["", "ü"], object)}),
    "map": (MAPS, {"x": floats(3, 2)}),
    "optional": (OPTIONAL, {"q": X}),
    "optional sequence": (OPTIONAL_SEQUENCE, {"q": [X]}),
    "nothing": (OPTIONAL, {}),
    "no sequence": (OPTIONAL_SEQUENCE, {}),
}


@pytest.mark.parametrize("what", ORT_FEEDS)
def test_ort_values_of_every_kind(what: str) -> None:
    model, feed = ORT_FEEDS[what]
    theirs, mine = both(model)
    given = {name: ort(value) for name, value in feed.items()}
    expected = [told(one) for one in theirs.run_with_ort_values(None, given)]
    for found in (mine.run_with_ort_values(None, given), mine.run_with_ort_values([], given)):
        same(expected, [told(one) for one in found])
    same(theirs.run(None, feed), mine.run(None, given))


@pytest.mark.parametrize("what", [what for what, (_, feed) in ORT_FEEDS.items() if feed])
def test_bound_values_of_every_kind(what: str) -> None:
    model, feed = ORT_FEEDS[what]
    found = []
    for one in both(model):
        given = {name: ort(value) for name, value in feed.items()}
        binding = bound(one, given, [output.name for output in one.get_outputs()])
        outputs = binding.get_outputs()
        vector = binding.get_outputs_as_ortvaluevector()
        assert [value.has_value() for value in vector] == [value.has_value() for value in outputs]
        safe = all(value.data_type() != "tensor(string)" for value in outputs)  # ONNX Runtime crashes here
        found.append((binding.copy_outputs_to_cpu() if safe else None, [told(value) for value in outputs]))
        del binding
        gc.collect()
        assert [told(value) for value in outputs]
    same(*found)


def test_constant_strings_are_given_out_and_shown_to_the_host_as_text() -> None:
    class Longest(OpRun):
        op_domain = "my"

        def _run(self, strings: Any) -> tuple[Any, ...]:
            seen.extend(strings.tolist())
            return (np.array(max(map(len, strings)), np.int64),)

    seen: list[Any] = []
    text = f"""{HEADER} main (float[N] x) => (string[3] c, float[N] y, int64 n, string[1] d)
        <string[3] c = {{"a", "", "ü"}}> {{
        t = ortopt.group.group_0 (x) y = my.Twice (t) n = my.Longest (c) d = Constant <value_string = "k"> () }}
        {FUNCTION} group_0 (p) => (r) {{ r = Relu (p) }}"""
    mine = session(text, host_ops=[Twice, Longest])
    for _ in range(2):
        strings, _, longest, other = mine.run(None, {"x": floats(2)})
        assert (strings.dtype, strings.tolist()) == (np.dtype(object), ["a", "", "ü"])
        assert other.tolist() in (["k"], "k")
        assert longest == 1
        strings[0] = "the caller's own"
    assert seen == ["a", "", "ü"] * 2


def test_constant_strings_that_are_no_text_stay_bytes() -> None:
    assert tensor_to_ort(ir.StringTensor([b"\xff", b"a"], shape=ir.Shape([2]))).tolist() == [b"\xff", "a"]


def test_strings_in_bound_memory() -> None:
    """ONNX Runtime crashes on it."""
    _, mine = both(STRINGS)
    binding = bound(mine, {name: ort(np.array(["a", "bb"], object)) for name in ("x", "z")}, ["c"])
    assert binding.copy_outputs_to_cpu()[0].tolist() == ["a", "bb"]


def test_an_ort_value_that_holds_nothing_is_an_optional() -> None:
    """ONNX Runtime crashes on it."""
    _, mine = both(OPTIONAL)
    nothing = mine.run_with_ort_values(["r"], {})[0]
    assert not nothing.has_value()
    for found in (mine.run(None, {"q": nothing}), mine.run(None, {"q": ort(None)})):
        assert [found[0].item(), found[1]] == [False, None]
    assert not mine.run_with_ort_values(["r"], {"q": nothing})[0].has_value()
    assert bound(mine, {"q": nothing}, ["r"]).copy_outputs_to_cpu() == [None]
    _, strict = both(SEQUENCE)
    with pytest.raises(ValueError, match="Required inputs"):
        strict.run(None, {"q": nothing, "x": X, "i": np.array(0)})


WRONG_VALUES: dict[str, dict[str, Any]] = {
    "a tensor for a sequence": {"q": ort(X), "x": ort(X), "i": ort(np.array(0))},
    "a sequence for a tensor": {"q": ort([X]), "x": ort([X]), "i": ort(np.array(0))},
    "another element type": {"q": ort([X.astype(np.int64)]), "x": ort(X), "i": ort(np.array(0))},
    "a missing one": {"x": ort(X), "i": ort(np.array(0))},
    "another name": {"q": ort([X]), "x": ort(X), "i": ort(np.array(0)), "z": ort(X)},
    "a sparse one": {
        "q": ort([X]),
        "x": onnxruntime.OrtValue.ort_value_from_sparse_tensor(FEEDS["a sparse tensor"]["x"]),
        "i": ort(np.array(0)),
    },
}


@pytest.mark.parametrize("what", WRONG_VALUES)
@pytest.mark.parametrize("how", ["run", "run_with_ort_values"])
def test_ort_values_that_do_not_fit(what: str, how: str) -> None:
    expected = alike(both(SEQUENCE), lambda one: getattr(one, how)(None, WRONG_VALUES[what]))
    assert isinstance(expected, tuple)


@pytest.mark.parametrize("target", [[X], np.array(["a"], object), floats(2, 2)], ids=["sequence", "strings", "tensor"])
def test_only_tensors_are_written_to_bound_memory(target: Any) -> None:
    _, mine = both(SEQUENCE)
    given = {name: ort(value) for name, value in FEEDS["one"].items()}
    with pytest.raises(RuntimeError, match=r"output 'r': only tensors|Unexpected output data type"):
        bound(mine, given, {"r": ort(target)})


def test_the_host_takes_and_gives_them() -> None:
    text = f"""{HEADER}
    main (seq(float[]) q, string[N] s) => (seq(float[]) r, string[N] t) {{
        z = Constant <value = int64 {{0}}> () a = SequenceAt (q, z) b = my.Twice (a) r = SequenceInsert (q, b)
        t = my.Backwards (s) }}"""
    mine = session(text, host_ops=[Twice, Backwards])
    feed = {"q": [X], "s": np.array(["ab", "c"], object)}
    for given in (feed, {name: ort(value) for name, value in feed.items()}):
        r, t = mine.run(None, given)
        assert [one.tolist() for one in r] == [X.tolist(), (2 * X).tolist()]
        assert t.tolist() == ["ba", "c"]
    r, t = mine.run_with_ort_values(None, {name: ort(value) for name, value in feed.items()})
    assert (r.data_type(), t.numpy().tolist()) == ("seq(tensor(float))", ["ba", "c"])
    hosted = session(SEQUENCE, run_type="host")
    same(plain_session(SEQUENCE).run(None, FEEDS["two"]), hosted.run(None, FEEDS["two"]))
    (e,) = hosted.run_with_ort_values(["e"], {name: ort(value) for name, value in FEEDS["two"].items()})
    assert (e.data_type(), as_python(e._ortvalue)) == ("seq(tensor(float))", [])


def test_results_share_no_memory_with_arguments() -> None:
    text = f"""{HEADER}
    main (float[2] x, int64 n, bool c, seq(float[]) q) => (float[2] y, float[2] z, seq(float[]) r) {{
        y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] v) => (bool o, float[2] w) {{
            o = Identity (k) w = ortopt.group.group_0 (v) }}>
        z = If (c) <
            then_branch = t () => (float[2] a) {{ a = Identity (x) }},
            else_branch = e () => (float[2] d) {{ d = ortopt.group.group_0 (x) }}>
        r = Identity (q) }}
    {FUNCTION} group_0 (p) => (r) {{ s = Neg (p) r = Relu (s) }}"""
    mine = session(text)
    x, q = np.ones(2, np.float32), [np.ones(2, np.float32)]
    y, z, r = mine.run(None, {"x": x, "n": np.array(0), "c": np.array(True), "q": q})
    for one in (y, z, r[0]):
        assert one.tolist() == [1, 1]
        one[:] = 5
    assert x.tolist() == [1, 1]
    assert q[0].tolist() == [1, 1]
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    given = {"x": value, "n": ort(np.array(0)), "c": ort(np.array(True)), "q": ort(q)}
    for one in mine.run_with_ort_values(["y", "z"], given):
        one.update_inplace(np.full(2, 7, np.float32))
    assert x.tolist() == [1, 1]


def test_many_threads_with_sequences_of_changing_lengths() -> None:
    theirs, mine = both(SEQUENCE)

    def work(seed: int) -> None:
        for i in range(12):
            feed = {"q": [floats(n + 1) for n in range((seed + i) % 5)], "x": floats(2, seed=i), "i": np.array(0)}
            expected = theirs.run(None, feed)
            same(expected, mine.run(None, feed))
            found = mine.run_with_ort_values(None, {name: ort(value) for name, value in feed.items()})
            same(expected, [as_python(one._ortvalue) for one in found])

    in_threads(8, work)


def test_sequences_are_not_specialised_but_their_neighbours_are() -> None:
    text = f"""{HEADER}
    main (seq(float[]) q, float[N] x, int64 i) => (float[N] y) {{
        a = ortopt.group.group_0 (x) b = ortopt.group.group_1 (q, i) c = my.Twice (a) y = Add (c, b) }}
    {FUNCTION} group_0 (x) => (y) {{ a = Neg (x) y = Relu (a) }}
    {FUNCTION} group_1 (q, i) => (y) {{ a = SequenceAt (q, i) y = Neg (a) }}"""
    mine = session(text, host_ops=[Twice], specialize_after=1, specialize_constants=True)
    for n in (2, 2, 3, 3, 4):
        feed = {"q": [floats(n), floats(n, seed=1)], "x": floats(n, seed=2), "i": np.array(1)}
        expected = 2 * np.maximum(-feed["x"], 0) - feed["q"][1]
        for given in (feed, {name: ort(value) for name, value in feed.items()}):
            assert_array_equal(mine.run(None, given)[0], expected)
    assert mine.statistics.specializations > 0
    assert mine.statistics.fallbacks == 0


def test_strings_are_never_compared_by_address() -> None:
    mine = session(STRINGS, specialize_after=1, specialize_constants=True)
    for text in ("a", "b", "c", "longer than before"):
        one = np.array([text], object)
        given = {"x": ort(one), "z": ort(one)}
        assert mine.run(["c"], given)[0].tolist() == [text]


def test_sparse_tensors_in_the_interface_are_refused() -> None:
    model = onnx.parser.parse_model(f"""{HEADER}
        main (sparse_tensor(float[2,2]) x) => (float[2,2] y) {{ a = Identity (x) y = my.Twice (a) }}""")
    with pytest.raises(UsageError, match="sparse"):
        InferenceSession(model.SerializeToString(), quiet(), providers=["cpu"], host_ops=[Twice])


def test_values_of_every_kind_become_ort_values() -> None:
    assert as_python(as_ort_value(np.array([["a"], ["b"]], object))).tolist() == [["a"], ["b"]]
    assert as_python(as_ort_value(np.zeros((0, 2), "U3"))).shape == (0, 2)
    assert as_ort_value([], "optional(seq(tensor(int8)))").data_type() == "seq(tensor(int8))"
    assert as_ort_value([np.array(["x"], object)]).data_type() == "seq(tensor(string))"
    assert as_python(as_ort_value(None, "optional(seq(tensor(float)))")) is None
    value = to_ort(X)
    assert as_ort_value(value) is value
    with pytest.raises(NotImplementedError, match="dict"):
        as_ort_value({1: 2.0})
    with pytest.raises(Exception, match="several types"):
        as_ort_value([X, X.astype(np.int64)])
