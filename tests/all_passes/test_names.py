"""The name of a pass is ``<subject>_<kind>``: a stranger finds a pass by it, and sees what it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ortopt import registry
from ortopt.transformer import PASSES_PACKAGE

KINDS = (
    *("canonicalization", "conversion", "decomposition", "elimination", "folding", "fusion", "hoisting", "inlining"),
    *("merging", "packing", "propagation", "quantization", "reassociation", "rebuilding", "reordering", "sharing"),
    *("unrolling", "guarding"),
)
GRAMMAR = re.compile(rf"[a-z][a-z0-9]*(_[a-z0-9]+)*_({'|'.join(KINDS)})")

OF_ONNXRUNTIME = "ONNX Runtime has a pass of this name, and people search for it"
OF_COMPILERS = "compilers have a pass of this name, and people search for it"
EXCEPTIONS = {
    "double_qdq_pairs_remover": OF_ONNXRUNTIME,
    "ensure_unique_dq": OF_ONNXRUNTIME,
    "gelu_approximation": OF_ONNXRUNTIME,
    "loop_invariant_code_motion": OF_COMPILERS,
    "qdq_final_cleanup": OF_ONNXRUNTIME,
    "transpose_optimizer": OF_ONNXRUNTIME,
    "where_dummy_dq": OF_ONNXRUNTIME,
}
"""Names that break the grammar, with the reason."""

PASSES = [kind for kind in registry.installed() if kind.__module__.startswith(PASSES_PACKAGE)]
NAMES = sorted(str(kind.name) for kind in PASSES)


def test_a_name_is_a_subject_and_a_kind() -> None:
    wrong = [name for name in NAMES if name not in EXCEPTIONS and not GRAMMAR.fullmatch(name)]
    assert wrong == [], f"they must end in one of {', '.join(KINDS)}"


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_an_exception_exists_and_is_one(name: str) -> None:
    assert name in NAMES, f"{name} is gone: so is its exception"
    assert not GRAMMAR.fullmatch(name), f"{name} needs no exception"


def test_a_file_is_named_as_its_pass_or_holds_several() -> None:
    of_file: dict[str, list[str]] = {}
    for kind in PASSES:
        of_file.setdefault(kind.__module__.rpartition(".")[2], []).append(str(kind.name))
    files = {path.stem for path in (Path(__file__).parents[2] / "transformers").rglob("[!_]*.py")}
    assert files == set(of_file)
    assert [file for file, names in of_file.items() if len(names) == 1 and names != [file]] == []
