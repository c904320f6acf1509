"""The log of the changes of a model, each with what takes it back, and the places of entries in dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, Protocol

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.onnx_ir_internals import plain_dict


class Entries(Protocol):
    """A dictionary, or what behaves like one, as the initializers of a graph do."""

    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __delitem__(self, key: Any, /) -> None: ...


class _Journal(NamedTuple):
    """A dictionary, which is kept so that no other gets its id, and its keys in the order in which they came."""

    entries: Entries
    keys: list[Hashable]


class DictionaryOrder:
    """The places of entries that have been taken out of dictionaries.

    Every insertion and removal is reported in the order in which it happens, and undone in the reverse order.
    """

    def __init__(self) -> None:
        self._journals: dict[int, _Journal] = {}
        self._out_of_order: dict[int, int] = {}

    def record_insertion(self, entries: Entries, key: Hashable) -> None:
        """Report an entry that has come in at the end."""
        journal = self._journals.get(id(entries))
        if journal is not None:
            journal.keys.append(key)

    def undo_insertion(self, entries: Entries, key: Hashable) -> None:
        """Report that the entry that came last has gone again."""
        journal = self._journals.get(id(entries))
        if journal is not None:
            while journal.keys and journal.keys.pop() != key:
                pass

    def before_removal(self, entries: Entries) -> int:
        """Report an entry that is about to be taken out.

        Returns:
            What `undo_removal` needs to know.
        """
        journal = self._journals.get(id(entries))
        if journal is None:
            journal = self._journals[id(entries)] = _Journal(entries, list(entries))
        return len(journal.keys)

    def undo_removal(self, entries: Entries, keys_before: int) -> None:
        """Report that an entry that was taken out is back, at the end; `restore` brings it to its place."""
        self._out_of_order[id(entries)] = keys_before

    def restore(self) -> None:
        """Bring the entries that are back to their places."""
        while self._out_of_order:
            identity, length = self._out_of_order.popitem()
            entries, keys = self._journals[identity]
            del keys[length:]
            rank = {key: place for place, key in enumerate(keys)}  # one that came twice stands where it came last
            plain = plain_dict(entries)
            ordered = sorted(plain.items(), key=lambda entry: rank.get(entry[0], length))
            plain.clear()
            plain.update(ordered)


Undo = tuple[Callable[..., None], tuple[Any, ...]]


class UndoLog:
    """Changes as (function, arguments) pairs that take them back, oldest first.

    Rolling back replays them in reverse, so that the model serializes to the same bytes as before.

    Attributes:
        changes: The changes that have not been taken back.
        clock: Grows with every change, and never goes back: equal readings mean an unchanged model.
    """

    def __init__(self) -> None:
        self.changes: list[Undo] = []
        self.clock = 0
        self._order = DictionaryOrder()

    def record(self, undo: Callable[..., None], *arguments: Any) -> None:
        """Record a change that has been made.

        Args:
            undo: Takes it back.
            arguments: What `undo` is called with.
        """
        self.changes.append((undo, arguments))
        self.clock += 1

    def rollback(self, length: int, token: CancellationToken = NEVER) -> None:
        """Take back the youngest changes.

        Args:
            length: How many changes stay.
            token: Cancellation token; a rollback that is stopped can be continued.
        """
        for _ in token.checked(range(len(self.changes) - length)):
            undo, arguments = self.changes.pop()
            undo(*arguments)
        self._order.restore()

    def concerned(self, length: int) -> frozenset[int]:
        """What the youngest changes are about: the ids of all objects that they name.

        Args:
            length: How many changes are older.
        """
        ids: set[int] = set()
        for undo, arguments in self.changes[length:]:
            owner = getattr(undo, "__self__", None)
            ids.add(id(owner))
            if isinstance(owner, ir.Graph):  # another order: the nodes stay what they are
                continue
            pending = list(arguments)
            while pending:
                item = pending.pop()
                if isinstance(item, tuple | list):
                    pending += item
                else:
                    ids.add(id(item))
        return frozenset(ids)

    def put(self, entries: Entries, key: Any, value: Any) -> None:
        """Set an entry of a dictionary; a new one stands at the end."""
        if key in entries:
            old, entries[key] = entries[key], value
            self.record(entries.__setitem__, key, old)
        else:
            entries[key] = value
            self._order.record_insertion(entries, key)
            self.record(self._undo_put, entries, key)

    def _undo_put(self, entries: Entries, key: Any) -> None:
        del entries[key]
        self._order.undo_insertion(entries, key)

    def take(self, entries: Entries, key: Any) -> None:
        """Take an entry out of a dictionary."""
        keys_before, value = self._order.before_removal(entries), entries[key]
        del entries[key]
        self.record(self._undo_take, entries, key, value, keys_before)

    def _undo_take(self, entries: Entries, key: Any, value: Any, keys_before: int) -> None:
        entries[key] = value
        self._order.undo_removal(entries, keys_before)
