"""Session options with several groups: all that was set reaches every group, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_array_equal
from onnxruntime.capi import onnxruntime_pybind11_state as pybind

from ortopt import InferenceSession, UsageError
from ortopt.errors import InvalidModelError
from ortopt.runtime.execution import session_options
from ortopt.runtime.execution.session_maker import SessionMaker
from ortopt.runtime.execution.weights import FOLDER_KEY, place
from tests.releases import INSTALLED, needs, since
from tests.runtime.models import FUNCTION, HEADER, TWO_GROUPS, Twice, floats, session, two_groups
from tests.runtime.side_by_side import alike, both, in_threads, outcome, quiet, same, value

DIMS = f"""{HEADER}
main (float[N,M] x, float[N,K] z) => (float[N,M] y, float[N,K] v) {{
    a = ortopt.group.group_0 (x) y = ortopt.group.group_1 (a) v = ortopt.group.group_1 (z) }}
{FUNCTION} group_0 (p) => (r) {{ s = Neg (p) r = Relu (s) }}
{FUNCTION} group_1 (p) => (r) {{ s = Abs (p) r = Neg (s) }}
"""
WEIGHTS = f"""{HEADER}
main (float[3] x) => (float[3] y) <float[3] w = {{1, 2, 3}}, float[3] p = {{4, 5, 6}}> {{
    a = ortopt.group.group_0 (x, w) y = ortopt.group.group_1 (a, p) }}
{FUNCTION} group_0 (x, p) => (r) {{ s = Add (x, p) r = Relu (s) }}
{FUNCTION} group_1 (x, w) => (r) {{ s = Mul (x, w) r = Neg (s) }}
"""


def options_of_groups(mine: InferenceSession) -> list[Any]:
    """The options of each session that groups have made; there are some."""
    found = [one.session_options for group in mine.groups for one in group.sessions()]
    assert found
    return found


def denoted(text: str) -> bytes:
    model = onnx.parser.parse_model(text)
    model.graph.input[1].type.tensor_type.shape.dim[1].denotation = "CHANNEL"
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("level", ["ORT_ENABLE_ALL", "ORT_ENABLE_BASIC", "ORT_DISABLE_ALL"])
def test_overrides_of_dimensions_hold_in_every_group(level: str) -> None:
    options = quiet(graph_optimization_level=getattr(onnxruntime.GraphOptimizationLevel, level))
    options.add_free_dimension_override_by_name("N", 2)
    options.add_free_dimension_override_by_denotation("CHANNEL", 5)
    options.add_free_dimension_override_by_name("nobody has it", 7)
    theirs, mine = both(denoted(DIMS), options)
    for ask in ("get_inputs", "get_outputs"):
        rows = [[(one.name, one.shape) for one in getattr(which, ask)()] for which in (theirs, mine)]
        assert rows[0] == rows[1]
    holds = level != "ORT_DISABLE_ALL" or INSTALLED >= (1, 23)  # before, ONNX Runtime's optimizers did it
    assert (mine.get_inputs()[1].shape == [2, 5]) == holds
    feeds = {
        "right": {"x": floats(2, 3), "z": floats(2, 5)},
        "rows": {"x": floats(3, 3), "z": floats(3, 5)},
        "channels": {"x": floats(2, 3), "z": floats(2, 4)},
    }
    for feed in feeds.values():
        alike((theirs, mine), lambda one, feed=feed: one.run(None, feed))
    assert [str(dim) for dim in mine.groups[0].spec.inputs[0].shape or ()] == ["2" if holds else "N", "M"]


@pytest.mark.parametrize("name", ["session.disable_prepacking", "ep.somebody.else", "my.own.entry"])
def test_every_entry_reaches_every_group(name: str) -> None:
    options = quiet({name: "1"})
    mine = session(TWO_GROUPS, sess_options=options)
    mine.run(None, {"x": floats(2, 4)})
    for found in options_of_groups(mine):
        assert found.get_session_config_entry(name) == "1"
    assert mine.get_session_options() is options


def test_an_override_that_contradicts_the_model() -> None:
    options = quiet()
    options.add_free_dimension_override_by_denotation("CHANNEL", 5)
    source = denoted(DIMS.replace("[N,M]", "[2,M]").replace("[N,K]", "[2,4]"))
    with pytest.raises(Exception) as expected:
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    with pytest.raises(type(expected.value)) as got:
        InferenceSession(source, options, providers=["cpu"])
    assert str(expected.value)[:60] == str(got.value)[:60]


def test_every_attribute_reaches_every_group() -> None:
    changed = {
        "enable_cpu_mem_arena": False,
        "enable_mem_pattern": False,
        "enable_mem_reuse": False,
        "execution_order": onnxruntime.ExecutionOrder.PRIORITY_BASED,
        "inter_op_num_threads": 3,
        "log_severity_level": 4,
        "log_verbosity_level": 1,
        "logid": "mine",
        "use_deterministic_compute": True,
        "graph_optimization_level": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    }
    options = quiet(**changed)
    mine = session(TWO_GROUPS, sess_options=options)
    mine.run(None, {"x": floats(2, 4)})
    for found in options_of_groups(mine):
        assert {name: getattr(found, name) for name in changed} == changed
    settable = {name for name in dir(options) if not callable(getattr(options, name)) and name[0] != "_"}
    dealt = {"intra_op_num_threads", "profile_file_prefix", "optimized_model_filepath"}
    dealt |= {"enable_profiling", "execution_mode"} | ({"use_per_session_threads"} if INSTALLED >= (1, 23) else set())
    assert settable - {*changed} == dealt


def test_a_copy_leaves_the_original_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = quiet(enable_profiling=True, intra_op_num_threads=5)
    made = session_options.Copies(options).make()
    assert (made.enable_profiling, made.intra_op_num_threads) == (True, 5)
    assert (options.enable_profiling, options.intra_op_num_threads) == (True, 5)
    made.add_session_config_entry("a", "b")
    with pytest.raises(RuntimeError):
        options.get_session_config_entry("a")
    assert not list(tmp_path.iterdir())


def test_initializers_that_the_caller_adds() -> None:
    options = quiet()
    w, p = np.array([10, 20, 30], np.float32), np.array([7, 8, 9], np.float32)
    kept = [value(one) for one in (w, p)]
    options.add_initializer("w", kept[0])
    source = onnx.parser.parse_model(WEIGHTS).SerializeToString()
    x = floats(3)
    with pytest.warns(RuntimeWarning, match="configuration entries"):
        theirs, mine = both(source, options)
    expected = -np.maximum(x + w, 0) * np.array([4, 5, 6], np.float32)
    for one in (theirs, mine):
        assert_array_equal(one.run(None, {"x": x})[0], expected)
    options.add_initializer("p", kept[1])
    options.add_initializer("nobody has it", kept[1])
    with pytest.warns(RuntimeWarning, match="configuration entries"):
        theirs, mine = both(source, options)
    for one in (theirs, mine):  # the groups have arguments of those names, which are others
        assert_array_equal(one.run(None, {"x": x})[0], -np.maximum(x + w, 0) * p)


INITIALIZERS = {
    "BFLOAT16": (np.array([0x3F80, 0x4000], np.uint16), [1, 2]),
    "BOOL": (np.array([True, False]), [1, 0]),
    "DOUBLE": (np.array([1.5, -2.5]), [1.5, -2.5]),
    "INT8": (np.array([-1, 2], np.int8), [-1, 2]),
}


@pytest.mark.parametrize("dtype", INITIALIZERS)
def test_initializers_of_other_types(dtype: str) -> None:
    array, expected = INITIALIZERS[dtype]
    number = onnx.TensorProto.DataType.Value(dtype)
    model = onnx.parser.parse_model(f"""{HEADER}
    main (float[N] x) => (float[2] y, float[N] z) {{ y = ortopt.group.group_0 (w) z = ortopt.group.group_1 (x) }}
    {FUNCTION} group_0 (p) => (r) {{ r = Cast <to = 1> (p) }}
    {FUNCTION} group_1 (p) => (r) {{ r = Neg (p) }}""")
    model.graph.initializer.append(onnx.TensorProto(name="w", data_type=number, dims=[2], raw_data=bytes(array.nbytes)))
    if dtype == "BFLOAT16":
        given = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
    else:
        given = value(array)
    options = quiet()
    options.add_initializer("w", given)
    with pytest.warns(RuntimeWarning, match="configuration entries"):
        _, mine = both(model.SerializeToString(), options)  # ONNX Runtime has folded the model's own value by then
    assert mine.run(["y"], {"x": floats(1)})[0].tolist() == expected


@pytest.mark.parametrize("dtype", ["UINT4", "INT4", "FLOAT4E2M1", "FLOAT8E4M3FN", "COMPLEX64", "STRING"])
def test_options_with_models_whose_initializers_are_of_seldom_types(dtype: str) -> None:
    """ONNX Runtime has no Identity of four bits, and no complex numbers at all: what is asked must ask neither."""
    if dtype == "FLOAT4E2M1":
        needs(1, 24, "tensors of four-bit floats")
    number = onnx.TensorProto.DataType.Value(dtype)
    model = onnx.parser.parse_model(f"""{HEADER}
    main (float[2] x) => (float[2] z) {{ n = Size (w) f = Cast <to = 1> (n) t = my.Twice (x) z = Add (t, f) }}""")
    tensor = onnx.TensorProto(name="w", data_type=number, dims=[2])
    if dtype == "STRING":
        tensor.string_data.extend([b"a", b"b"])
    else:
        tensor.raw_data = bytes({"COMPLEX64": 16, "FLOAT8E4M3FN": 2}.get(dtype, 1))
    model.graph.initializer.append(tensor)
    mine = session(model.SerializeToString(), sess_options=quiet(), host_ops=[Twice])
    assert mine.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [4, 4]


@pytest.mark.parametrize("array", [np.zeros(4, np.float32), np.zeros((3, 1), np.float32)], ids=["size", "rank"])
def test_initializers_that_do_not_fit_are_refused(array: Any) -> None:
    options = quiet()
    kept = value(array)
    options.add_initializer("w", kept)
    with pytest.raises(UsageError, match="'w'"):
        session(WEIGHTS, sess_options=options)


def test_external_initializers_are_refused() -> None:
    options = quiet()
    kept = value(np.zeros(3, np.float32))
    options.add_external_initializers(["w"], [kept])
    with pytest.raises(UsageError, match=r"external initializers.* w\."):
        session(WEIGHTS, sess_options=options)


def with_file() -> tuple[onnx.ModelProto, bytes]:
    """A model whose weights are in a file, and the file's contents."""
    model = onnx.parser.parse_model(WEIGHTS)
    content = np.arange(1, 7, dtype=np.float32).tobytes()
    for i, weight in enumerate(model.graph.initializer):
        weight.ClearField("float_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, text in (("location", "w.bin"), ("offset", str(12 * i)), ("length", "12")):
            weight.external_data.add(key=key, value=text)
    return model, content


def bringing(content: bytes) -> Any:
    """Options that bring a file's contents."""
    options = quiet()
    options.add_external_initializers_from_files_in_memory(["w.bin"], [content], [len(content)])
    return options


@since(1, 24, "contents of files in the options")
@pytest.mark.parametrize("beside", [False, True], ids=["in memory", "and beside the model"])
def test_contents_of_files_make_the_model_one_session(tmp_path: Path, beside: bool) -> None:
    model, content = with_file()
    options = bringing(content)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    if beside:
        (tmp_path / "w.bin").write_bytes(bytes(len(content)))
    x = floats(3)
    for source in (path, path.read_bytes()):
        theirs = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        with pytest.warns(RuntimeWarning, match="contents of files .* is one session") as said:
            mine = InferenceSession(source, options, providers=["cpu"])
        assert said[0].filename == __file__
        assert mine.groups == ()
        same(theirs.run(None, {"x": x}), mine.run(None, {"x": x}))


@pytest.mark.parametrize("where", [None, "here", "there", "nowhere"])
@pytest.mark.parametrize("source", ["path", "bytes", "ModelProto"])
def test_the_folder_of_external_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, where: str | None
) -> None:
    """An entry says it, for files too; else it is the file's own folder, or the current one."""
    if source == "path" and where is not None:
        needs(1, 28, "the entry's folder for models in files too")
    if where is not None:
        needs(1, 21, "the entry")
    model, content = with_file()
    for name, part in {"here": content, "there": bytes(len(content)), "beside": content[12:] + content[:12]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "w.bin").write_bytes(part)
    path = tmp_path / "beside" / "model.onnx"
    path.write_bytes(model.SerializeToString())
    monkeypatch.chdir(tmp_path / "here")
    options = quiet(None if where is None else {FOLDER_KEY: str(tmp_path / where)})
    given = path if source == "path" else path.read_bytes()
    x = floats(3)
    theirs, mine = (
        outcome(lambda of=of, given=given: of(given, options, providers=["CPUExecutionProvider"]).run(None, {"x": x}))
        for of, given in (
            (onnxruntime.InferenceSession, given),
            (InferenceSession, model if source[0] == "M" else given),
        )
    )
    if where == "nowhere":
        assert theirs[0] is (pybind.Fail if INSTALLED >= (1, 25) else pybind.RuntimeException)
        assert mine[0] is InvalidModelError
        return
    folder = where or ("beside" if source == "path" else "here")
    w, p = np.frombuffer((tmp_path / folder / "w.bin").read_bytes(), np.float32).reshape(2, 3)
    assert_array_equal(mine[0], -np.maximum(x + w, 0) * p)
    if folder != "here" or where is not None:  # its optimizers miss a path for the current one
        same(theirs, mine)


