"""A model with all that is kept about it while transformers work on it."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.analysis.exactness import Exactness
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import OptimizationCancelled
from ortopt.graph import scope
from ortopt.graph.edit import Editor
from ortopt.options import Options
from ortopt.semantics import GROUP_DOMAIN

_PATIENCE = 30.0


class Workspace:
    """A model with all that is kept about it while transformers work on it.

    Args:
        model: The model; changed in place.
        options: What the run wants.
        allowance: Bytes by which its constants may grow.
        token: Cancellation token from being made.

    Attributes:
        edit: The editor: the one way to change the model.
        offered: How many rewrites have been offered so far.
        too_large: What was left as it is because the file would grow too much: bytes by (transformer, node).
        left_out: Rewrites that an observer was against, as (transformer, nodes).
        patience: Seconds that are left, in the whole run, to evaluate constants by ops that are not known to be safe.
    """

    def __init__(
        self,
        model: ir.Model,
        options: Options,
        allowance: int = sys.maxsize,
        token: CancellationToken = NEVER,
    ) -> None:
        self.model = model
        self.options = options
        self.allowance = allowance
        self.offered = 0
        self.too_large: dict[tuple[str, ir.Node], int] = {}
        self.left_out: set[tuple[str, tuple[ir.Node, ...]]] = set()
        self.patience = _PATIENCE
        self._unsettled: int | None = None
        self._exactness: tuple[Editor, Exactness] | None = None
        self.edit = self._start(0, token)

    def refresh(self, token: CancellationToken = NEVER) -> None:
        """Learn everything about the model anew: after edits that did not go through the editor."""
        self.edit = self._start(self.edit.added_bytes, token)

    @property
    def exactness(self) -> Exactness:
        """The values whose rounding decides about integers; found when first asked for, and kept current."""
        if self._exactness is None or self._exactness[0] is not self.edit:
            self._exactness = self.edit, Exactness(self.model, self.edit.index, self.edit.touched)
        return self._exactness[1]

    @property
    def calls_are_outdated(self) -> bool:
        """Whether more may be known of local functions and of their calls than when all was inferred.

        Edits tell nodes, but no function what it is called with now, and no call what its function gives.
        """
        functions = self.model.functions.values()
        return self.edit.clock > 0 and any(function.domain != GROUP_DOMAIN for function in functions)

    def stop_at(self, version: int) -> None:
        """Mark where a run was stopped: `roll_back_to_mark` takes back what the editor changed since."""
        self._unsettled = version

    def roll_back_to_mark(self) -> ir.Model:
        """Bring the model of a stopped run in order.

        Returns:
            The model; it holds exactly the rewrites that had completed.
        """
        version, self._unsettled = self._unsettled, None
        if version is not None:
            self.edit.rollback(version)
            self.edit.restore_order()
            self.edit.drop_freed_initializers()
        return self.model

    def _start(self, added_bytes: int, token: CancellationToken) -> Editor:
        scope.attach(self.model, self.options, token)
        shapes.infer_model(self.model, token)
        edit = Editor(self.model, shapes.infer_node, token)
        edit.allowance = self.allowance
        edit.added_bytes = added_bytes
        return edit

    def reinfer(self, token: CancellationToken) -> None:
        """Infer again what has become better known through edits.

        Raises:
            OptimizationCancelled: If the token was set; what is known stays true.
        """
        self.edit.reinfer(shapes.infer_again, token)

    def swap_in(self, model: ir.Model, token: CancellationToken = NEVER) -> None:
        """Give the model the content of another one, in place.

        Raises:
            OptimizationCancelled: If the token was set; the model has its own content then.
        """
        own = self.model
        before = own.graph, dict(own.functions), dict(own.metadata_props), own.ir_version
        self._put_in(model.graph, model.functions, model.metadata_props, model.ir_version)
        try:
            self.refresh(token)
        except OptimizationCancelled:
            self._put_in(*before)
            raise

    def _put_in(
        self,
        graph: ir.Graph,
        functions: Mapping[ir.OperatorIdentifier, ir.Function],
        metadata: Mapping[str, str],
        ir_version: int,
    ) -> None:
        own = self.model
        own.graph = graph
        own.functions.clear()
        own.functions.update(functions)
        own.metadata_props.clear()
        own.metadata_props.update(metadata)
        own.ir_version = ir_version


class CloneWorkspace(Workspace):
    """A clone that a transformer edits directly: it has no editor of its own, and shares the run's options and counts.

    Args:
        model: The clone.
        workspace: The workspace of the original.
    """

    def __init__(self, model: ir.Model, workspace: Workspace) -> None:
        self.model = model
        self.options = workspace.options
        self.allowance = workspace.allowance
        self.offered = workspace.offered
        self.too_large = workspace.too_large
        self.left_out = workspace.left_out
        self.edit = workspace.edit


__all__ = ["CloneWorkspace", "Workspace"]
