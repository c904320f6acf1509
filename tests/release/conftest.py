"""What a release consists of: the archives in the folder that ORTOPT_TEST_RELEASE names; `make wheel` makes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def archives() -> dict[str, Path]:
    """The archives by their kind: wheels and sdists of ortopt and of ortopt-zoo."""
    folder = os.environ.get("ORTOPT_TEST_RELEASE")
    if folder is None:
        pytest.skip("make release-check runs it: it takes minutes")
    patterns = {
        "wheel": "ortopt-*.whl",
        "sdist": "ortopt-*.tar.gz",
        "zoo wheel": "ortopt_zoo-*.whl",
        "zoo sdist": "ortopt_zoo-*.tar.gz",
    }
    found = {kind: [*(ROOT / folder).resolve().glob(pattern)] for kind, pattern in patterns.items()}
    assert {kind: len(paths) for kind, paths in found.items()} == dict.fromkeys(patterns, 1)
    assert len([*(ROOT / folder).iterdir()]) == len(patterns)
    return {kind: paths[0] for kind, paths in found.items()}
