"""The process that times models against each other: of each pair, on each of its inputs, one call of each in turns.

``python -m ortopt.measurement.pair_child PARENT`` reads one JSON object from standard input and answers with one. With
a single thread on the CPU, the time is that of the thread, which other processes hardly disturb; else the clock's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ortopt._deferred_sympy import defer_sympy
from ortopt.measurement.child import Order, failure, open_plain, serve

WARM_UP = 2


def compare(order: Order) -> dict[str, Any]:
    """Time two models in turns.

    Args:
        order: ``models`` are two paths, ``inputs`` folders of stored inputs, ``providers`` full names, ``threads`` is 0
            for ONNX Runtime's default, ``seconds`` and ``repeat`` bound the timed calls on each of the inputs.
            ``as_loaded`` is false where ONNX Runtime must not optimize the models.

    Returns:
        For each of the inputs the ratios of the first model's time to the second's, and the median of the first's, in
        seconds.
    """
    import onnxruntime

    from ortopt.analysis.providers import CPU, usable
    from ortopt.evaluation.sessions import quiet_options, register_libraries
    from ortopt.verification.input_sets import inputs_from

    options, quiet = quiet_options(order["threads"])
    if not order["as_loaded"]:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for provider in order["providers"]:
        usable(provider)  # loads the libraries that the provider looks for
    alone = order["threads"] == 1 and order["providers"] == [CPU]
    if not alone:  # else the threads of one session spin while the other one is timed
        options.add_session_config_entry("session.force_spinning_stop", "1")
    register_libraries(options, order["libraries"])
    sessions = [open_plain({**order, "model": path}, options) for path in order["models"]]
    clock = time.thread_time if alone else time.perf_counter

    def pairs(feeds: dict[str, Any]) -> dict[str, Any]:
        def timed(which: int) -> float:
            started = clock()
            sessions[which].run(None, feeds, quiet)
            return clock() - started

        return _pairs(timed, order)

    return {"inputs": [pairs(inputs_from(Path(folder))) for folder in order["inputs"]]}


def answer(order: Order) -> dict[str, Any]:
    """Time pairs of models, one after the other.

    Args:
        order: ``each`` is a list of ``models``, ``inputs`` and ``as_loaded``; the rest is the same for all.

    Returns:
        ``each`` is a list of what `compare` returns, of a pair that does not run with its ``error``.
    """
    answers = []
    for one in order["each"]:
        try:
            answers.append(compare({**order, **one}))
        except Exception as error:  # whatever ONNX Runtime raises: the other pairs may run
            answers.append(failure(error, opens=True))
    return {"each": answers}


def _pairs(timed: Callable[[int], float], order: Order) -> dict[str, Any]:
    for which in (0, 1) * WARM_UP:
        timed(which)
    ratios: list[float] = []
    times: list[float] = []
    end = time.monotonic() + order["seconds"]
    while len(ratios) < order["repeat"] and (time.monotonic() < end or not ratios):
        turn = len(ratios) % 2
        both = {which: timed(which) for which in ((0, 1) if turn == 0 else (1, 0))}
        times.append(both[0])
        ratios.append(both[0] / max(both[1], 1e-9))
    return {"ratios": ratios, "seconds": sorted(times)[len(times) // 2]}


if __name__ == "__main__":
    defer_sympy()
    serve(answer)
