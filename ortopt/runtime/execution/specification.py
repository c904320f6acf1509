"""Argument specifications: the element types and sizes that a group is called with."""

from __future__ import annotations

Specification = tuple[tuple[int, ...], ...]
"""For each argument its element type and its sizes."""

Specialization = tuple[Specification, tuple[tuple[int, bytes], ...]]
"""A specification, and the arguments that were folded in, with their bytes."""
