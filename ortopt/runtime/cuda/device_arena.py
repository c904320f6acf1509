"""One arena for the CUDA sessions of all plans on a device, instead of one for each session.

A session keeps what its activations took: with one for each group, the activations of all groups would be kept at the
same time. So the groups take their memory from an arena of ONNX Runtime's environment
(``create_and_register_allocator_v2``, ``session.use_env_allocators``), registered when the first is made.

What a run gives back to the arena is another session's at once, though the device may not have come to its end yet.
That is right where both are on one stream, and nowhere else: so the plans of a process share their stream on a device,
too. Sessions with CUDA graphs have arenas of their own, as a replay writes to what was free when it was captured.
The arena stays as long as the process.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from ortopt.analysis.providers import CUDA
from ortopt.runtime.cuda.capture_gate import GATE

OWN_ARENA_KEYS: Final = ("gpu_mem_limit", "arena_extend_strategy")
"""Provider options that shape the arena of each session: who sets them gets such arenas."""

_lock = threading.Lock()
_registered: dict[tuple[int, int], bool] = {}
"""By process and device, whether there is an arena of ours."""


def register(index: int) -> bool:
    """Register the arena, if that has not been done; whether it is there.

    ONNX Runtime before 1.23 refuses a second arena for a device: then a caller's is there, and stays. Later releases
    replace it, and have no way to ask.

    Args:
        index: The device's number.
    """
    import onnxruntime as ort

    with _lock:
        key = (os.getpid(), index)
        if key not in _registered:
            where = ort.OrtMemoryInfo("Cuda", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, index, ort.OrtMemType.DEFAULT)
            try:
                with GATE.use:
                    ort.create_and_register_allocator_v2(
                        CUDA, where, {"device_id": str(index)}, ort.OrtArenaCfg(0, -1, -1, -1)
                    )
            except Exception:  # whatever ONNX Runtime raises: each session has its own
                _registered[key] = False
            else:
                _registered[key] = True
        return _registered[key]
