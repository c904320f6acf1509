"""A model, its editor, and the state that a run keeps about it."""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Mapping

import onnx_ir as ir
from msgspec import Struct, field

from ortopt.analysis import dimensions, shapes
from ortopt.analysis.costs import Cost
from ortopt.analysis.exactness import Exactness
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.edit import Editor
from ortopt.options import Numerics, Options
from ortopt.semantics import GROUP_DOMAIN

_PATIENCE = 30.0


ON_A_CLONE = (
    "it declares bypasses_editor and works on a clone, which it edits directly: context.edit, offer, substitute,"
    " attempt, attempt_all and replace are not for it (edit context.model, or take the declaration out)"
)


class Misuse(Exception):  # noqa: N818 -- the author's, which the manager reports by its reason
    """A transformer has done what its declarations rule out; the message says what, and what to do about it."""


class Growth(Struct, frozen=True):
    """What rewrites add to a model, less what they remove.

    Attributes:
        nodes: Number of nodes, those of subgraphs and functions included.
        nbytes: Bytes of constants.
    """

    nodes: int
    nbytes: int

    def __add__(self, other: Growth) -> Growth:
        return Growth(self.nodes + other.nodes, self.nbytes + other.nbytes)

    def __sub__(self, other: Growth) -> Growth:
        return Growth(self.nodes - other.nodes, self.nbytes - other.nbytes)


NO_GROWTH = Growth(0, 0)


class RunState(Struct, eq=False):
    """What a run keeps beside its model: one for all that work on the model, or on a clone of it.

    Attributes:
        offered: Number of rewrites that have been offered.
        too_large: Candidates that were refused because the file would grow too much: bytes by (transformer, node).
        declined: Candidates whose fused form is not worth it: what it costs by (transformer, node).
        numerics: What the rewrites that were made may have done to numbers: transformers with what each did.
        left_out: Rewrites that an observer refused, as (transformer, nodes).
        patience: Seconds left, in the whole run, for evaluating constants with ops that are not known to be safe.
    """

    offered: int = 0
    too_large: dict[tuple[str, ir.Node], int] = field(default_factory=dict)
    declined: dict[tuple[str, ir.Node], Cost] = field(default_factory=dict)
    numerics: set[tuple[str, Numerics]] = field(default_factory=set)
    left_out: set[tuple[str, tuple[ir.Node, ...]]] = field(default_factory=set)
    patience: float = _PATIENCE

    @property
    def is_for_finite_numbers(self) -> bool:
        """Whether a NaN or an infinity may have spread to its neighbours in the result."""
        return any(numerics is Numerics.FINITE for _, numerics in self.numerics)


class ModelInRun(abc.ABC):
    """A model that a run works on: what a context asks of it.

    Args:
        model: The model; changed in place.
        options: Options of the run.
        state: What the run keeps beside it.
    """

    def __init__(self, model: ir.Model, options: Options, state: RunState) -> None:
        self.model = model
        self.options = options
        self.state = state

    @property
    @abc.abstractmethod
    def edit(self) -> Editor:
        """The editor: the one way to change the model.

        Raises:
            Misuse: If the model has none.
        """

    @property
    @abc.abstractmethod
    def exactness(self) -> Exactness:
        """The values whose rounding decides about integers; computed on first use, and kept current."""

    @property
    @abc.abstractmethod
    def version(self) -> int:
        """A point to which the model's editor can go back."""

    @property
    @abc.abstractmethod
    def size(self) -> Growth:
        """The nodes that the model has, and the bytes that edits have added to it; costs next to nothing."""


