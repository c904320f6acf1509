"""A few seeds of the fuzzer, at every level; `make fuzz` runs thousands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzzing import groups
from fuzzing.generator import generate
from fuzzing.oracle import Rejected, failures
from fuzzing.writer import Unsuitable

ROOT = Path(__file__).parents[1]
SEEDS = 60
BYTES = """
import hashlib
from fuzzing.generator import generate
from fuzzing.oracle import Way, optimized
for seed in (0, 1, 2, 4, 5, 6):
    for level in (1, 3):
        made, _ = optimized(generate(seed).model.SerializeToString(), Way(level))
        print(seed, level, hashlib.sha256(made).hexdigest())
"""


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_random_models_compute_the_same_at_every_level(first: int) -> None:
    ran = 0
    for seed in range(first, first + 20):
        try:
            _, found = failures(generate(seed), seed)
        except (Rejected, Unsuitable):
            continue
        ran += 1
        assert not found, f"seed {seed}: {found[0]}"
    assert ran > 12


def test_random_models_with_oddities_compute_the_same_in_groups() -> None:
    done = [groups.examine(seed, None) for seed in range(12)]
    ran = [one for one in done if "rejected" not in one]
    assert len(ran) > 8
    assert [text for one in ran for text in one["found"]] == []
    assert len({name for one in ran for name in one["rewrites"]}) > 5


def test_random_models_give_the_same_bytes_with_any_hash_seed() -> None:
    printed = set()
    for seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", BYTES], capture_output=True, text=True, env=environment, check=True
        )
        printed.add(done.stdout)
    (lines,) = printed
    assert len(lines.splitlines()) == 12
