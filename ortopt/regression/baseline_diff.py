"""Two baselines compared as a check compares its results with one: what has become worse, better, new, or vanished."""

from __future__ import annotations

from pathlib import Path

from ortopt.regression.baseline import Baseline
from ortopt.regression.case import Case, split_name
from ortopt.regression.check import notes
from ortopt.regression.judgement import judge, skipped, vanished
from ortopt.regression.manifest import Manifest
from ortopt.regression.results import Check, Result


def diff(old: tuple[Path, Baseline], new: tuple[Path, Baseline], manifest: Manifest) -> Check:
    """The second baseline against the first.

    Args:
        old: The file and the baseline that is compared with.
        new: The file and the one that is judged.
        manifest: Where thresholds and accepted changes are; what it says of how models are run is not asked.
    """
    (old_path, before), (new_path, now) = old, new
    models = {split_name(name)[0] for name in now.models}

    def result(name: str) -> Result:
        model, configuration = split_name(name)
        case = Case(model, configuration, None, manifest.settings(model, configuration, {}))
        if name not in now.models:
            return vanished(case, before, has_model=model in models, pruned=False)
        if case.settings.skip:
            return skipped(case)
        answer = {"facts": dict(now.models[name]), "error": None, "kind": ""}
        return judge(case, answer, before, now.versions, strict=False)

    return Check(
        tuple(map(result, sorted({*before.models, *now.models}))),
        now.versions,
        str(old_path),
        compared=str(new_path),
        notes=notes(before, dict(now.versions)),
    )
