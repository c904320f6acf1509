"""The same calls on ONNX Runtime's session and on ours: the same result, or the same error.

A test states the model, the feeds and the options as data; `alike` and `check` make the calls and compare. Ops of the
user's own, which run on the host, are functions for ONNX Runtime (`FUNCTIONS`): so it answers for those models, too.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from numpy.testing import assert_allclose, assert_array_equal

from ortopt import InferenceSession
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse

Pair = tuple[Any, InferenceSession]

PARALLEL: Final = onnxruntime.ExecutionMode.ORT_PARALLEL
SEQUENTIAL: Final = onnxruntime.ExecutionMode.ORT_SEQUENTIAL

FUNCTIONS: Final = {"Twice": "y = Add (x, x)", "Same": "y = Identity (x)"}
"""What the user's own ops of the tests compute, by their names in the domain ``my``."""


def quiet(entries: Mapping[str, str] | None = None, **attributes: Any) -> Any:
    """Options of a session that logs nothing.

    Args:
        entries: Configuration entries.
        attributes: Attributes to be set.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for name, given in attributes.items():
        setattr(options, name, given)
    for name, text in (entries or {}).items():
        options.add_session_config_entry(name, text)
    return options


def stopped() -> Any:
    """Run options of a call that is to end at once."""
    options = onnxruntime.RunOptions()
    options.terminate = True
    options.log_severity_level = 4
    return options


def value(array: Any) -> Any:
    """An ``onnxruntime.OrtValue`` of an array."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def bound(one: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | Iterable[str], options: Any = None) -> Any:
    """A binding after a run.

    Args:
        one: A session.
        inputs: Arrays or values by the inputs' names.
        outputs: Names of outputs; a mapping says for each on which device it is wanted, or the value to be written.
        options: ``onnxruntime.RunOptions``.
    """
    binding = one.io_binding()
    for name, given in inputs.items():
        bind = binding.bind_ortvalue_input if isinstance(given, onnxruntime.OrtValue) else binding.bind_cpu_input
        bind(name, given)
    places = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, "cpu")
    for name, place in places.items():
        (binding.bind_output if isinstance(place, str) else binding.bind_ortvalue_output)(name, place)
    one.run_with_iobinding(binding, options)
    return binding


def called_back(one: Any, names: Any, given: Any, options: Any = None) -> tuple[Any, Any, str]:
    """What an asynchronous call tells its callback: the results, the caller's data (7) and the error."""
    done, found = threading.Event(), []
    one.run_async(names, given, lambda *got: (found.extend(got), done.set()), 7, options)
    assert done.wait(60)
    return found[0], found[1], found[2].replace("name:q", "name: q").partition("\n")[0]


def in_threads(count: int, call: Callable[[int], Any]) -> list[Any]:
    """What a function gives in each of several threads that then end; raises what it raises in one."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return [future.result(60) for future in [pool.submit(call, i) for i in range(count)]]


@contextlib.contextmanager
def in_the_meantime(count: int, call: Callable[[int], Any]) -> Iterator[None]:
    """Threads that call a function again and again while this lasts; raises what it raises in one."""
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            call(number)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(work, i) for i in range(count)]
        try:
            yield
        finally:
            stop.set()
    for future in futures:
        future.result()


def reference(text: str) -> Any:
    """ONNX Runtime's session of a model in whose text the user's own ops may stand."""
    used = [name for name in FUNCTIONS if f"my.{name} " in text]
    functions = [f'<domain: "my", opset_import: ["" : 17]> {name} (x) => (y) {{ {FUNCTIONS[name]} }}' for name in used]
    return theirs(parse("\n".join((text, *functions))))


def check(text: str, *feeds: Mapping[str, Any], expected: Iterable[Any] | None = None, **options: Any) -> Any:
    """Check that a model of several groups, or with ops of the user's, gives what ONNX Runtime makes of it.

    Args:
        text: The model.
        feeds: The inputs of each call.
        expected: The outputs, where ONNX Runtime has no session of the model.
        options: Arguments of our session.

    Returns:
        Our session.
    """
    mine = InferenceSession(parse(text), **{"providers": ["cpu"], **options})
    plain = reference(text) if expected is None else None
    for feed in feeds:
        wanted = plain.run(None, feed) if plain is not None else expected
        for output, right, got in zip(mine.get_outputs(), wanted, mine.run(None, feed), strict=True):
            if plain is not None and isinstance(right, np.ndarray):
                assert got.dtype == right.dtype, output.name
            if isinstance(right, np.ndarray) and right.dtype.kind == "f":
                assert_allclose(got, right, rtol=1e-6, err_msg=output.name)
            else:
                same(right, got) if plain is not None else assert_array_equal(got, right)
    return mine


def theirs(model: ir.Model) -> Any:
    """ONNX Runtime's session of a model."""
    return onnxruntime.InferenceSession(to_bytes(model), quiet(), providers=["CPUExecutionProvider"])


def both(source: str | bytes, options: Any = None, **more: Any) -> Pair:
    """ONNX Runtime's session and ours, of the same model of several groups; `more` is for ours."""
    if isinstance(source, str):
        source = onnx.parser.parse_model(source).SerializeToString()
    options = options or quiet()
    plain = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    mine = InferenceSession(source, options, providers=["cpu"], **more)
    assert len(mine.groups) > 1
    return plain, mine


def same(one: Any, other: Any) -> None:
    """Two results of a run are the same, types included."""
    assert type(one) is type(other)
    if isinstance(one, onnxruntime.OrtValue):
        assert one.data_type() == other.data_type()
        assert one.has_value() == other.has_value()
        one, other = (value.numpy() if value.has_value() else None for value in (one, other))
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for inner, outer in zip(one, other, strict=True):
            same(inner, outer)
    elif not isinstance(one, np.ndarray):
        assert one == other
    else:
        assert_array_equal(one, other, strict=True)


def outcome(call: Callable[[], Any], *, words: bool = True) -> Any:
    """What a call gives, or how it fails: the class of the error, and how its message begins."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error).splitlines()[0].split(" : ")[:3] if words else None


def alike(pair: Iterable[Any], call: Callable[[Any], Any], *, words: bool = True) -> Any:
    """Check that a call has the same outcome for both sessions.

    Args:
        pair: ONNX Runtime's session and ours.
        call: Takes one of them.
        words: Whether errors must begin with the same words, too.

    Returns:
        The outcome.
    """
    expected, got = (outcome(lambda one=one: call(one), words=words) for one in pair)
    same(expected, got)
    return expected