@since(1, 24, "contents of files in the options")
@pytest.mark.parametrize("more", [{"host_ops": [Twice]}, {"specialize_after": 2}, {"run_type": "host"}], ids=str)
def test_contents_of_files_are_refused_where_there_must_be_groups(more: dict[str, Any]) -> None:
    model, content = with_file()
    with pytest.raises(UsageError, match=r"contents of files .* groups cannot have them"):
        InferenceSession(model, bringing(content), providers=["cpu"], **more)


def test_options_without_contents_of_files_bring_none() -> None:
    options = quiet()
    assert not session_options.brings_files(session_options.Copies(options))
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
    assert not session_options.brings_files(session_options.Copies(options))


@since(1, 23, "providers in the options")
def test_providers_in_the_options_are_refused() -> None:
    options = quiet()
    options.add_provider("CPUExecutionProvider", {})
    with pytest.raises(UsageError, match="providers="):
        session(TWO_GROUPS, sess_options=options)


def test_pinned_threads_do_not_break_groups_that_have_fewer() -> None:
    options = quiet({session_options._AFFINITIES: "1;1"}, intra_op_num_threads=3)
    with pytest.warns(RuntimeWarning, match="pinned"):
        mine = session(TWO_GROUPS, sess_options=options)
    x = floats(2, 4)
    assert_array_equal(mine.run(None, {"x": x})[0], two_groups(x)[0])
    assert mine.statistics.fallbacks == 0


