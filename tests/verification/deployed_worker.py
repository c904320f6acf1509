"""A worker whose ONNX Runtime has faults of its own, which only its optimizations show: by names of nodes.

It stands in for `ortopt.verification.worker`. A model that has a node of one of these names, or with it as its
description, loaded with optimizations, ends the process (``segfaults``), never comes to an end (``hangs``), is refused
(``is_refused``), or gives other numbers (``is_wrong``: twice what it should). With ``_in_16_bits`` behind it, a node
does so only with a weight of float16.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import onnx

from ortopt.system.child_processes import end_with, take_streams
from ortopt.verification import worker

IN_16_BITS = "_in_16_bits"

_open_session = worker.open_session


class _Doubled:
    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, *arguments: Any) -> list[Any]:
        return [2 * array for array in self._session.run(*arguments)]


def _names(graph: onnx.GraphProto) -> set[str]:
    half = {tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT16}
    return {
        text.removesuffix(IN_16_BITS)
        for node in graph.node
        for text in (node.name, node.doc_string)
        if not text.endswith(IN_16_BITS) or not half.isdisjoint(node.input)
    }


def open_session(model: str, *arguments: Any, optimize: bool = False, **more: Any) -> Any:
    names = _names(onnx.load(model, load_external_data=False).graph) if optimize else set()
    if "segfaults" in names:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "hangs" in names:
        time.sleep(1000)
    if "is_refused" in names:
        raise RuntimeError("no kernel for what it was fused to")
    session = _open_session(model, *arguments, optimize=optimize, **more)
    return _Doubled(session) if "is_wrong" in names else session


if __name__ == "__main__":
    worker.open_session = open_session
    requests, answers = take_streams()
    end_with(int(sys.argv[1]))
    worker.main(requests, answers)
