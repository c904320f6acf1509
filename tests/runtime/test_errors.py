"""Wrong calls of a session of several groups: ONNX Runtime's classes of errors, in the same program, side by side."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as pybind
from onnxruntime.capi.onnxruntime_inference_collection import check_and_normalize_provider_args

from ortopt import InferenceSession
from tests.releases import INSTALLED, needs, since
from tests.runtime.models import FUNCTION, HEADER, PLAIN, TWO_GROUPS, Twice, floats, session
from tests.runtime.side_by_side import Pair, alike, both, called_back, stopped, value

TEXT = f"""{HEADER}
main (float[N,4] x, int64[M] i, string[K] s, float16[J] h, bool b) =>
     (float[N,4] y, int64[M] j, string[K] t, float16[J] g, bool c) <float[4] w = {{1, 2, 3, 4}}> {{
    y = ortopt.group.group_0 (x, w) j = ortopt.group.group_1 (i) t = Identity (s) g = Identity (h) c = Not (b) }}
{FUNCTION} group_0 (p, q) => (r) {{ s = Add (p, q) r = Relu (s) }}
{FUNCTION} group_1 (p) => (r) {{ s = Neg (p) r = Abs (s) }}
"""
X = floats(2, 4)
GOOD: dict[str, Any] = {
    "x": X,
    "i": np.array([1, -2]),
    "s": np.array(["a", "ä"], object),
    "h": np.array([1, 2], np.float16),
    "b": np.array(True),
}
GONE = object()


def feed(**changed: Any) -> dict[str, Any]:
    return {name: value for name, value in {**GOOD, **changed}.items() if value is not GONE}


@pytest.fixture(scope="module")
def pair() -> Pair:
    return both(TEXT)


FEEDS: dict[str, Any] = {
    "right": feed(),
    "missing": feed(x=GONE),
    "unknown": feed(q=X),
    "no str": feed() | {1: X},
    "none": feed(x=None),
    "none, of strings": feed(s=None),
    "double": feed(x=X.astype(float)),
    "int": feed(x=X.astype(np.int32)),
    "strings": feed(x=X.astype(str)),
    "objects": feed(x=X.astype(object)),
    "complex": feed(x=X.astype(np.complex64)),
    "rank 1": feed(x=X[0]),
    "rank 3": feed(x=X[None]),
    "columns": feed(x=X[:, :3]),
    "no rows": feed(x=X[:0]),
    "no columns": feed(x=X[:, :0]),
    "a list": feed(x=X.tolist()),
    "ragged": feed(x=[[1, 2], [3]]),
    "an empty list": feed(i=[]),
    "integers as floats": feed(i=[1.5, 2]),
    "too large": feed(i=[2**70]),
    "a scalar": feed(x=1.0),
    "a str": feed(x="abc"),
    "bytes": feed(x=b"abc"),
    "a dict": feed(x={"a": 1}),
    "fortran": feed(x=np.asfortranarray(X)),
    "backwards": feed(x=X[::-1]),
    "strided": feed(x=floats(6, 8)[::2, ::2]),
    "nan": feed(x=np.full((1, 4), np.nan, np.float32)),
    "special": feed(x=np.array([[np.inf, -np.inf, -0.0, 1e-45]], np.float32)),
    "a mask": feed(x=np.ma.masked_array(X, mask=X > 0)),
    "stretched": feed(x=np.broadcast_to(np.float32(1), (2, 4))),
    "halves of floats": feed(h=GOOD["h"].astype(np.float32)),
    "halves of bits": feed(h=GOOD["h"].view(np.uint16)),
    "a python bool": feed(b=True),
    "a numpy bool": feed(b=np.bool_(False)),
    "an int as a bool": feed(b=np.array(1)),
    "a list of strings": feed(s=["a", "b"]),
    "no strings": feed(s=np.array([], object)),
    "strings of numpy": feed(s=np.array(["a", "ä"])),
    "strings of ints": feed(s=np.array([1, 2])),
    "strings of objects": feed(s=np.array([1, None], object)),
    "strings of bytes": feed(s=np.array([b"a", b"\xff"], object)),
    "every second string": feed(s=np.array(["a", "b", "c"], object)[::2]),
    "no feed": None,
    "a list of names": ["x", "i"],
    "values": {name: value(array) if name != "s" else array for name, array in GOOD.items()},
}


@pytest.mark.parametrize("name", FEEDS)
def test_feeds(pair: Pair, name: str) -> None:
    if name in {"none", "none, of strings"}:
        needs(1, 27, "Fail for None, as ortopt raises it: before it is a RuntimeException")
    alike(pair, lambda one: one.run(None, FEEDS[name]), words=False)


NAMES: dict[str, Any] = {
    "none": [],
    "a tuple": ("j", "y"),
    "twice": ["y", "y"],
    "a set": {"y"},
    "a str": "y",
    "unknown": ["q"],
    "one unknown": ["y", "q"],
    "an input": ["x"],
    "a number": 5,
    "numbers": [1],
    "nothing": [None],
    "an array": np.array(["y"]),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_outputs(pair: Pair, name: str) -> None:
    if name == "a set":
        needs(1, 24, "outputs that any iterable names")
    alike(pair, lambda one: one.run(NAMES[name], feed()), words=False)


@since(1, 24, "outputs that any iterable names")
def test_names_of_outputs_that_are_there_once(pair: Pair) -> None:
    assert isinstance(alike(pair, lambda one: one.run((name for name in ("y", "j")), feed())), list)


def test_what_is_missing_is_told_before_a_wrong_name(pair: Pair) -> None:
    for one in pair:
        with pytest.raises(ValueError, match="Required inputs"):
            one.run(["q"], {})


# Bindings


BOUND: dict[str, Callable[[Any], Any]] = {
    "right": lambda binding: None,
    "nothing": lambda binding: binding.clear_binding_inputs(),
    "no name": lambda binding: binding.bind_output(None),
    "an array as a value": lambda binding: binding.bind_ortvalue_input("x", X),
    "none as a value": lambda binding: binding.bind_ortvalue_input("x", None),
    "value of doubles": lambda binding: binding.bind_ortvalue_input("x", value(X.astype(float))),
    "output of doubles": lambda binding: binding.bind_ortvalue_output("y", value(X.astype(float))),
    "output of another shape": lambda binding: binding.bind_ortvalue_output("y", value(np.zeros((3, 4), np.float32))),
    "output of another rank": lambda binding: binding.bind_ortvalue_output("y", value(np.zeros(8, np.float32))),
    "output to an array": lambda binding: binding.bind_ortvalue_output("y", X),
    "input from nowhere": lambda binding: binding.bind_input("x", "nonsense", 0, np.float32, (2, 4), X.ctypes.data),
    "input of no type": lambda binding: binding.bind_input("x", "cpu", 0, "nonsense", (2, 4), X.ctypes.data),
    "input of strings": lambda binding: binding.bind_input("x", "cpu", 0, np.str_, (2, 4), X.ctypes.data),
    "input of no size": lambda binding: binding.bind_input("x", "cpu", 0, np.float32, (-1, 4), X.ctypes.data),
    "input at no address": lambda binding: binding.bind_input("x", "cpu", 0, np.float32, (2, 4), None),
    "unknown input": lambda binding: binding.bind_input("q", "cpu", 0, np.float32, (2, 4), X.ctypes.data),
}


@pytest.mark.parametrize("name", BOUND)
def test_bindings(pair: Pair, name: str) -> None:
    if name == "input of strings":
        needs(1, 28, "ValueError for strings at an address, as ortopt raises it: before it is a RuntimeError")

    def run(one: Any) -> Any:
        binding = one.io_binding()
        for key, array in GOOD.items():
            if key != "s":
                binding.bind_cpu_input(key, array)
        binding.bind_ortvalue_input("s", strings)
        binding.bind_output("y")
        BOUND[name](binding)
        one.run_with_iobinding(binding)
        return binding.get_outputs()

    (strings,) = pair[1].run_with_ort_values(["t"], FEEDS["values"])
    alike(pair, run, words=False)


def test_outputs_before_a_run() -> None:
    for one in both(TWO_GROUPS):
        binding = one.io_binding()
        binding.bind_output("t")
        target = value(np.ones((2, 4), np.float32))
        binding.bind_ortvalue_output("y", target)
        empty, full = binding.get_outputs()
        assert not empty.has_value()
        with pytest.raises(RuntimeError):
            empty.numpy()
        assert full.numpy().sum() == 8
        assert len(binding.get_outputs_as_ortvaluevector()) == 2
        binding.bind_cpu_input("x", X)
        one.run_with_iobinding(binding)
        assert binding.get_outputs()[0].has_value()
        assert binding.get_outputs()[1].numpy().sum() == target.numpy().sum() != 8


@pytest.mark.parametrize("binding", [None, 3], ids=repr)
def test_what_is_no_binding(pair: Pair, binding: Any) -> None:
    alike(pair, lambda one: one.run_with_iobinding(binding), words=False)


def test_vectors_that_are_none(pair: Pair) -> None:
    options, vector = onnxruntime.RunOptions(), pybind.OrtValueVector()
    for arguments in ((options, [], [], ["y"], vector, []), (options, [], vector, ["y"], [], [])):
        for one in pair:
            with pytest.raises(TypeError):
                one.run_with_ortvaluevector(*arguments)


# Asynchronous calls


ASYNCHRONOUS: dict[str, tuple[Any, ...]] = {
    "right": (None, feed()),
    "names": (("j", "y"), feed()),
    "unknown output": (["q"], feed()),
    "unknown input": (None, feed(q=X)),
    "missing": (None, feed(x=GONE)),
    "double": (None, feed(x=X.astype(float))),
    "rank": (None, feed(x=X[0])),
    "columns": (None, feed(x=X[:, :3])),
    "a str": (None, feed(x="abc")),
    "name": ("y", feed()),
    "number": ([1], feed()),
    "no str": (None, feed() | {1: X}),
    "no feed": (None, None),
    "stopped": (None, feed(), stopped()),
}


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_asynchronous_calls(pair: Pair, name: str) -> None:
    alike(pair, lambda one: called_back(one, *ASYNCHRONOUS[name]), words=False)


def test_a_callback_that_cannot_be_called() -> None:
    for text in (PLAIN, TWO_GROUPS):
        with pytest.raises(TypeError, match="callback must be callable"):
            session(text).run_async(None, {"x": X}, None, None)  # type: ignore[arg-type]


def test_asynchronous_calls_are_counted() -> None:
    for text in (PLAIN, TWO_GROUPS):
        mine = session(text)
        called_back(mine, None, {"x": X})
        called_back(mine, ["q"], {"x": X})
        assert mine.statistics.runs == 1
        mine.run_with_ortvaluevector(
            onnxruntime.RunOptions(),
            ["x"],
            vector_of(X),
            ["y"],
            pybind.OrtValueVector(),
            [onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()],
        )
        assert mine.statistics.runs == 2


def vector_of(array: Any) -> Any:
    vector = pybind.OrtValueVector()
    vector.push_back(value(array)._ortvalue)
    return vector


def test_asynchronous_calls_are_done_before_the_process_ends(tmp_path: Path) -> None:
    """ONNX Runtime's own end the process with an abort then."""
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(TWO_GROUPS).SerializeToString())
    code = f"""if True:
        import numpy as np, ortopt
        session = ortopt.InferenceSession({str(path)!r}, providers=["cpu"])
        for i in range(50):
            session.run_async(None, {{"x": np.zeros((2, 4), np.float32)}}, lambda *_: print("done", flush=True), None)
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 50


def test_a_callback_that_fails_is_told_of(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("mine")

    mine = pair[1]
    mine.run_async(None, feed(), fails, None)
    assert called_back(mine, ["j"], feed())[2] == ""
    mine.close()
    mine._callers.close(wait=True)
    assert "KeyError: 'mine'" in capsys.readouterr().err


def test_calls_that_wait_when_the_session_is_closed() -> None:
    mine = session(f"{HEADER} main (float[N] x) => (float[N] y) {{ a = Neg (x) b = my.Twice (a) y = Relu (b) }}",
                   host_ops=[Twice])  # fmt: skip
    found: list[Any] = []
    for _ in range(20):
        mine.run_async(None, {"x": X[0]}, lambda *got: found.append(got), None)
    mine.close()
    mine._callers.close(wait=True)
    assert [error for _, _, error in found] == [""] * 20


# The constructor


CONSTRUCTED: dict[str, dict[str, Any]] = {
    "a set": {"providers": {"CPUExecutionProvider"}},
    "a number": {"providers": [3]},
    "nothing": {"providers": [None]},
    "a list": {"providers": [["CPUExecutionProvider", {}]]},
    "three": {"providers": [("CPUExecutionProvider", {}, 1)]},
    "one": {"providers": [("CPUExecutionProvider",)]},
    "too few options": {"providers": ["CPUExecutionProvider"], "provider_options": []},
    "no options": {"providers": ["CPUExecutionProvider"], "provider_options": [3]},
    "a dict of options": {"providers": ["CPUExecutionProvider"], "provider_options": {}},
    "options twice": {"providers": [("CPUExecutionProvider", {})], "provider_options": [{}]},
    "session options": {"sess_options": 3},
}
CPU_ALONE: dict[str, Any] = {"available_provider_names": ["CPUExecutionProvider"]}


@pytest.mark.parametrize("text", [PLAIN, TWO_GROUPS], ids=["whole", "groups"])
@pytest.mark.parametrize("name", CONSTRUCTED)
def test_arguments_of_the_constructor(name: str, text: str) -> None:
    source = onnx.parser.parse_model(text if text.startswith("<") else f"{HEADER} {text}").SerializeToString()
    with pytest.raises((ValueError, TypeError)) as expected:
        if INSTALLED < (1, 23) and "providers" in CONSTRUCTED[name]:  # it falls back, whatever enable_fallback says
            check_and_normalize_provider_args(**{"provider_options": None, **CONSTRUCTED[name]}, **CPU_ALONE)
        onnxruntime.InferenceSession(source, **CONSTRUCTED[name], enable_fallback=0)
    with pytest.raises((ValueError, TypeError)) as got:
        InferenceSession(source, **CONSTRUCTED[name])
    assert type(got.value) is type(expected.value)
    if got.type is ValueError:
        assert str(got.value) == str(expected.value)


def test_a_provider_that_onnx_runtime_raises_of_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    own = onnxruntime.InferenceSession

    def made(given: Any, options: Any, providers: Any, **more: Any) -> Any:
        if providers[0][0] == "TensorrtExecutionProvider":
            raise RuntimeError("install it")
        return own(given, options, providers, **more)

    monkeypatch.setattr("ortopt.runtime.session_factory.usable", lambda name: (True, "ok"))
    monkeypatch.setattr(onnxruntime, "InferenceSession", made)
    with pytest.warns(
        RuntimeWarning, match="TensorrtExecutionProvider does not work here: install it; falling"
    ) as said:
        mine = session(PLAIN, providers=["Tensorrt", "cpu"])
    assert said[0].filename.endswith("models.py")
    assert mine.get_providers() == ["CPUExecutionProvider"]
    assert mine.statistics.fallbacks == 1
    for more in ({"providers": ["Tensorrt"]}, {"providers": ["Tensorrt", "cpu"], "enable_fallback": 0}):
        with pytest.raises(RuntimeError, match="install it"):
            session(PLAIN, **more)
