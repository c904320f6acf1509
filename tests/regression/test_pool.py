"""Processes are reused, a model that takes one down costs only itself, and memory is shared out."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ortopt.regression import pool as pools
from ortopt.regression.case import Case, Settings
from ortopt.regression.model_run import BROKEN, LATE, NO_MEMORY, Answer
from ortopt.regression.pool import Job, Pool, Worker


def order(zoo: Path, name: str) -> dict[str, Any]:
    return Case(name, "", zoo / f"{name}.onnx", Settings()).order()


def test_a_process_that_dies_costs_the_model_that_it_is_at(zoo: Path) -> None:
    pool = Pool(1)
    answers: dict[int, Answer] = {}
    processes = []

    def begun(job: Job) -> None:
        child = pool._workers[0]._child
        processes.append(child and child.process)
        if job.key == 1:
            assert child is not None
            child.process.kill()

    jobs = [Job(i, order(zoo, name)) for i, name in enumerate(("abs", "relu", "gelu", "abs"))]
    pool.run(jobs, lambda job, answer: answers.update({job.key: answer}), begun)
    assert [answers[i].error for i in range(4)] == [None, "its process ended with SIGKILL", None, None]
    assert answers[1].kind == BROKEN
    assert answers[0].facts["nodes"] == 2
    assert processes[0] is None  # it starts with the first order
    assert processes[3] is not processes[1]


def test_one_that_takes_too_long_is_ended(zoo: Path) -> None:
    with Worker(0.01) as worker:
        answer = worker.run(order(zoo, "abs"))
    assert (answer.kind, answer.error) == (LATE, "it took longer than 0.01 s (see --timeout)")


class FakeWorker:
    """Answers after a moment, or that there was not enough memory."""

    running: dict[int, int]
    log: list[tuple[int, int, int]]

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, order: Any) -> Answer:
        me = threading.get_ident()
        FakeWorker.running[me] = order["memory"]
        FakeWorker.log.append((order["key"], order["memory"], sum(FakeWorker.running.values())))
        time.sleep(0.02)
        del FakeWorker.running[me]
        kind = NO_MEMORY if order["memory"] < order.get("takes", 0) else ""
        return Answer({}, kind or None, kind)

    def stop(self) -> None:
        pass


GB = 1 << 30


def run_fake(
    monkeypatch: pytest.MonkeyPatch, jobs: int, orders: list[tuple[int, int]], **more: Any
) -> dict[int, Answer]:
    monkeypatch.setattr(pools, "Worker", FakeWorker)
    FakeWorker.running, FakeWorker.log = {}, []
    answers: dict[int, Answer] = {}
    all_jobs = [Job(i, {"key": i, "takes": takes}, nbytes) for i, (nbytes, takes) in enumerate(orders)]
    Pool(jobs, budget=8 * GB, **more).run(
        all_jobs, lambda job, answer: answers.update({job.key: answer}), lambda job: None
    )
    return answers


def test_large_models_do_not_run_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    run_fake(monkeypatch, 4, [(int(1.4 * GB), 0)] * 3 + [(1000, 0)] * 8)
    assert max(together for _, _, together in FakeWorker.log) <= 8 * GB
    assert {memory for key, memory, _ in FakeWorker.log if key >= 3} == {2 * GB}
    assert min(memory for key, memory, _ in FakeWorker.log if key < 3) > 5 * GB


def test_one_whose_share_does_not_do_gets_all_of_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = run_fake(monkeypatch, 4, [(1000, 3 * GB), (1000, 0), (1000, 9 * GB)])
    assert [answers[i].kind for i in range(3)] == ["", "", NO_MEMORY]
    assert sorted((key, memory) for key, memory, _ in FakeWorker.log) == [
        (0, 2 * GB), (0, 8 * GB), (1, 2 * GB), (2, 2 * GB), (2, 8 * GB),
    ]  # fmt: skip
    assert all(together == 8 * GB for _, memory, together in FakeWorker.log if memory == 8 * GB)


def test_a_limit_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = run_fake(monkeypatch, 2, [(1000, 3 * GB)], limit=GB)
    assert answers[0].kind == NO_MEMORY
    assert FakeWorker.log == [(0, GB, GB)]


def test_what_the_caller_raises_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "Worker", FakeWorker)
    FakeWorker.running, FakeWorker.log = {}, []

    def done(job: Job, answer: Answer) -> None:
        raise KeyError("the disk is full")

    with pytest.raises(KeyError):
        Pool(2, budget=8 * GB).run([Job(i, {"key": i}) for i in range(50)], done, lambda job: None)
    assert len(FakeWorker.log) < 10
