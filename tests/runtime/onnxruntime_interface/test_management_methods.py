"""Every method of ``onnxruntime.InferenceSession``: it is there, and answers with several groups as with one."""

from __future__ import annotations

import copy
import gc
import inspect
import json
import pickle
import re
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnxruntime.capi import onnxruntime_pybind11_state as pybind

from ortopt import InferenceSession, UsageError
from ortopt.runtime.execution.group_runner import GroupRunner
from tests.releases import INSTALLED, since
from tests.runtime.models import HEADER, PLAIN, TWO_GROUPS, Twice, floats, session, two_groups
from tests.runtime.side_by_side import alike, both, bound, called_back, in_the_meantime, outcome, quiet, same, value

X = floats(2, 4)
KINDS = pytest.mark.parametrize("text", [PLAIN, TWO_GROUPS], ids=["whole", "groups"])


def vectors(feeds: dict[str, Any]) -> tuple[list[str], Any]:
    vector = pybind.OrtValueVector()
    for array in feeds.values():
        vector.push_back(value(array)._ortvalue)
    return list(feeds), vector


CPU = onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()


def through_vectors(one: Any) -> Any:
    names, feeds = vectors({"x": X})
    fetches = pybind.OrtValueVector()
    one.run_with_ortvaluevector(onnxruntime.RunOptions(), names, feeds, ["t", "y"], fetches, [CPU, CPU])
    return [found.numpy() for found in fetches]


def made_value(one: Any) -> Any:
    made = one.create_ortvalue_from_shape_and_type([2, 3], np.float32, "cpu")
    number = one.create_ortvalue_from_shape_and_type([2], onnx.TensorProto.BFLOAT16, "cpu")
    return made.shape(), made.data_type(), number.data_type(), number.device_name()


def node_args(found: Any) -> Any:
    return [(one.name, one.type, one.shape) for one in found]


ASKED: dict[str, Callable[[Any], Any]] = {
    "create_ortvalue_from_shape_and_type": made_value,
    "disable_fallback": lambda one: one.disable_fallback(),
    "enable_fallback": lambda one: one.enable_fallback(),
    "end_profiling": lambda one: one.end_profiling(),
    "get_input_epdevices": lambda one: [device.ep_name for device in one.get_input_epdevices()],
    "get_input_memory_infos": lambda one: [info.name for info in one.get_input_memory_infos()],
    "get_inputs": lambda one: node_args(one.get_inputs()),
    "get_modelmeta": lambda one: (one.get_modelmeta().graph_name, one.get_modelmeta().custom_metadata_map),
    "get_output_memory_infos": lambda one: [info.name for info in one.get_output_memory_infos()],
    "get_outputs": lambda one: node_args(one.get_outputs()),
    "get_overridable_initializers": lambda one: node_args(one.get_overridable_initializers()),
    "get_profiling_start_time_ns": lambda one: one.get_profiling_start_time_ns(),
    "get_provider_graph_assignment_info": lambda one: one.get_provider_graph_assignment_info(),
    "get_provider_options": lambda one: one.get_provider_options(),
    "get_providers": lambda one: one.get_providers(),
    "get_session_options": lambda one: one.get_session_options().log_severity_level,
    "get_tuning_results": lambda one: one.get_tuning_results(),
    "io_binding": lambda one: type(one.io_binding()).__name__,
    "release_captured_graph": lambda one: one.release_captured_graph(3),
    "run": lambda one: one.run(None, {"x": X}),
    "run_async": lambda one: called_back(one, None, {"x": X}),
    "run_with_iobinding": lambda one: bound(one, {"x": X}, ["y"]).copy_outputs_to_cpu(),
    "run_with_ort_values": lambda one: [found.numpy() for found in one.run_with_ort_values(None, {"x": value(X)})],
    "run_with_ortvaluevector": through_vectors,
    "set_ep_dynamic_options": lambda one: one.set_ep_dynamic_options({"a": "b"}),
    "set_providers": lambda one: one.set_providers(["CPUExecutionProvider"]),
    "set_tuning_results": lambda one: one.set_tuning_results([]),
}
"""For each public method a call of it, and what is compared."""