class Workspace(ModelInRun):
    """A model, its editor, and the state that a run keeps about it.

    Args:
        model: The model; changed in place.
        options: Options of the run.
        allowance: Bytes by which its constants may grow.
        token: Cancellation token for the inference of types and shapes at the start.
        state: What the run keeps beside it; a new one if None.
    """

    def __init__(
        self,
        model: ir.Model,
        options: Options,
        allowance: int = sys.maxsize,
        token: CancellationToken = NEVER,
        state: RunState | None = None,
    ) -> None:
        super().__init__(model, options, state or RunState())
        self.allowance = allowance
        self._stopped_at: int | None = None
        self._exactness: tuple[Editor, Exactness] | None = None
        self._edit = self._start(0, token)

    @property
    def edit(self) -> Editor:
        """The editor: the one way to change the model."""
        return self._edit

    @property
    def version(self) -> int:
        """A point to which the editor can go back."""
        return self._edit.version

    @property
    def size(self) -> Growth:
        """The nodes that the model has, and the bytes that edits have added to it."""
        return Growth(self._edit.index.total_of_all(), self._edit.added_bytes)

    def refresh(self, token: CancellationToken = NEVER) -> None:
        """Infer everything about the model again, after edits that bypassed the editor."""
        self._edit = self._start(self.edit.added_bytes, token)

    @property
    def exactness(self) -> Exactness:
        """The values whose rounding decides about integers; computed on first use, and kept current."""
        if self._exactness is None or self._exactness[0] is not self.edit:
            self._exactness = (
                self.edit,
                Exactness(self.model, self.edit.index, self.edit.touched, scope.token_of(self.model.graph)),
            )
        return self._exactness[1]

    @property
    def calls_are_outdated(self) -> bool:
        """Whether more may be known of local functions and their calls than when all was inferred.

        Edits update nodes, but not the types of a function's inputs by its calls, nor those of calls by the function.
        """
        functions = self.model.functions.values()
        return self.edit.clock > 0 and any(function.domain != GROUP_DOMAIN for function in functions)

    def stop_at(self, version: int) -> None:
        """Mark the version at which a run was stopped: `roll_back_to_mark` undoes what was edited since."""
        self._stopped_at = version

    def roll_back_to_mark(self) -> ir.Model:
        """Restore the model of a stopped run.

        Returns:
            The model; it holds exactly the rewrites that had completed.
        """
        version, self._stopped_at = self._stopped_at, None
        if version is not None:
            self.edit.rollback(version)
            self.edit.restore_order()
            self.edit.drop_freed_initializers()
        return self.model

    def _start(self, added_bytes: int, token: CancellationToken) -> Editor:
        scope.attach(self.model, self.options, token)
        shapes.infer_model(self.model, token, dimensions.matching(self.model, self.options.nonempty))
        edit = Editor(self.model, shapes.infer_node, token)
        edit.allowance = self.allowance
        edit.added_bytes = added_bytes
        return edit

    def reinfer(self, token: CancellationToken) -> None:
        """Infer again where edits have made more known.

        Raises:
            OptimizationCancelled: If the token was set; what has been inferred stays valid.
        """
        self.edit.reinfer(shapes.infer_again, token)

    def swap_in(
        self, model: ir.Model, token: CancellationToken = NEVER, accept: Callable[[], None] = lambda: None
    ) -> None:
        """Replace the model's content by another model's, in place.

        Args:
            model: The other model: graph, functions, metadata and IR version come from it.
            token: Cancellation token.
            accept: Called once all is inferred; raises to refuse the new content.

        Raises:
            OptimizationCancelled: If the token was set. Whatever is raised, by `accept` too, the model keeps its own
                content, and the editor it had.
        """
        own, edit = self.model, self._edit
        before = own.graph, dict(own.functions), dict(own.metadata_props), own.ir_version
        self._set_content(model.graph, model.functions, model.metadata_props, model.ir_version)
        try:
            self.refresh(token)
            accept()
        except BaseException:
            self._set_content(*before)
            self._edit = edit
            raise

    def _set_content(
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


class CloneWorkspace(ModelInRun):
    """A clone that a transformer edits directly: it has no editor, and shares the run's options and state.

    Args:
        model: The clone.
        workspace: The workspace of the original.
    """

    def __init__(self, model: ir.Model, workspace: Workspace) -> None:
        super().__init__(model, workspace.options, workspace.state)

    @property
    def edit(self) -> Editor:
        """There is none: an editor would not see what is done past it.

        Raises:
            Misuse: Always.
        """
        raise Misuse(ON_A_CLONE)

    @property
    def exactness(self) -> Exactness:
        """It is for offers, of which there are none.

        Raises:
            Misuse: Always.
        """
        raise Misuse(ON_A_CLONE)

    @property
    def version(self) -> int:
        """There is nothing to go back to but the original."""
        return 0

    @property
    def size(self) -> Growth:
        """Nobody counts edits past an editor: the workspace of the original does, when the clone is swapped in."""
        return NO_GROWTH
