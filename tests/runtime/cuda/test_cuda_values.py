"""Guards, sequences, bindings and other providers on a CUDA device: nothing goes past it. A fake device notes it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnxruntime.capi import onnxruntime_pybind11_state as pybind

from ortopt.analysis import shapes
from ortopt.analysis.providers import CUDA
from ortopt.runtime.onnxruntime_interface.model_signature import ModelSignature
from ortopt.runtime.specialization.guard_writer import guarded
from tests.runtime.cuda.fake_cuda import Log, fake_cuda
from tests.runtime.cuda.test_cuda_plans import CHAIN, MIXED, X, chain, cuda, for_cuda
from tests.runtime.models import FUNCTION, HEADER, TWO_GROUPS, Twice, floats, plain_session, session, two_groups
from tests.runtime.side_by_side import bound, value
from tests.runtime.values.test_containers import SEQUENCE, STRINGS

__all__ = ["fake_cuda"]

GUARDED = f"""{HEADER} main (float[N,4] x, int64[2] s) => (float[N,4] y) {{
    a = ortopt.group.group_0 (x) b = ortopt.group.group_1 (a, s) y = ortopt.group.group_2 (b, b) }}
{FUNCTION} group_0 (p) => (r) {{ s = Neg (p) r = Exp (s) }}
{FUNCTION} group_1 (p, s) => (r) {{ t = Reshape (p, s) u = Relu (t) r = Neg (u) }}
{FUNCTION} group_2 (p, q) => (r) {{ s = Mul (p, q) r = Abs (s) }}
"""


def on_device(mine: Any, array: Any) -> Any:
    return onnxruntime.OrtValue(mine._session.device.upload(value(array)._ortvalue, "given"))


def grouped(text: str) -> ir.Model:
    model = for_cuda(text)
    for function in model.functions.values():
        function.metadata_props["ortopt.weights"] = "0"
    shapes.infer_model(model)
    return model


def guarded_on_cuda(**options: Any) -> Any:
    model = guarded(grouped(GUARDED), "group_1", shapes={"a": [3, 4]}, constants={"s": np.array([3, 4])})
    for function in model.functions.values():
        function.metadata_props["ortopt.provider"] = CUDA
    return session(model, providers=["cpu", "cuda"], **options)


def test_guards_leave_values_between_groups_on_the_device(fake_cuda: Log) -> None:
    mine = guarded_on_cuda()
    feed = {"x": X, "s": np.array([3, 4])}
    expected = plain_session(GUARDED).run(None, feed)[0]
    assert_allclose(mine.run(None, feed)[0], expected, rtol=1e-6)
    before = mine.statistics
    fake_cuda.events.clear()
    assert_allclose(mine.run(None, feed)[0], expected, rtol=1e-6)
    assert fake_cuda.of("run") == [True, True, True]  # nobody waits between them
    assert mine.statistics.copies - before.copies == 2  # x up, y down
    assert mine.statistics.specialized_runs == 2
    small = {"x": floats(2, 4), "s": np.array([2, 4])}
    assert_allclose(mine.run(None, small)[0], plain_session(GUARDED).run(None, small)[0], rtol=1e-6)
    assert mine.statistics.guard_failures == 1


def test_guards_wait_for_contents_that_are_on_the_device(fake_cuda: Log) -> None:
    mine = guarded_on_cuda()
    expected = plain_session(GUARDED).run(None, {"x": X, "s": np.array([3, 4])})[0]
    for i in range(2):
        feed = {"x": on_device(mine, X), "s": on_device(mine, np.array([3, 4]))}
        (y,) = mine.run_with_ort_values(None, feed)
        assert_allclose(y.numpy(), expected, rtol=1e-6)
        assert mine.statistics.specialized_runs == i + 1
        assert fake_cuda.of("download") == [16, 48] * (i + 1)  # s, for the guard, and y


def test_guards_of_specialised_groups_wait_too(fake_cuda: Log) -> None:
    text = f"""{HEADER} main (float[N,4] x, int64[2] s) => (float[N,4] y) {{
        y = ortopt.group.group_0 (x, s) }}
    {FUNCTION} group_0 (p, s) => (r) {{ t = Reshape (p, s) u = Relu (t) r = Exp (u) }}"""
    mine = cuda(text, specialize_after=2, specialize_constants=True)
    expected = np.exp(np.maximum(X, 0))
    for _ in range(3):
        assert_allclose(mine.run(None, {"x": X, "s": np.array([3, 4])})[0], expected, rtol=1e-6)
    assert mine.statistics.specializations == 1
    (y,) = mine.run_with_ort_values(None, {"x": on_device(mine, X), "s": on_device(mine, np.array([3, 4]))})
    assert_allclose(y.numpy(), expected, rtol=1e-6)
    assert (mine.statistics.specialized_runs, mine.statistics.guard_failures) == (3, 0)
    assert fake_cuda.of("download") == [48, 48, 48, 16, 48]  # y each time, and s for the guard


def test_one_result_that_stands_for_two_outputs_is_two_arrays() -> None:
    text = f"""{HEADER} main (float[N,4] x) => (float[N,4] y, float[N,4] z) {{
        y, z = ortopt.group.group_0 (x) }}
    {FUNCTION} group_0 (p) => (r, q) {{ s = Neg (p) r = Exp (s) q = Relu (s) }}"""
    model = guarded(grouped(text), "group_0", shapes={"x": [3, 4]})
    (node,) = [node for node in model.graph if node.op_type == "If"]
    for name in ("then_branch", "else_branch"):
        branch = node.attributes[name].as_graph()
        branch.outputs[1] = branch.outputs[0]
    mine = session(model)
    y, z = mine.run(None, {"x": X})
    assert_array_equal(y, z)
    y[:] = 0
    assert z.all()


@pytest.mark.parametrize("text", [SEQUENCE, STRINGS], ids=["sequences", "strings"])
def test_what_is_no_tensor_of_numbers_goes_through_groups_on_cuda(fake_cuda: Log, text: str) -> None:
    words = np.array(["a", "bc"], object)
    numbers = {"q": [floats(2), floats(3)], "x": floats(4), "i": np.array(1)}
    feed = {"x": words, "z": words[::-1].copy()} if text is STRINGS else numbers
    mine = cuda(text)
    expected = plain_session(text).run(None, feed)
    given = {**feed, "x": on_device(mine, feed["x"])} if text is SEQUENCE else feed
    for one in (feed, given, feed):
        for theirs, ours in zip(expected, mine.run(None, one), strict=True):
            assert len(theirs) == len(ours)
            for a, b in zip(theirs, ours, strict=True):
                assert_array_equal(a, b)
    assert fake_cuda.overlaps == 0


def test_inputs_on_the_device_are_refused_without_a_look_at_them(
    fake_cuda: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session that answers for the interface knows no device, and fails where it is given what is on one."""
    mine = cuda(CHAIN)
    original = ModelSignature.check_inputs

    def check(self: ModelSignature, feeds: Any) -> None:
        assert not any(mine._session.device.is_resident(getattr(value, "_ortvalue", None)) for value in feeds.values())
        original(self, feeds)

    monkeypatch.setattr(ModelSignature, "check_inputs", check)
    with pytest.raises(pybind.InvalidArgument, match="Got invalid dimensions"):
        mine.run_with_ort_values(None, {"x": on_device(mine, floats(3, 5))})
    with pytest.raises(pybind.InvalidArgument, match="Unexpected input data type"):
        mine.run_with_ort_values(None, {"x": on_device(mine, X.astype(np.float64))})
    with pytest.raises(pybind.InvalidArgument, match="nope"):
        mine.run(None, {"x": on_device(mine, X), "nope": X})
    binding = mine.io_binding()
    with pytest.raises(RuntimeError, match="nope"):
        binding.bind_ortvalue_input("nope", on_device(mine, X))


