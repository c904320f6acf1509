"""``--dask``: a real scheduler with two worker processes, of which one is killed while models run."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ortopt.errors import UsageError
from ortopt.regression import cluster as clusters
from ortopt.regression.case import Case, Settings
from ortopt.regression.cluster import Cluster
from ortopt.regression.model_run import Answer
from ortopt.regression.pool import Job

distributed = pytest.importorskip("distributed", reason="dask.distributed (extra: cluster) is not installed")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def local() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        yield cluster


def run(address: str, jobs: list[Job], *, kill: int = 0) -> tuple[dict[int, Answer], Counter[int]]:
    """The answers, and how often each came; a worker is killed with the first one."""
    answers: dict[int, Answer] = {}
    times: Counter[int] = Counter()

    def done(job: Job, answer: Answer) -> None:
        if kill and not answers:
            os.kill(kill, signal.SIGKILL)
        answers[job.key] = answer
        times[job.key] += 1

    Cluster(address).run(jobs, done, lambda job: None)
    return answers, times


def pids(address: str) -> list[int]:
    with distributed.Client(address, set_as_default=False) as client:
        return list(client.run(os.getpid).values())


def test_what_a_lost_worker_had_runs_again(local: Any, zoo: Path) -> None:
    names = ("abs", "relu", "gelu")
    jobs = []
    for number in range(6):
        path = zoo / f"{number}.onnx"
        shutil.copy(zoo / f"{names[number % 3]}.onnx", path)
        jobs.append(Job(number, Case(str(number), "", path, Settings()).order()))
    before = pids(local.scheduler_address)
    answers, times = run(local.scheduler_address, jobs, kill=before[0])
    assert times == Counter(range(6))
    assert [answers[number].error for number in range(6)] == [None] * 6
    assert [answers[number].facts["nodes"] for number in range(3)] == [2, 1, 1]
    assert before[0] not in pids(local.scheduler_address)


def test_without_a_shared_file_system_the_content_travels(
    local: Any, zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "_seen", lambda self, jobs: frozenset())
    jobs = [Job(i, Case(name, "", zoo / f"{name}.onnx", Settings()).order()) for i, name in enumerate(("abs", "gelu"))]
    answers, _ = run(local.scheduler_address, jobs)
    assert [answers[i].facts["nodes"] for i in range(2)] == [2, 1]
    monkeypatch.setattr(clusters, "LIMIT", 10)
    answers, _ = run(local.scheduler_address, jobs)
    assert "more than the 10 that go through the scheduler" in answers[0].error


def test_a_model_that_cannot_be_read_costs_only_itself(local: Any, zoo: Path) -> None:
    (zoo / "broken.onnx").write_bytes(b"nonsense")
    jobs = [Job(i, Case(n, "", zoo / f"{n}.onnx", Settings()).order()) for i, n in enumerate(("none", "broken", "abs"))]
    answers, _ = run(local.scheduler_address, jobs)
    assert "No such file" in answers[0].error
    assert "not an ONNX model" in answers[1].error
    assert answers[2].error is None


def test_no_scheduler_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_CONNECT", 0.5)
    with pytest.raises(UsageError, match="no scheduler answers"):
        Cluster("tcp://127.0.0.1:1")


def test_the_command(local: Any, zoo: Path, check: Any) -> None:
    assert "3 models" in check("zoo", "--dask", local.scheduler_address).stdout