LATER = {name for name in ASKED if not hasattr(onnxruntime.InferenceSession, name)}
"""Those that came after the installed release."""

INTERNAL = {
    "_bind_session": "a step of the constructor",
    "_check_session_can_be_recreated": "a step of set_providers",
    "_create_inference_session": "makes the C++ session; ours makes several",
    "_from_initialized_c_session": "for what has made a C++ session",
    "_register_ep_custom_ops": "a step of the constructor",
    "_release_captured_graphs": "a step of set_providers",
    "_reset_session": "a step of set_providers",
    "_validate_graph_capture_run_api": "WebGPU's; the groups' own sessions check it",
    "_validate_input": "the signature's session checks inputs",
    "_validate_ortvalue_ownership": "WebGPU's",
}
"""What a session of ONNX Runtime has, and ours has not: nothing that is documented."""


def test_every_method_of_onnx_runtimes_session_is_there() -> None:
    theirs = {name for name in dir(onnxruntime.InferenceSession) if not (name[:2] == name[-2:] == "__")}
    assert theirs - set(INTERNAL) == set(ASKED) - LATER
    for name in set(ASKED) - LATER:
        assert name in dir(InferenceSession), name
        expected, got = (
            list(inspect.signature(getattr(one, name)).parameters)
            for one in (onnxruntime.InferenceSession, InferenceSession)
        )
        assert got == expected, name


def test_every_method_of_onnx_runtimes_binding_is_there() -> None:
    theirs, mine = (one.io_binding() for one in both(TWO_GROUPS))
    for name in (name for name in dir(theirs) if name[0] != "_"):
        expected, got = (list(inspect.signature(getattr(one, name)).parameters) for one in (theirs, mine))
        assert got == expected, name


@pytest.mark.parametrize("name", ASKED)
def test_methods_answer_as_onnx_runtimes(name: str) -> None:
    theirs, mine = both(TWO_GROUPS)
    assert len(mine.groups) > 1
    expected, got = (outcome(lambda one=one: ASKED[name](one)) for one in (theirs, mine))
    if name in LATER:
        assert expected[0] is got[0] is AttributeError
        assert re.search(r"ONNX Runtime .* has no \w+: ONNX Runtime \d\.\d+ and newer have it", str(got[1]))
        return
    same(expected, got)


@pytest.mark.parametrize("name", ASKED)
@KINDS
def test_methods_of_a_closed_session(name: str, text: str) -> None:
    mine = session(text)
    mine.run(None, {"x": X})
    mine.close()
    if name in {"disable_fallback", "enable_fallback"}:  # nothing is asked
        return
    with pytest.raises(UsageError, match="closed"):
        ASKED[name](mine)


@KINDS
def test_closing_gives_the_sessions_back(text: str) -> None:
    mine = session(text, trace=True)
    mine.run(None, {"x": X})
    inner = [one for group in mine.groups for one in group.sessions()] or [mine._session._sess]
    gone = [weakref.ref(one) for one in inner]
    del inner
    mine.close()
    gc.collect()
    assert [one() for one in gone] == [None] * len(gone)
    assert mine.statistics.runs == 1


@KINDS
def test_a_session_is_neither_pickled_nor_copied(text: str) -> None:
    mine = session(text)
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="make one of the model in each process"):
            way(mine)
    assert mine.run(None, {"x": X})


@pytest.mark.parametrize("source", [3, None, bytearray(b"x"), [b"x"]], ids=repr)
def test_sources_of_another_type(source: Any) -> None:
    with pytest.raises(TypeError) as expected:
        onnxruntime.InferenceSession(source)
    with pytest.raises(TypeError) as got:
        InferenceSession(source)
    assert str(got.value) == str(expected.value)


# Profiles


