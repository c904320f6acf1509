"""How much work Python does, counted: it is the same on every machine and under any load, as seconds are not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions(function: Callable[[], object]) -> int:
    """Number of bytecode instructions that a call executes, in all functions that it calls."""
    counted = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Callable[..., Any]:
        nonlocal counted
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        counted += event == "opcode"
        return trace

    had = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(had)
    return counted
