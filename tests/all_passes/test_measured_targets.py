"""A pass that serves several runtimes by the table of costs does rewrite for each of them."""

from __future__ import annotations

import itertools

import pytest

from ortopt import optimize, registry
from ortopt.analysis.costs import Form
from ortopt.options import MEASURED_TARGETS, Target
from tests.all_passes.pass_examples import examples

SERVING = [kind for kind in registry.installed() if kind.targets == MEASURED_TARGETS]
ELSEWHERE = [target for target in MEASURED_TARGETS if target is not Target.ORT]


@pytest.mark.parametrize("name", [kind.name for kind in SERVING])
@pytest.mark.parametrize("target", ELSEWHERE)
def test_forms_are_made_for_each_runtime(target: Target, name: str) -> None:
    forms = [str(Form(*form)) for form in registry.installed().find(name).weighs]
    for model, _ in itertools.islice(examples(name, most=None), 12):
        result = optimize(model, only=[name], target=target, force_forms=forms, level=3)
        if result.summary.rewrites:
            assert result.verified
            return
    pytest.fail(f"no example of {name} is rewritten for {target.value}")