def test_one_profile_of_all_groups(tmp_path: Path) -> None:
    _, mine = both(TWO_GROUPS, quiet(enable_profiling=True, profile_file_prefix=str(tmp_path / "theirs")))
    for file in tmp_path.iterdir():
        file.unlink()
    assert mine.get_profiling_start_time_ns() > 0
    for _ in range(3):
        mine.run(None, {"x": X})
    start = mine.get_profiling_start_time_ns()
    path = Path(mine.end_profiling())
    assert [*tmp_path.iterdir()] == [path]
    events = json.loads(path.read_text(encoding="utf-8"))
    assert {event["args"]["group"] for event in events} == {"group_0", "leftover_0", "group_1"}
    runs = [event for event in events if event["name"] == "model_run"]
    assert [event["args"]["group"] for event in runs] == ["group_0", "leftover_0", "group_1"] * 3
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    assert all(event["ts"] >= 0 and event["ph"] for event in events)
    assert mine.get_profiling_start_time_ns() == start
    assert mine.end_profiling() == ""
    mine.run(None, {"x": X})
    mine.close()
    gc.collect()
    assert [*tmp_path.iterdir()] == [path]


def test_profiles_of_specialised_groups_and_of_none(tmp_path: Path) -> None:
    options = quiet(enable_profiling=True, profile_file_prefix=str(tmp_path / "mine"))
    mine = session(TWO_GROUPS, sess_options=options, specialize_after=1)
    assert options.profile_file_prefix == str(tmp_path / "mine")
    assert not [*tmp_path.iterdir()]
    mine.run(None, {"x": X})
    events = json.loads(Path(mine.end_profiling()).read_text(encoding="utf-8"))
    assert "group_0-specialized" in {event["args"]["group"] for event in events}
    mine.run(None, {"x": floats(3, 4)})  # groups that are compiled later write nothing
    mine.run(None, {"x": floats(3, 4)})
    assert len([*tmp_path.iterdir()]) == 1
    unused = session(TWO_GROUPS, sess_options=options)
    assert json.loads(Path(unused.end_profiling()).read_text(encoding="utf-8")) == []


# Providers


@KINDS
def test_other_providers(text: str) -> None:
    mine = session(text, trace=True)
    expected = mine.run(None, {"x": X})
    for providers, options in (
        (["cpu"], None),
        ("cpu", None),
        (["CPUExecutionProvider"], [{}]),
        ([("cpu", {})], None),
        (None, None),
    ):
        mine.set_providers(providers, options)
        assert mine.get_providers() == ["CPUExecutionProvider"]
        for one, other in zip(expected, mine.run(None, {"x": X}), strict=True):
            assert_allclose(one, other, rtol=1e-6)
    assert mine.statistics.runs == 6
    for wrong in (["nonsense"], "nonsense", [("cpu", 1)]):
        with pytest.raises((UsageError, ValueError)):
            mine.set_providers(wrong)
    with pytest.raises(ValueError, match="same length"):
        mine.set_providers(["cpu"], [])
    assert mine.run(None, {"x": X})


def test_other_providers_while_calls_are_running() -> None:
    mine = session(TWO_GROUPS)
    expected = two_groups(X)

    def work(_: int) -> None:
        for one, other in zip(expected, mine.run(None, {"x": X}), strict=True):
            assert_allclose(one, other, rtol=1e-6)

    with in_the_meantime(4, work):
        for _ in range(10):
            mine.set_providers(["cpu"])


@pytest.mark.parametrize(
    "how", ["run", "run_with_ort_values", "run_with_iobinding", "get_outputs", "run_with_ortvaluevector"]
)
def test_a_call_reads_once_what_runs_the_model(how: str) -> None:
    """Another thread may put something else there between any two steps: here whenever it is read."""
    theirs, other = both(TWO_GROUPS)
    mine = session(TWO_GROUPS)
    kinds = [theirs, mine._session, other._session]

    class Changing(InferenceSession):
        @property
        def _session(self) -> Any:
            reads.append(1)
            return kinds[len(reads) % 3]

    changing = object.__new__(Changing)
    changing.__dict__.update({name: value for name, value in mine.__dict__.items() if name != "_session"})
    expected = ASKED[how](theirs)
    for first in range(3):
        reads = [1] * first
        same(expected, ASKED[how](changing)) if how != "run_with_iobinding" else _bound_once(changing, kinds)


