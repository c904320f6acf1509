"""Provenance: which transformer made a node, from which nodes, under keys of ``node.meta`` and of a file's metadata.

`ortopt.graph.edit` writes them, `ortopt.serialization.encode` puts them into files.
"""

from __future__ import annotations

from typing import Final

PASS_KEY: Final = "ortopt.pass"
"""The name of the transformer."""

ORIGIN_KEY: Final = "ortopt.origin"
"""The names of the original nodes that it stands for."""

MAX_ORIGINS: Final = 8
"""How many of them a file names; beyond, their count."""
