"""One arena for the sessions of all groups on the CPU, instead of one for each.

A session of ONNX Runtime keeps what its activations took, for its next run. With a session for each group, the
activations of all groups would be kept at the same time: a chain of 12 groups that pass on 16 MB takes 451 MB, where a
plain session takes 66. ONNX Runtime's environment can have an arena that sessions share which opt in
(``session.use_env_allocators``). One is registered when the first groups are made. Sessions of others, which do not opt
in, have the arenas that they had.

ONNX Runtime replaces what is registered by what is registered later, and has no way to list it. So it is found
out, by the address of what a session gives once another has given its own back: what a caller has registered stays, as
it may be bounded for his own sessions. The groups have arenas of their own then, unless he lets them opt in himself.

Tried instead: without any arena each value is mapped and faulted in anew, which takes 7 to 10 times the processor's
time where activations dominate; to shrink each arena after its run is the same; outputs in buffers of ours would leave
what is between a group's nodes in as many arenas as before.

The environment never gives the arena back. So it is shrunk when the last session of a model is gone. What sessions have
on a CUDA device is another arena (`ortopt.runtime.cuda.device`).
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx

from ortopt.runtime.execution import session_options
from ortopt.runtime.onnxruntime_internals import (
    NativeSession,
    auxiliary_session,
    new_binding,
    output_memories,
    tells_memories,
)
from ortopt.runtime.values.tensors import borrow

if TYPE_CHECKING:
    import onnxruntime

ENTRY: Final = "session.use_env_allocators"
"""The session option that takes memory from the environment's allocators."""

_SHRINK: Final = "memory.enable_memory_arena_shrinkage"
_SIZE: Final = 64
_MAX_TRIES: Final = 5  # another thread may take what was given back

_lock = threading.Lock()
_registered: dict[int, NativeSession] = {}
"""By the process that registered it, a session that takes its memory from our arena."""


class Arena:
    """What the sessions of one model have to do with the arena of the process.

    Args:
        options: The caller's ``onnxruntime.SessionOptions``: options that turn arenas off, or name the allocators of
            their sessions, are respected.
    """

    def __init__(self, options: onnxruntime.SessionOptions) -> None:
        self._may_share = options.enable_cpu_mem_arena and not session_options.entry(options, ENTRY)
        self._member: NativeSession | None = None
        self._is_known = False
        self._lock = threading.Lock()
        self._alive: set[int] = set()
        self._numbers = itertools.count()

    def entries(self) -> Mapping[str, str]:
        """Configuration entries of a session on the CPU."""
        with self._lock:
            if not self._is_known and self._may_share and tells_memories():
                self._member = _current()
            self._is_known = True
        return {} if self._member is None else {ENTRY: "1"}

    def joined(self, session: NativeSession) -> None:
        """Take up a session that has the entries: when the last one is gone, memory that is free is given back.

        Args:
            session: ONNX Runtime's C++ session.
        """
        number = next(self._numbers)
        self._alive.add(number)
        weakref.finalize(session, self._left, number, os.getpid()).atexit = False

    def _left(self, number: int, process: int) -> None:
        """A session is gone. That may be in the midst of anything: no lock is taken here."""
        self._alive.discard(number)
        if not self._alive and self._member is not None and process == os.getpid():
            _shrink(self._member)


def _current() -> NativeSession | None:
    """A session that takes its memory from our arena, registered if there is none; None if there is another."""
    with _lock:
        member = _member()
        if _registered:
            # A parent process may have been forked while a thread of it held the arena's lock.
            ours = _registered.get(os.getpid())
            return member if ours is not None and _share(ours, member) else None
        if not _is_arena(member) or _share(member, _member()):
            return None  # a caller's
        _register()
        ours = _registered[os.getpid()] = _member()
        # The first block is never given back: these runs make it a small one.
        return ours if _share(ours, _member()) else None


def _register() -> None:
    """Register an arena: unbounded, all else as by default."""
    import onnxruntime as ort

    where = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(where, ort.OrtArenaCfg(0, -1, -1, -1))


def _member() -> NativeSession:
    """A session that opts in, and has hardly anything to do."""
    nodes = f"x = Constant <value_ints = {[0] * _SIZE}> () y = Neg (x)"
    header = '<ir_version: 8, opset_import: ["" : 17]>'
    model = onnx.parser.parse_model(f"{header} nothing () => (int64[{_SIZE}] y) {{ {nodes} }}")
    return auxiliary_session(model, {ENTRY: "1"})


def _is_arena(session: NativeSession) -> bool:
    import onnxruntime

    arena = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    return bool(output_memories(session)[0].allocator_type == arena)


def _share(first: NativeSession, other: NativeSession) -> bool:
    """Whether two sessions with an arena have the same: the other gets what the one has given back."""
    return any(_address(first) == _address(other) for _ in range(_MAX_TRIES))


def _address(session: NativeSession) -> int:
    """Where a session puts what it gives, which is free again."""
    return int(session.run_with_ort_values({}, ["y"], None)[0].data_ptr())


def _shrink(session: NativeSession) -> None:
    """Give back memory of a session's arena: blocks of which nothing is used, not even by what this very run gives."""
    result = np.zeros(_SIZE, np.int64)
    bound = new_binding(session)
    bound.bind_ortvalue_output("y", borrow(result))
    session.run_with_iobinding(bound, _shrinking())


@functools.cache
def _shrinking() -> onnxruntime.RunOptions:
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry(_SHRINK, "cpu:0")
    return options
