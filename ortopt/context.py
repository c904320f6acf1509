"""The context in which a transformer works: the one door through which it changes a model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import onnx_ir as ir

from ortopt.analysis import kernels, releases
from ortopt.cancellation import CancellationToken
from ortopt.graph import scope
from ortopt.graph.edit import Conflict, Editor, TooLarge, detach_orphans, discard, new_nodes
from ortopt.graph.match import Refusal, with_claims
from ortopt.options import Numerics, Options, Target, TransformerLevel
from ortopt.semantics import STANDARD_DOMAINS
from ortopt.workspace import Workspace

T = TypeVar("T")

EXACT_PATH = "it is computed from integers, and its rounding decides about a discrete step"
CONTRIB_VERSION = 1  # of every domain of ONNX Runtime's own that a model may not import yet


class Declarations(Protocol):
    """What a context asks of a transformer: a few of the declarations of `ortopt.transformer.GraphTransformer`."""

    @property
    def name(self) -> str:
        """The name that users know."""
        ...

    @property
    def providers(self) -> tuple[str, ...]:
        """Where the nodes that it offers must be placed."""
        ...

    @property
    def produces(self) -> tuple[tuple[str, str], ...]:
        """The ops outside ai.onnx that it may introduce."""
        ...

    @property
    def numerics(self) -> Numerics:
        """What it may do to numbers."""
        ...

    @property
    def keeps_elementwise(self) -> bool:
        """Whether it leaves elementwise arithmetic as it is."""
        ...


class Listeners(Protocol):
    """Whom a context tells of rewrites and refusals: `ortopt.observers.Observers`."""

    listens_to_refusals: bool

    def offer(self, transformer: Any, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        """Whether a rewrite is to be made."""
        ...

    def rewrote(self, transformer: Any, nodes: Sequence[ir.Node], number: int) -> None:
        """A rewrite has been made."""
        ...

    def refused(self, transformer: Any, node: ir.Node, reason: str) -> None:
        """A candidate has been left as it is."""
        ...


class Context:
    """What a transformer may know and do while it works on a graph.

    A rewrite is one independent change: it is offered, made, counted and announced, and stays if the run is stopped
    later; or it is refused, with the reason, and nothing is counted. `substitute` and `attempt` do all of that. Many
    may be offered (`offer`) before the first is made: those are not offered again, and `attempt_all` makes them at
    once. A change that is offered and then made by hand is over with the next offer, or when the transformer returns.

    Args:
        workspace: The model and its editor.
        transformer: Who works.
        level: At which level.
        step: In which step of the fixed-point loop, from 1.
        cancellation: Cancellation token.
        observers: Who watches.
    """

    def __init__(
        self,
        workspace: Workspace,
        transformer: Declarations,
        level: TransformerLevel,
        step: int,
        cancellation: CancellationToken,
        observers: Listeners,
    ) -> None:
        self.transformer = transformer
        self.level = level
        self.step = step
        self.cancellation = cancellation
        self._workspace = workspace
        self._observers = observers
        self._rewrites = 0  # completed ones
        self._mark = workspace.edit.version  # after the last completed one: a stopped run goes back to it
        self._open: dict[tuple[ir.Node, ...], int] = {}  # offers that were accepted, with their numbers
        self._new: list[ir.Node] = []  # what has come since
        self._changing: tuple[ir.Node, ...] | None = None  # what `attempt` is at

    @property
    def model(self) -> ir.Model:
        """The whole model."""
        return self._workspace.model

    @property
    def edit(self) -> Editor:
        """The editor: the one way to change the model."""
        return self._workspace.edit

    @property
    def options(self) -> Options:
        """What the run wants."""
        return self._workspace.options

    @property
    def listens_to_refusals(self) -> bool:
        """Whether anybody wants to know why candidates stay: for reasons that take long to find."""
        return self._observers.listens_to_refusals

    @property
    def patience(self) -> float:
        """For how many seconds more the run may evaluate what is constant."""
        return self._workspace.patience

    def spend(self, seconds: float) -> None:
        """Say how long an evaluation has taken."""
        self._workspace.patience -= seconds

    def substitute(
        self,
        replacements: Mapping[ir.Value, ir.Value],
        *,
        before: ir.Node,
        origin: Sequence[ir.Node] = (),
        why: str = "",
        nodes: Sequence[ir.Node] | None = None,
    ) -> bool:
        """Let new values stand for old ones, as one rewrite.

        Args:
            replacements: Old value to new value (see `Editor.replace`); nodes that were made for it are let go of
                where it is not to be.
            before: Where the new nodes go.
            origin: The nodes that they stand for.
            why: What for, in a few words; the formula if empty.
            nodes: The nodes that are offered: those that will go or change; `before` if None.

        Returns:
            Whether it was done; if not, nothing has changed, and the reason has been told.

        Raises:
            OptimizationCancelled: If the run has been asked to stop.
        """
        offered = (before,) if nodes is None else tuple(nodes)
        accepted = False
        try:
            accepted = self._begin(offered, why)
        finally:
            if not accepted:
                discard(new_nodes(replacements.values()))
        if not accepted:
            return False
        try:
            self.replace(replacements, before, origin)
        except Conflict as conflict:
            self._drop(offered, offered[0] if offered else before, conflict)
            return False
        self._complete(offered, self._new)
        return True

    def attempt(
        self,
        nodes: Sequence[ir.Node],
        change: Callable[[], Iterable[ir.Node] | None],
        why: str = "",
        *,
        candidate: ir.Node | None = None,
    ) -> bool:
        """Make any change, as one rewrite.

        Args:
            nodes: The nodes that will go or change.
            change: Edits through ``context.edit``, and `replace`; returns the nodes that came or changed, or None:
                those that `replace` made. `Conflict` and `Refusal` say that it cannot be: all of it is taken back.
            why: What for, in a few words; the formula if empty.
            candidate: Of which node the reason is told if it cannot be; the first of `nodes` if None.

        Returns:
            Whether it was done; if not, nothing has changed, and the reason has been told.

        Raises:
            OptimizationCancelled: If the run has been asked to stop.
        """
        offered = tuple(nodes)
        if not self._begin(offered, why):
            return False
        done, found = self._try([offered], change, candidate)
        if done:
            self._complete(offered, _still_there(self._new if found is None else found))
        return done

    def attempt_all(
        self, batch: Sequence[Sequence[ir.Node]], change: Callable[[], Iterable[Iterable[ir.Node]]]
    ) -> bool:
        """Make many rewrites at once, all of them or none.

        Args:
            batch: The nodes of each; each has been offered, and accepted.
            change: Makes them all, as that of `attempt` does; returns the nodes that came or changed of each.

        Returns:
            Whether it was done; if not, nothing has changed, and the reason has been told of each.

        Raises:
            OptimizationCancelled: If the run has been asked to stop.
        """
        offered = [tuple(nodes) for nodes in batch]
        if any(nodes not in self._open for nodes in offered):
            raise ValueError("a rewrite of the batch has not been accepted")
        self.cancellation.check()
        self._mark = self.edit.version
        done, found = self._try(offered, change, None)
        for nodes, new in zip(offered, found or (), strict=True) if done else ():
            self._complete(nodes, _still_there(new))
        return done

    def offer(self, nodes: Sequence[ir.Node], why: str = "") -> bool:
        """Ask whether to make one independent change.

        A transformer is told no, with the reason, where a node is not placed on one of its ``providers``; and one whose
        numerics are not exact where a result of these nodes is computed from integers and decides about a discrete
        step: another rounding would be another integer.

        Args:
            nodes: The nodes that will go or change.
            why: What for, in a few words; the formula if empty.

        Returns:
            Whether to make it; if not, leave these nodes as they are.

        Raises:
            OptimizationCancelled: If the run has been asked to stop.
        """
        return self._ask(tuple(nodes), why)

    # -- what happens to a rewrite; of these the framework calls some, a transformer none ---------------------------

    def _ask(self, nodes: tuple[ir.Node, ...], why: str = "", candidate: ir.Node | None = None) -> bool:
        """Whether a change is to be made; what was changed by hand before is over."""
        if self._changing is not None:
            raise RuntimeError("a change that has been offered makes no offers of its own")
        workspace = self._workspace
        if self._open:
            self._end_by_hand()
            self._open.pop(nodes, None)  # asked once more, it is the latest
        self._mark = workspace.edit.version
        self.cancellation.check()
        if (self.transformer.providers and self._is_elsewhere(nodes, candidate)) or self._must_round_as_before(nodes):
            return False
        workspace.edit.collect_names(self.cancellation)  # what takes long is done before the change begins
        known = (self.transformer.name, nodes)
        if known in workspace.left_out:
            return False  # said once, said for good: an offer made again would renumber those after it
        workspace.offered += 1
        if not self._observers.offer(self.transformer, nodes, workspace.offered, why):
            workspace.left_out.add(known)
            return False
        self._open[nodes] = workspace.offered
        return True

    def _try(
        self, batch: Sequence[tuple[ir.Node, ...]], change: Callable[[], T], candidate: ir.Node | None
    ) -> tuple[bool, T | None]:
        """Make a change that was offered, or take it back and say why; whether it was made, and what it returned."""
        edit = self.edit
        start, clock = edit.version, edit.clock
        matched = tuple(itertools.chain.from_iterable(batch))
        self._changing = matched
        reason: Exception | None = None
        found: T | None = None
        try:
            found = change()
        except (Conflict, Refusal) as error:
            reason = error
            edit.rollback(start)
            edit.clock = clock  # the model is as it was: a refusal is no change
            detach_orphans(matched)
        except Exception:
            detach_orphans(matched)
            raise
        finally:
            self._changing = None
        if reason is None and edit.version != start:
            return True, found
        for nodes in batch:
            self._drop(nodes, candidate or next(iter(nodes), None), reason)
        return False, None

    def _begin(self, nodes: tuple[ir.Node, ...], why: str) -> bool:
        """Whether a change is to be made now; one that has been accepted is not offered again."""
        if nodes not in self._open:
            return self._ask(nodes, why)
        self.cancellation.check()
        self._mark = self.edit.version
        return True

    def _complete(self, nodes: tuple[ir.Node, ...], new: Sequence[ir.Node]) -> None:
        """Count and announce a change that has been made; it stays if the run is stopped from now on."""
        number = self._open.pop(nodes)
        self._new = []
        self._rewrites += 1
        self._mark = self.edit.version
        self._observers.rewrote(self.transformer, new, number)

    def _drop(self, nodes: tuple[ir.Node, ...], candidate: ir.Node | None, reason: Exception | None) -> None:
        """Forget an offer that came to nothing, and say why, if there is a reason."""
        self._open.pop(nodes, None)
        self._new = []
        if candidate is not None and reason is not None:
            self.refuse(candidate, reason)

    def _end_by_hand(self) -> None:
        """What has been edited since the last rewrite is the latest offer's that is open, if there is one."""
        if self._open and self._mark != self.edit.version:
            self._complete(next(reversed(self._open)), _still_there(self._new))
        self._mark = self.edit.version

    def _end(self) -> None:
        """The transformer has returned: of the offers that are open, those whose nodes have gone were made as well."""
        self._end_by_hand()
        for nodes in tuple(self._open):
            if nodes and all(node.graph is None for node in nodes):
                self._complete(nodes, ())
        self._open.clear()

    def _is_elsewhere(self, nodes: Sequence[ir.Node], candidate: ir.Node | None) -> bool:
        """Whether a node is not placed where the transformer works; says so."""
        wanted = self.transformer.providers
        for node in nodes:
            if self.provider_of(node) not in wanted:
                self.refuse(candidate or node, f"it is not placed on {' or '.join(wanted)}")
                return True
        return False

    def _must_round_as_before(self, nodes: Sequence[ir.Node]) -> bool:
        """Whether other rounding in some nodes could show as another integer; says so."""
        declared = self.transformer
        if declared.numerics is Numerics.EXACT or declared.keeps_elementwise:
            return False
        found = self._workspace.exactness.step_behind(nodes)
        if found is None:
            return False
        value, step = found
        producer = value.producer()
        assert producer is not None
        self.refuse(producer, f"{EXACT_PATH}: {step} ({value.name})")
        return True

    def refuse(self, node: ir.Node, reason: str | Exception) -> None:
        """Say why a candidate is left as it is; costs nothing where nobody listens.

        Args:
            node: The candidate.
            reason: A clause for the user; a `TooLarge` is counted, whoever listens.
        """
        if isinstance(reason, TooLarge):
            self._workspace.too_large[self.transformer.name, node] = reason.nbytes
        if self._observers.listens_to_refusals:
            told = with_claims(reason, node) if isinstance(reason, Refusal) else reason
            self._observers.refused(self.transformer, node, str(told))

    def replace(
        self,
        replacements: Mapping[ir.Value, ir.Value],
        before: ir.Node,
        origin: Sequence[ir.Node] = (),
    ) -> list[ir.Node]:
        """Let new values stand for old ones (see `Editor.replace`), if the providers can run the new nodes.

        This is an edit: it belongs to the rewrite that has been offered (see `substitute` and `attempt`).

        Args:
            replacements: Old value to new value.
            before: Where the new nodes go.
            origin: The nodes that they stand for.

        Returns:
            The new nodes.

        Raises:
            Conflict: If it cannot be; nothing is changed then.
        """
        there = {node.op_identifier() for node in origin}
        matched = origin or self._changing or ()

        def accept(nodes: Sequence[ir.Node]) -> None:
            for node in nodes:
                if node.op_identifier() not in there:  # an op that has been there may stay, wherever it comes from
                    self._check_defined(node)
                self._check_runnable(node, matched, origin)

        nodes = self.edit.replace(replacements, before, origin, accept)
        for node in nodes:
            self._import_domain(node)
        self._new += nodes
        return nodes

    def _check_defined(self, node: ir.Node) -> None:
        """Refuse a new node of an op that the level, the target or the model's opset does not have."""
        if node.op_identifier() in self.model.functions:
            return
        version = scope.of(scope.graph_of(node)).opset_imports.get(node.domain, CONTRIB_VERSION)
        if kernels.is_official(node.domain, node.op_type, version):
            return
        if (node.domain, node.op_type) not in self.transformer.produces:
            if node.domain in STANDARD_DOMAINS:
                raise Conflict(f"opset {version} has no {node.op_type}")
            raise ValueError(f"it made a {node.domain} {node.op_type}, which it does not declare (produces)")
        if self.level == TransformerLevel.LEVEL1 or self.options.target is Target.ONNX:
            raise Conflict(f"{node.op_type} is no op of the ONNX specification")
        needed, least = releases.of_op(node.domain, node.op_type), releases.least(self.options)
        if needed > least:
            raise Conflict(f"ONNX Runtime {releases.shown(least)} has no {node.op_type}")

    def _check_runnable(self, node: ir.Node, matched: Sequence[ir.Node], origin: Sequence[ir.Node]) -> None:
        """Refuse a new node that cannot run where what it replaces runs, nor where that would rather have run."""
        if types_unknown(node):
            return
        version = scope.of(scope.graph_of(node)).opset_imports.get(node.domain, CONTRIB_VERSION)
        place, how = next(
            (
                (place, answer)
                for place, provider in enumerate(self.options.providers)
                if (answer := kernels.support(provider, node, version)) is not None
            ),
            (None, None),
        )
        expanded = how is kernels.Support.EXPANDED and node.domain not in STANDARD_DOMAINS
        if place is not None and not expanded and (not place or place <= self._place(node, matched)):
            return
        if any(
            self.provider_of(old) is None for old in origin
        ):  # asked last: one that is replaced may have many inputs
            return
        if expanded:
            raise Conflict(f"the provider would take {node.op_type} apart again")
        types = ", ".join(
            "unknown" if value.dtype is None else value.dtype.name.lower() for value in node.inputs if value is not None
        )
        if place is None:
            raise Conflict(f"no provider has a kernel of {node.op_type} for {types}")
        there = self.options.providers[self._place(node, matched)]
        raise Conflict(f"{there}, where it is to run, has no kernel of {node.op_type} for {types}")

    def _place(self, node: ir.Node, matched: Sequence[ir.Node]) -> int:
        """How far down the list of providers a new node may be placed: no further than what it replaces.

        That are the matched nodes of the same op: then as far as any of them; else all: then as far as the first.
        """
        providers = self.options.providers
        peers = [old for old in matched if old.op_identifier() == node.op_identifier()]
        found = [providers.index(name) for old in peers or matched if (name := self.provider_of(old)) is not None]
        if not found:
            return len(providers)
        return max(found) if peers else min(found)

    def _import_domain(self, node: ir.Node) -> None:
        imports = scope.of(scope.graph_of(node)).opset_imports
        if node.domain not in imports:
            self.edit.set_opset(imports, node.domain, CONTRIB_VERSION)

    def provider_of(self, node: ir.Node) -> str | None:
        """The first of the chosen providers that can run a node, or None.

        Args:
            node: A node of a graph.
        """
        imports = scope.of(scope.graph_of(node)).opset_imports
        version = imports.get(node.domain, 1)
        for provider in self.options.providers:
            if kernels.support(provider, node, version) is not None:
                return provider
        return None


def _still_there(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    return [node for node in nodes if node.graph is not None]


def types_unknown(node: ir.Node) -> bool:
    """Whether an element type that decides about a kernel is not known."""
    return any(value is not None and value.type is None for value in node.inputs)
