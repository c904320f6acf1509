"""What a session counts: compiles, cache hits, fallbacks, copies, failed guards."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields


@dataclass(slots=True)
class Statistics:
    """What has happened since a session was made.

    Attributes:
        runs: Calls that came back with results.
        group_runs: Runs of groups, leftovers and host nodes in those calls.
        hits: Runs of a group whose executable was there.
        misses: Runs of a group that had to wait for a compilation.
        compiles: Executables made.
        evictions: Executables dropped from the cache.
        fallbacks: Groups that their provider could not run, and that another one or the host runs.
        specializations: Executables made for one argument specification.
        guard_failures: Runs whose arguments a specialization did not hold for, so that the general session ran.
        specialized_runs: Runs of a group by a version of it for such arguments.
        copies: Values that went from one device to another, by us or by ONNX Runtime at the edge of a group.
        copied_bytes: Their bytes.
        stored: Optimized group models written to the folder of the on-disk cache.
        restored: Optimized group models read from there.
        discarded: Files there that were damaged or came from elsewhere.
        captures: CUDA graphs captured, one for each argument specification and calling thread.
        synchronizations: Times that the host waited for the CUDA stream which the groups share.
    """

    runs: int = 0
    group_runs: int = 0
    hits: int = 0
    misses: int = 0
    compiles: int = 0
    evictions: int = 0
    fallbacks: int = 0
    specializations: int = 0
    guard_failures: int = 0
    specialized_runs: int = 0
    copies: int = 0
    copied_bytes: int = 0
    stored: int = 0
    restored: int = 0
    discarded: int = 0
    captures: int = 0
    synchronizations: int = 0


class Counters:
    """Statistics that many threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = Statistics()

    def add(self, name: str, amount: int = 1) -> None:
        """Add to one of them."""
        with self._lock:
            setattr(self._totals, name, getattr(self._totals, name) + amount)

    def copied(self, values: int, nbytes: int) -> None:
        """Count values that went from one device to another."""
        totals = self._totals
        with self._lock:
            totals.copies += values
            totals.copied_bytes += nbytes

    def ran(self, groups: int) -> None:
        """Count one run of a plan of so many groups."""
        totals = self._totals
        with self._lock:
            totals.group_runs += groups
            totals.hits += groups

    def called(self) -> None:
        """Count one call of the session."""
        with self._lock:
            self._totals.runs += 1

    def missed(self) -> None:
        """Count a run that waited for a compilation; it will be counted as a hit when its plan is done."""
        with self._lock:
            self._totals.misses += 1
            self._totals.hits -= 1

    def snapshot(self) -> Statistics:
        """A copy of all of them, of one moment."""
        with self._lock:
            return Statistics(*(getattr(self._totals, field.name) for field in fields(Statistics)))
