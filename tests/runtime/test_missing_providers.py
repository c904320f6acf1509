"""A provider that does not work here: an error where it is the only one that was named, else a warning."""

from __future__ import annotations

from typing import Any

import pytest

from ortopt import UsageError
from ortopt.analysis.providers import normalize, usable
from ortopt.runtime import session_factory
from ortopt.runtime.execution.session_maker import ProviderLeftOut, SessionMaker
from tests.runtime.models import PLAIN, TWO_GROUPS, floats, session


def test_the_only_provider_that_was_named_and_does_not_come_up_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    make = SessionMaker.make

    def without_cuda(self: SessionMaker, placed: Any, providers: Any, **more: Any) -> Any:
        if "CUDAExecutionProvider" in providers:
            raise ProviderLeftOut("ONNX Runtime made no CUDAExecutionProvider: its own words are on stderr")
        return make(self, placed, providers, **more)

    monkeypatch.setattr(SessionMaker, "make", without_cuda)
    monkeypatch.setattr(session_factory, "usable", lambda name: (True, "ok"))
    monkeypatch.setattr(session_factory._SessionFactory, "_device", lambda self, options: (None, []))
    x = floats(2, 4)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"made no CUDA.*name another provider after it"):
            session(TWO_GROUPS, providers=["cuda"]).run(None, {"x": x})
    with pytest.warns(RuntimeWarning) as told:
        session(TWO_GROUPS, providers=["cuda", "cpu"]).run(None, {"x": x})
    assert len(told) == 3
    assert all("runs on CPUExecutionProvider: ONNX Runtime made no CUDA" in str(one.message) for one in told)


@pytest.mark.parametrize("text", [PLAIN, TWO_GROUPS], ids=["plain", "grouped"])
@pytest.mark.parametrize("more", [{}, {"specialize_after": 1}, {"run_type": "debug"}, {"run_type": "host"}], ids=str)
def test_the_only_provider_that_was_named_and_is_not_here_is_an_error(text: str, more: dict[str, Any]) -> None:
    for name in ("tensorrt", "migraphx"):
        if usable(normalize(name))[0]:
            continue
        with pytest.raises(UsageError, match="does not work here"):
            session(text, providers=[name], **more)
        with pytest.warns(RuntimeWarning, match="does not work here.*falling back to CPUExecutionProvider"):
            mine = session(text, providers=[name, "cpu"], **more)
        assert mine.get_providers() == ["CPUExecutionProvider"]
