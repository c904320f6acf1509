"""What the plans of all graphs of a model share: its groups, and what runs its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.graph import facts
from ortopt.runtime.execution.group_runner import GroupContext, GroupRunner
from ortopt.runtime.execution.group_spec import GroupSpec, SpecLibrary
from ortopt.runtime.planning.node_kinds import NodeClassifier, NodeKind
from ortopt.runtime.run_settings import RunType


class ModelPlanning:
    """A model on its way to a plan.

    Args:
        model: The model.
        context: What its groups share.

    Attributes:
        context: What its groups share.
        library: Describes its groups.
        kind: Says what runs a node.
        groups: The groups so far, those apart that are versions of others.
        versions: The groups that are versions of others, each with the group that never runs when it does.
    """

    def __init__(self, model: ir.Model, context: GroupContext) -> None:
        self._model = model
        self.context = context
        self.library = SpecLibrary(model)
        on_host = context.settings.run_type is RunType.HOST
        classifier = NodeClassifier(model, self.library, context.providers, context.host_ops, on_host=on_host)
        self.kind: Callable[[ir.Node], NodeKind] = classifier.kind
        self.groups: list[GroupRunner] = []
        self.versions: list[tuple[GroupRunner, GroupRunner]] = []
        self._leftovers = 0
        self._inferred = False

    def new_group(
        self, spec: GroupSpec, *, on_host: bool = False, version_of: GroupRunner | None = None
    ) -> GroupRunner:
        """Make a group that can be run.

        Args:
            spec: What it computes.
            on_host: Whether no provider is asked.
            version_of: The group that never runs when it does: both have the same number of threads, and it is special
                already.
        """
        group = GroupRunner(spec, self.context, on_host=on_host, specializes=version_of is None)
        if version_of is None:
            self.groups.append(group)
        else:
            self.versions.append((group, version_of))
        return group

    def leftover_name(self) -> str:
        """A name for nodes that no group took."""
        self._leftovers += 1
        return f"leftover_{self._leftovers - 1}"

    def inferred(self, values: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
        """Values of which all is known that can be: no iterations at all stack up to a shape, too."""
        if not self._inferred and any(facts.shape_of(value) is None for value in values):
            self._inferred = True
            shapes.infer_model(self._model)
        return tuple(values)
