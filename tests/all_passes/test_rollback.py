"""Passes that move nodes between graphs are undone to the same bytes, by the undo log of the editor."""

from __future__ import annotations

import pytest

from ortopt import registry
from ortopt.cancellation import CancellationToken
from ortopt.framework.workspace import Workspace
from ortopt.manager import GraphTransformerManager
from ortopt.options import Options
from ortopt.serialization.save import to_bytes
from ortopt.testing import DEFAULT_OPSET, parse
from tests.passes import example_files

PASSES = (
    *("control_flow_output_elimination", "function_inlining", "if_inlining", "if_merging", "loop_carried_elimination"),
    *("loop_invariant_code_motion", "loop_unrolling", "scan_elimination"),
)


@pytest.mark.parametrize("name", PASSES)
def test_rolls_back_to_the_same_bytes(name: str) -> None:
    kind = registry.installed().find(name)
    for example in example_files.read(name):
        if example.arguments.keys() & {"options", "target"}:
            continue
        workspace = Workspace(parse(example.model, example.arguments.get("opset", DEFAULT_OPSET)), Options())
        before, start = to_bytes(workspace.model), workspace.edit.version
        manager = GraphTransformerManager()
        manager.register(kind())
        manager.run(workspace, kind.levels[0], CancellationToken())
        assert example.kept or to_bytes(workspace.model) != before, example.title
        workspace.edit.rollback(start)
        assert to_bytes(workspace.model) == before, example.title