@since(1, 22, "the cancellation of a load")
def test_a_load_that_is_cancelled() -> None:
    options = quiet()
    options.set_load_cancellation_flag(True)
    source = onnx.parser.parse_model(TWO_GROUPS).SerializeToString()
    with pytest.raises(Exception) as expected:
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    with pytest.raises(type(expected.value)):
        InferenceSession(source, options, providers=["cpu"])


def test_copies_are_made_by_many_threads() -> None:
    options = quiet({"my.entry": "1"}, intra_op_num_threads=4)
    model = onnx.parser.parse_model(f"{HEADER} main (float[N] x) => (float[N] y) {{ y = Neg (x) }}")

    def work(_: int) -> None:
        for i in range(20):
            maker = SessionMaker(options, {})
            made = maker.make(
                place(model, {}), ["CPUExecutionProvider"], label=str(i), threads=1 + i % 2, optimize=True
            )
            assert made.session_options.get_session_config_entry("my.entry") == "1"
            assert made.session_options.intra_op_num_threads == 1 + i % 2

    in_threads(6, work)
    assert options.intra_op_num_threads == 4


def test_options_of_a_subclass() -> None:
    class Options(onnxruntime.SessionOptions):
        pass

    mine = session(f"{HEADER} main (float[N] x) => (float[N] y) {{ a = Neg (x) b = my.Twice (a) y = Relu (b) }}",
                   sess_options=Options(), host_ops=[Twice])  # fmt: skip
    assert mine.run(None, {"x": np.array([-1], np.float32)})[0].tolist() == [2]