def _bound_once(changing: Any, kinds: list[Any]) -> None:
    """A binding belongs to what made it: others refuse it, whatever they are."""
    binding = changing.io_binding()
    # Before 1.30, ONNX Runtime's own session looks for what it needs in it.
    refusals = ValueError if INSTALLED >= (1, 30) else (ValueError, AttributeError)
    with pytest.raises(refusals, match=r"session that created it|IOBinding.*_iobinding"):
        changing.run_with_iobinding(binding)


def test_a_file_that_is_gone_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(TWO_GROUPS).SerializeToString())
    mine = InferenceSession(path, providers=["cpu"])
    path.unlink()
    with pytest.raises(Exception, match=r"No such file|model\.onnx"):
        mine.set_providers(["cpu"])
    assert mine.run(None, {"x": X})


@pytest.mark.parametrize("how", ["run", "run_with_ort_values"])
def test_a_provider_that_fails_in_a_run(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ONNX Runtime: the CPU takes over, once, unless that is not wanted."""
    feed = {"x": value(X)}
    failing = [True]
    original = GroupRunner.__call__

    def fails(self: GroupRunner, values: list[Any], options: Any) -> Any:
        if failing[0]:
            failing[0] = False
            raise pybind.EPFail("the device is lost")
        return original(self, values, options)

    monkeypatch.setattr(GroupRunner, "__call__", fails)
    mine = session(TWO_GROUPS)
    mine.disable_fallback()
    with pytest.raises(pybind.EPFail, match="lost"):
        getattr(mine, how)(["t"], feed)
    mine.enable_fallback()
    failing[0] = True
    with pytest.warns(RuntimeWarning, match="the device is lost; falling back"):
        (found,) = getattr(mine, how)(["t"], feed)
    assert_array_equal(found if how == "run" else found.numpy(), two_groups(X)[1])
    assert mine.statistics.fallbacks == 1


def test_a_group_that_does_not_compile_is_an_error_without_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise pybind.Fail("no memory")

    monkeypatch.setattr(GroupRunner, "compile_on", fails)
    mine = session(TWO_GROUPS, enable_fallback=0)
    with pytest.raises(pybind.Fail, match="no memory"):
        mine.run(None, {"x": X})
    mine.enable_fallback()
    with pytest.warns(RuntimeWarning, match="on the host"):
        mine.run(None, {"x": X})


def test_a_session_that_is_closed_while_a_call_is_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call ends as if nothing had happened."""
    mine = session(TWO_GROUPS)
    feed = {"x": value(X)}
    original = GroupRunner.__call__

    def closes(self: GroupRunner, values: list[Any], options: Any) -> Any:
        mine.close()
        return original(self, values, options)

    monkeypatch.setattr(GroupRunner, "__call__", closes)
    found = mine.run_with_ort_values(["y", "t"], feed)
    for expected, got in zip(two_groups(X), found, strict=True):
        assert_allclose(expected, got.numpy(), rtol=1e-6)


# The others


@since(1, 24, "get_provider_graph_assignment_info")
def test_who_has_which_nodes() -> None:
    mine = session(TWO_GROUPS, sess_options=quiet({"session.record_ep_graph_assignment_info": "1"}))
    found = mine.get_provider_graph_assignment_info()
    assert {part.ep_name for part in found} == {"CPUExecutionProvider"}
    assert len(found) >= 3
    assert mine.statistics.compiles == 3
    mine.run(None, {"x": X})
    assert mine.statistics.compiles == 3
    hosted = session(TWO_GROUPS, run_type="host")
    with pytest.raises(pybind.Fail, match="must be set"):
        hosted.get_provider_graph_assignment_info()


def test_vectors_that_do_not_fit() -> None:
    _, mine = both(TWO_GROUPS)
    names, feeds = vectors({"x": X})
    empty, full = pybind.OrtValueVector(), vectors({"y": np.zeros_like(X)})[1]
    options = onnxruntime.RunOptions()
    for said, arguments in {
        "feed names has 0 elements, but feed has 1": ([], feeds, ["y"], empty, [CPU]),
        "there are 0 devices": (names, feeds, ["y"], empty, []),
        "fetch names has 2 elements, but fetch has 1": (names, feeds, ["y", "t"], full, [CPU, CPU]),
        "Unexpected output data type": (names, feeds, ["y"], vectors({"y": X.astype(np.float64)})[1], [CPU]),
        "Invalid rank for output: y": (names, feeds, ["y"], vectors({"y": X[0]})[1], [CPU]),
        "Current shape:{1,4} Requested shape:{2,4}": (names, feeds, ["y"], vectors({"y": X[:1]})[1], [CPU]),
        "At least one output": (names, feeds, [], empty, []),
    }.items():
        with pytest.raises(pybind.InvalidArgument, match=re.escape(said)):
            mine.run_with_ortvaluevector(options, *arguments)
    with pytest.raises(pybind.Fail, match="Missing Input: x"):
        mine.run_with_ortvaluevector(options, [], pybind.OrtValueVector(), ["y"], empty, [CPU])
    with pytest.raises(pybind.InvalidArgument):
        mine.run_with_ortvaluevector(options, names, feeds, ["nonsense"], empty, [CPU])
    with pytest.raises(pybind.InvalidArgument):
        mine.run_with_ortvaluevector(options, ["nonsense", "x"], vectors({"a": X, "x": X})[1], ["y"], empty, [CPU])
    assert len(empty) == 0
    mine.run_with_ortvaluevector(options, names, feeds, ["y"], full, [CPU])
    assert_allclose(full[0].numpy(), two_groups(X)[0], rtol=1e-6)


@since(1, 30, "create_ortvalue_from_shape_and_type")
def test_values_of_a_device_that_is_not_there() -> None:
    pair = both(TWO_GROUPS)
    for device in ("cuda", "nonsense"):
        given = ([1], np.float32, device)
        expected = alike(pair, lambda one, given=given: one.create_ortvalue_from_shape_and_type(*given))
        assert isinstance(expected, tuple)


def test_dynamic_options_reach_groups_that_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    _, mine = both(TWO_GROUPS)
    seen: list[Any] = []
    maker = mine._session.context.maker
    maker.of_all("watched", seen.append)
    assert seen == []
    mine.run(None, {"x": X})
    assert len(seen) == 3
    maker.of_all("watched", seen.append)
    assert len(seen) == 6


def test_the_metadata_of_the_model() -> None:
    model = onnx.parser.parse_model(TWO_GROUPS)
    model.producer_name, model.domain, model.model_version, model.doc_string = "me", "here", 7, "text"
    model.metadata_props.add(key="k", value="v")
    source = model.SerializeToString()
    theirs, mine = onnxruntime.InferenceSession(source), InferenceSession(source)
    for field in ("producer_name", "domain", "version", "description", "graph_name", "custom_metadata_map"):
        assert getattr(mine.get_modelmeta(), field) == getattr(theirs.get_modelmeta(), field)


def test_a_model_in_memory_can_be_opened_again_after_it_was_changed() -> None:
    model = ir.from_onnx_text(TWO_GROUPS)
    mine = InferenceSession(model, providers=["cpu"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mine.set_providers(["cpu"])
    assert_allclose(mine.run(None, {"x": X})[0], two_groups(X)[0], rtol=1e-6)


def test_run_async_tells_errors() -> None:
    mine = session(f"{HEADER} main (float[N] x) => (float[N] y) {{ a = Neg (x) b = my.Twice (a) y = Relu (b) }}",
                   host_ops=[Twice])  # fmt: skip
    with pytest.raises(ValueError, match="Required inputs"):
        called_back(mine, None, {})
    assert "Invalid rank" in called_back(mine, None, {"x": np.zeros((2, 2), np.float32)})[2]