def test_what_is_copied_to_the_host_is_there_before_anything_else_waits(fake_cuda: Log) -> None:
    """A copy is put on the stream: until that has been waited for, the host's memory holds anything."""
    mine = cuda(CHAIN)
    (device,) = fake_cuda.devices
    resident = on_device(mine, X)._ortvalue
    fake_cuda.events.clear()
    copy = device.download(resident, "x")
    assert fake_cuda.kinds() == ["download", "wait"]
    assert_array_equal(copy.numpy(), X)


def test_what_a_replay_leaves_in_the_hosts_memory_is_there_when_the_next_step_reads_it(fake_cuda: Log) -> None:
    mine = cuda(MIXED, host_ops=[Twice], specialize_after=1, cuda_graphs=True)
    w = np.array([1, 2, 3, 4], np.float32)
    seen: list[Any] = []
    run = Twice._run

    def noted(self: Any, x: Any) -> Any:
        seen.append(np.array(x))
        return run(self, x)

    for seed in range(3):
        x = floats(3, 4, seed=seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Twice, "_run", noted)
            mine.run(None, {"x": x})
        assert_allclose(seen[-1], np.maximum(x + w, 0), rtol=1e-6)
    assert fake_cuda.of("replay")


@pytest.mark.parametrize("how", ["values", "binding"])
def test_what_a_caller_gives_on_the_device_is_waited_for(fake_cuda: Log, how: str) -> None:
    """It was put there on the default stream, with which the groups' stream keeps no order."""
    mine = cuda(CHAIN)
    mine.run(None, {"x": X})
    given = on_device(mine, X)
    fake_cuda.events.clear()
    if how == "values":
        mine.run_with_ort_values(None, {"x": given})
    else:
        bound(mine, {"x": given}, {"y": "cuda"})
    assert fake_cuda.kinds()[:2] == ["wait for default", "run"]
    mine.run(None, {"x": X})  # what is in the host's memory needs no such wait
    assert "wait for default" not in fake_cuda.kinds()


