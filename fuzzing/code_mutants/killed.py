"""The list of mutants that tests have killed: as text, one a line, and what has become of each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from fuzzing.code_mutants.mutants import Address, Mutant, mutants

LIST: Final = Path(__file__).with_name("killed.jsonl")


def read(path: Path = LIST) -> list[Address]:
    """The addresses in a list."""
    return [Address(*json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def write(addresses: Iterable[Address], path: Path = LIST) -> None:
    """Write a list, in a fixed order."""
    lines = [
        json.dumps([address.function, address.kind, address.text, address.becomes, address.occurrence])
        for address in sorted(addresses)
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def located(addresses: Sequence[Address]) -> tuple[list[Mutant], list[Address]]:
    """Where listed mutants are today, and those whose code is gone or stands in several places by now."""
    places = mutants({address.function for address in addresses})
    found: list[Mutant] = []
    gone: list[Address] = []
    for address in addresses:
        match places.get(address, []):
            case [mutant]:
                found.append(mutant)
            case _:
                gone.append(address)
    return found, gone
