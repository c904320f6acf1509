"""The order of dictionaries: an entry that is taken out and put back comes to where it was.

A dictionary can only be added to at its end. To write down its whole order at each removal costs as much as the
dictionary: thousands of removals would cost its square, in time and memory. So one list is kept of each dictionary
that something has been taken from: its keys in the order in which they came. It only grows while edits go on; its
length at a removal says what the order was then.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple, Protocol

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


__all__ = ["DictionaryOrder", "Entries"]
