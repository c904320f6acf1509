"""Write ``ortopt/discovery/pass_manifest.json``, from which runs know what rules declare: ``make manifest``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from ortopt.discovery import pass_files, pass_manifest
from ortopt.discovery.deferred_passes import declared
from ortopt.discovery.pass_manifest import Entry

PATH: Final = Path(pass_manifest.__file__).with_name(pass_manifest.FILE)


def manifest() -> bytes:
    """The manifest of the passes as they are, a line for each file."""
    entries = {
        module: Entry(pass_manifest.checksum(path), {kind.name: declared(kind) for kind in pass_files.load(module)})
        for module, path in pass_files.paths().items()
    }
    lines = [f'"{module}":{msgspec.json.encode(entry, order="sorted").decode()}' for module, entry in entries.items()]
    return "{{\n{}\n}}\n".format(",\n".join(lines)).encode()


if __name__ == "__main__":
    PATH.write_bytes(manifest())
