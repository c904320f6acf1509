"""Changes are taken back in reverse; the clock never goes back on its own."""

from __future__ import annotations

from ortopt.graph.undo_log import UndoLog


def test_changes_are_taken_back_in_reverse() -> None:
    log, undone = UndoLog(), list[str]()
    for name in ("a", "b", "c"):
        log.record(undone.append, name)
    log.rollback(1)
    assert (undone, len(log.changes)) == (["c", "b"], 1)
    log.rollback(0)
    assert (undone, len(log.changes)) == (["c", "b", "a"], 0)


def test_the_clock_grows_and_stays() -> None:
    log = UndoLog()
    log.record(print)
    log.put({}, "a", 1)
    assert log.clock == 2
    log.rollback(1)
    assert log.clock == 2


def test_entries_of_dictionaries_come_back_to_their_places() -> None:
    log, entries = UndoLog(), {"a": 1, "b": 2, "c": 3}
    log.take(entries, "a")
    log.put(entries, "b", 20)
    log.put(entries, "d", 4)
    log.take(entries, "c")
    log.put(entries, "a", 10)
    assert list(entries.items()) == [("b", 20), ("d", 4), ("a", 10)]
    log.rollback(0)
    assert list(entries.items()) == [("a", 1), ("b", 2), ("c", 3)]
