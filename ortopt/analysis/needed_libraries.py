"""The libraries that a library's file says it cannot be loaded without: ELF (Linux) and PE (Windows).

What a library opens only when it uses it is not among them. Only the tables of names are read, not the library.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ELF: Final = b"\x7fELF"
_ELF_64_LITTLE: Final = b"\x02\x01"
_LOAD, _DYNAMIC = 1, 2  # kinds of segments
_END, _NEEDED, _STRINGS = 0, 1, 5  # tags of the dynamic section

_IMPORTS: Final = 1  # the second of PE's directories
_PE_PLUS: Final = 0x20B


def needed_libraries(path: Path) -> tuple[str, ...]:
    """The names of the libraries, in the file's order; none for a file of another kind, or a broken one.

    Args:
        path: The library.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            return ()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return tuple(_of_elf(content) if content[:4] == _ELF else _of_pe(content))
            except (struct.error, ValueError, OverflowError):  # places that are not in the file
                return ()


def _of_elf(content: mmap.mmap) -> Iterator[str]:
    if content[4:6] != _ELF_64_LITTLE:
        return
    (start,) = struct.unpack_from("<Q", content, 0x20)
    size, count = struct.unpack_from("<HH", content, 0x36)
    segments = [struct.unpack_from("<IIQQQQ", content, start + i * size) for i in range(count)]
    loaded = [(address, length, offset) for kind, _, offset, address, _, length in segments if kind == _LOAD]
    entries: list[tuple[int, int]] = []
    for kind, _, offset, _, _, length in segments:
        if kind == _DYNAMIC:
            entries.extend(struct.iter_unpack("<QQ", content[offset : offset + length]))
    tags = [tag for tag, _ in entries]
    entries = entries[: tags.index(_END)] if _END in tags else entries
    strings = next((_place(value, loaded) for tag, value in entries if tag == _STRINGS), None)
    if strings is not None:
        yield from (_text(content, strings + value) for tag, value in entries if tag == _NEEDED)


def _of_pe(content: mmap.mmap) -> Iterator[str]:
    if content[:2] != b"MZ":
        return
    (header,) = struct.unpack_from("<I", content, 0x3C)
    if content[header : header + 4] != b"PE\0\0":
        return
    (count,) = struct.unpack_from("<H", content, header + 6)
    (optional_size,) = struct.unpack_from("<H", content, header + 20)
    optional = header + 24
    (kind,) = struct.unpack_from("<H", content, optional)
    directories = optional + (112 if kind == _PE_PLUS else 96)
    table, _ = struct.unpack_from("<II", content, directories + 8 * _IMPORTS)
    sections = [struct.unpack_from("<IIII", content, optional + optional_size + 40 * i + 8) for i in range(count)]
    loaded = [(address, max(virtual, raw), offset) for virtual, address, raw, offset in sections]
    place = _place(table, loaded) if table else None
    while place is not None:
        (name,) = struct.unpack_from("<I", content, place + 12)
        where = _place(name, loaded) if name else None
        if where is None:
            return
        yield _text(content, where)
        place += 20


def _place(address: int, loaded: list[tuple[int, int, int]]) -> int | None:
    """Where in the file an address is that the loader would give it."""
    return next((offset + address - begin for begin, size, offset in loaded if begin <= address < begin + size), None)


def _text(content: mmap.mmap, place: int) -> str:
    end = content.find(b"\0", place)
    if end < 0:
        raise ValueError("a name without an end")
    return content[place:end].decode()