def test_bound_memory_that_others_may_still_read_is_waited_for(fake_cuda: Log) -> None:
    mine = cuda(CHAIN)
    bound(mine, {"x": X}, {"y": on_device(mine, np.zeros_like(X))})
    assert fake_cuda.kinds()[-3:] == ["wait for default", "on device", "wait"]


def test_outputs_go_to_the_device_that_is_asked_for(fake_cuda: Log) -> None:
    mine = cuda(CHAIN)
    for where in ("cpu", "cuda"):
        place = onnxruntime.OrtDevice.make(where, 0)._get_c_device()
        feeds, fetches = pybind.OrtValueVector(), pybind.OrtValueVector()
        feeds.push_back(value(X)._ortvalue)
        fake_cuda.events.clear()
        mine.run_with_ortvaluevector(onnxruntime.RunOptions(), ["x"], feeds, ["y"], fetches, [place])
        assert_allclose(fetches[0].numpy(), chain(X), rtol=1e-6)
        assert (len(fake_cuda.of("upload")), len(fake_cuda.of("download"))) == (1, int(where == "cpu"))
        assert fake_cuda.kinds()[-1] == "wait"


def test_what_goes_up_to_a_bound_device_is_there_when_the_run_returns(fake_cuda: Log) -> None:
    mine = cuda(TWO_GROUPS, "group_1")  # y comes from the CPU
    binding = bound(mine, {"x": X}, {"y": "cuda", "t": "cuda"})
    assert fake_cuda.kinds()[-2:] == ["upload", "wait"]
    for found, expected in zip(binding.get_outputs(), two_groups(X), strict=True):
        assert mine._session.device.is_resident(found._ortvalue)
        assert_allclose(found.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("how", ["run", "run_with_ort_values"])
def test_a_device_that_is_lost_gives_way_to_the_cpu(fake_cuda: Log, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    mine = cuda(CHAIN)
    (device,) = fake_cuda.devices

    def lost(stream: int) -> None:
        raise OSError("the NVIDIA driver answers cuStreamSynchronize with error 700")

    monkeypatch.setattr(device._driver, "synchronize", lost)
    feed = {"x": value(X)}
    mine.disable_fallback()
    with pytest.raises(pybind.EPFail, match="error 700"):
        getattr(mine, how)(None, feed)
    mine.enable_fallback()
    with pytest.warns(RuntimeWarning, match="error 700; falling back to CPU"):
        (y,) = getattr(mine, how)(None, feed)
    assert_allclose(np.asarray(y if how == "run" else y.numpy()), chain(X), rtol=1e-6)
    assert mine.get_providers() == ["CPUExecutionProvider"]
    assert mine._session.device is None


def test_calls_end_on_the_device_on_which_they_began(fake_cuda: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = cuda(CHAIN)
    mine.run(None, {"x": X})
    old = mine._session._run_plan
    inside, go_on = threading.Event(), threading.Event()

    def slow(values: Any, captured: Any, options: Any) -> Any:
        inside.set()
        assert go_on.wait(60)
        return old(values, captured, options)

    mine._session._run_plan = slow
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(mine.run(None, {"x": X})))
    thread.start()
    try:
        assert inside.wait(60)
        mine.set_providers(["cpu"])
        fake_cuda.events.clear()
    finally:
        go_on.set()
        thread.join()
    assert_allclose(found[0], chain(X), rtol=1e-6)
    assert fake_cuda.kinds()[-1] == "wait"
