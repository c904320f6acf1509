"""The context in which a transformer works: the one door through which it changes a model."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import onnx_ir as ir

from ortopt.analysis import costs, kernels
from ortopt.cancellation import CancellationToken
from ortopt.framework import fusions, placement
from ortopt.framework.workspace import NO_GROWTH, ModelInRun
from ortopt.graph import scope
from ortopt.graph.edit import Conflict, Editor, TooLarge, detach_orphans, discard, new_nodes
from ortopt.graph.index import op_key
from ortopt.graph.match import Refusal, with_claims
from ortopt.graph.refusal import Code, Reason, reason_of
from ortopt.options import Numerics, Options, Target, TransformerLevel

T = TypeVar("T")

EXACT_PATH = "it is computed from integers, and its rounding decides about a discrete step"


class Declarations(Protocol):
    """The declarations of `ortopt.transformer.GraphTransformer` that a context reads."""

    @property
    def name(self) -> str:
        """The name that users know."""

    @property
    def providers(self) -> tuple[str, ...]:
        """Execution providers on which the nodes that it offers must be placed."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Targets that it serves; empty is any."""

    @property
    def produces(self) -> tuple[tuple[str, str], ...]:
        """The ops outside ai.onnx that it may introduce."""

    @property
    def fused_ops(self) -> tuple[tuple[str, str], ...]:
        """The ops that it may introduce and that stand for several nodes."""

    @property
    def numerics(self) -> Numerics:
        """What it may do to numbers."""

    @property
    def keeps_elementwise(self) -> bool:
        """Whether it leaves elementwise arithmetic as it is."""


class Listeners(Protocol):
    """The interface of `ortopt.observers.Observers` that a context calls."""

    listens_to_refusals: bool

    def offer(self, transformer: Any, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        """Whether a rewrite is to be made."""

    def rewrote(self, transformer: Any, nodes: Sequence[ir.Node], number: int) -> None:
        """A rewrite has been made."""

    def refused(self, transformer: Any, node: ir.Node, reason: Reason) -> None:
        """A candidate has been refused."""

    def weighed(self, transformer: Any, node: ir.Node, decision: fusions.Decision) -> None:
        """What a fused form costs has been asked for."""


class Context:
    """What a transformer may know and do while it works on a graph.

    A rewrite is one independent change: it is offered, made, counted and announced, and stays if the run is stopped
    later; or it is refused, with the reason, and nothing is counted. `substitute` and `attempt` do all of that. Several
    may be offered (`offer`) before the first is made: those are not offered again, and `attempt_all` makes them
    together. A change that is offered and then made by hand ends with the next offer, or when the transformer returns.

    Args:
        workspace: The model and its editor.
        transformer: The transformer.
        level: The level.
        step: The step of the fixed-point loop, from 1.
        cancellation: Cancellation token.
        observers: Observers of the run.
    """

    def __init__(
        self,
        workspace: ModelInRun,
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
        self._growth = NO_GROWTH  # what they have added
        self._mark = workspace.version  # after the last completed one: a stopped run goes back to it
        self._size = NO_GROWTH  # of the model there, once something is offered
        self._open: dict[tuple[ir.Node, ...], int] = {}  # accepted offers, with their numbers
        self._new: list[ir.Node] = []  # nodes added since
        self._changing: tuple[ir.Node, ...] | None = None  # the nodes of the change that is being made
        self._placed: dict[
            ir.Node, str | None
        ] = {}  # where the nodes of open changes ran: what comes for them is to run there

    @property
    def model(self) -> ir.Model:
        """The whole model."""
        return self._workspace.model

    @property
    def edit(self) -> Editor:
        """The editor: the one way to change the model.

        Raises:
            Misuse: If the transformer bypasses the editor.
        """
        return self._workspace.edit

    @property
    def options(self) -> Options:
        """Options of the run."""
        return self._workspace.options

    @property
    def listens_to_refusals(self) -> bool:
        """Whether an observer records refusals: for reasons that are expensive to compute."""
        return self._observers.listens_to_refusals

    @property
    def patience(self) -> float:
        """Seconds for which the run may still evaluate constants."""
        return self._workspace.state.patience

    def spend(self, seconds: float) -> None:
        """Account for the duration of an evaluation."""
        self._workspace.state.patience -= seconds

    def substitute(
        self,
        replacements: Mapping[ir.Value, ir.Value] | Callable[[], Mapping[ir.Value, ir.Value]],
        *,
        before: ir.Node,
        origin: Sequence[ir.Node] = (),
        why: str = "",
        nodes: Sequence[ir.Node] | None = None,
        candidate: ir.Node | None = None,
        numerics: Numerics | None = None,
    ) -> bool:
        """Replace values by new ones, as one rewrite.

        Args:
            replacements: Old value to new value (see `Editor.replace`); the new nodes are discarded if the rewrite is
                refused. Or what builds them, called once the rewrite is accepted.
            before: The node before which new nodes are inserted.
            origin: The nodes that the new ones replace.
            why: Its purpose, in a few words; the formula if empty.
            nodes: The nodes that are offered: those that will be removed or changed; `before` if None.
            candidate: The node that a refusal is reported for; the first of `nodes` if None.
            numerics: What it may do to numbers, if that is more than the transformer declares.

        Returns:
            Whether it was made; if not, nothing has changed, and the reason has been reported.

        Raises:
            OptimizationCancelled: If the run has been asked to stop.
        """

        def change() -> list[ir.Node]:
            return self.replace(replacements() if callable(replacements) else replacements, before, origin)

        done = False
        try:
            done = self._make((before,) if nodes is None else tuple(nodes), change, why, candidate, numerics)
        finally:
            if not (done or callable(replacements)):
                discard(new_nodes(replacements.values()))
        return done

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
            nodes: The nodes that will be removed or changed.
            change: Edits through ``context.edit``, and `replace`; returns the nodes that were added or changed, or
                None for those that `replace` added. If it raises `Conflict` or `Refusal`, all of it is rolled back.
            why: Its purpose, in a few words; the formula if empty.
            candidate: The node that a refusal is reported for; the first of `nodes` if None.

        Returns:
            Whether it was made; if not, nothing has changed, and the reason has been reported.

        Raises:
            OptimizationCancelled: If the run has been asked to stop.
        """
        return self._make(tuple(nodes), change, why, candidate)

    def attempt_all(
        self, batch: Sequence[Sequence[ir.Node]], change: Callable[[], Iterable[Iterable[ir.Node]]]
    ) -> bool:
        """Make several rewrites together, all of them or none.

        Args:
            batch: The nodes of each rewrite; each has been offered and accepted.
            change: Makes them all, as for `attempt`; returns, for each, the nodes that were added or changed.

        Returns:
            Whether they were made; if not, nothing has changed, and the reason has been reported for each.

        Raises:
            OptimizationCancelled: If the run has been asked to stop.
        """
        offered = [tuple(nodes) for nodes in batch]
        if any(nodes not in self._open for nodes in offered):
            raise ValueError("a rewrite of the batch has not been accepted")
        self.cancellation.check()
        self._set_mark()
        done, added = self._try(offered, change, None)
        for nodes, new in zip(offered, added or (), strict=True) if done else ():
            self._complete(nodes, _still_there(new))
        return done

    def offer(self, nodes: Sequence[ir.Node], why: str = "", *, candidate: ir.Node | None = None) -> bool:
        """Ask whether to make one independent change.

        The answer is no, and the reason is reported, where a node is not placed on one of the transformer's
        ``providers``; where the result is for another than its ``targets``; and, if its numerics are
        not exact, where a result of these nodes is computed from integers, or from float inputs, and decides about a
        discrete step: different rounding would give another integer.

        Args:
            nodes: The nodes that will be removed or changed.
            why: Its purpose, in a few words; the formula if empty.
            candidate: The node that a refusal is reported for; one of `nodes` if None.

        Returns:
            Whether to make it; if not, leave these nodes as they are.

        Raises:
            OptimizationCancelled: If the run has been asked to stop.
        """
        if self._changing is not None:
            raise RuntimeError("a change that has been offered makes no offers of its own")
        edit, state, nodes = self.edit, self._workspace.state, tuple(nodes)
        if self._open:
            self._end_by_hand()  # one that was made by hand before has ended
            self._open.pop(nodes, None)  # offered again, it is the latest
        self._set_mark()
        self.cancellation.check()
        if self._is_for_another_target(nodes, candidate) or self._is_elsewhere(nodes, candidate):
            return False
        if self._must_round_as_before(nodes):
            return False
        if not self._is_worthwhile(nodes, candidate):
            return False
        edit.collect_names(self.cancellation)  # expensive, so not within the change
        key = (self.transformer.name, nodes)
        if key in state.left_out:
            return False  # the answer is final: another offer would renumber those after it
        state.offered += 1
        if not self._observers.offer(self.transformer, nodes, state.offered, why):
            state.left_out.add(key)
            return False
        self._open[nodes] = state.offered
        edit.offered = nodes
        if len(self.options.providers) > 1:  # one provider needs no note
            self._placed.update((node, self.provider_of(node)) for node in nodes if node.graph is not None)
        return True

    # -- the life of a rewrite: called by the framework, by no transformer --------------------------------------------

    def _make(
        self,
        nodes: tuple[ir.Node, ...],
        change: Callable[[], Iterable[ir.Node] | None],
        why: str,
        candidate: ir.Node | None,
        numerics: Numerics | None = None,
    ) -> bool:
        """One rewrite, from the offer to the announcement; whether it was made."""
        if not self._begin(nodes, why, candidate):
            return False
        done, new = self._try([nodes], change, candidate)
        if done:
            self._complete(nodes, _still_there(self._new if new is None else new), numerics)
        return done

    def _try(
        self, batch: Sequence[tuple[ir.Node, ...]], change: Callable[[], T], candidate: ir.Node | None
    ) -> tuple[bool, T | None]:
        """Make a change, or roll it back and report the reason; whether it was made, and what it returned."""
        edit = self.edit
        start, clock = edit.version, edit.clock
        matched = tuple(itertools.chain.from_iterable(batch))
        self._changing = edit.offered = matched
        reason: Exception | None = None
        outcome: T | None = None
        misread = placement.misread(edit.index, self.options, matched)
        rounds = placement.may_round(edit.index, matched)
        try:
            outcome = change()
            placement.check_misread(misread, edit.index, self.options, (*matched, *self._new))
            placement.check_rounding(rounds, edit.index, self._new)
        except (Conflict, Refusal) as error:
            reason = error
            edit.rollback(start)
            edit.clock = clock  # the model is as it was: a refusal is no change
            detach_orphans(matched)
        except BaseException:
            detach_orphans(matched)
            raise
        finally:
            self._changing = None
        if reason is None and edit.version != start:
            return True, outcome
        for nodes in batch:
            self._drop(nodes, candidate or next(iter(nodes), None), reason)
        return False, None

    def _set_mark(self) -> None:
        """All that was completed has been counted: a stopped run goes back to here."""
        self._mark, self._size = self._workspace.version, self._workspace.size

    def _begin(self, nodes: tuple[ir.Node, ...], why: str, candidate: ir.Node | None) -> bool:
        """Whether a change is to be made now; if it has been accepted, it is not offered again."""
        if nodes not in self._open:
            return self.offer(nodes, why, candidate=candidate)
        self.cancellation.check()
        self._set_mark()
        return True

    def _complete(self, nodes: tuple[ir.Node, ...], new: Sequence[ir.Node], numerics: Numerics | None = None) -> None:
        """Count and announce a change that has been made; it stays if the run is stopped later."""
        number = self._open.pop(nodes)
        self._new = []
        self._rewrites += 1
        self._workspace.state.numerics.add((self.transformer.name, numerics or self.transformer.numerics))
        self._growth += self._workspace.size - self._size
        self._set_mark()
        self._observers.rewrote(self.transformer, new, number)

    def _drop(self, nodes: tuple[ir.Node, ...], candidate: ir.Node | None, reason: Exception | None) -> None:
        """Forget an offer that was not made, and report the reason, if there is one."""
        self._open.pop(nodes, None)
        self._new = []
        if candidate is not None and reason is not None:
            self.refuse(candidate, reason)

    def _end_by_hand(self) -> None:
        """Complete the latest open offer, if anything has been edited since the last rewrite."""
        if self._open and self._mark != self.edit.version:
            self._complete(next(reversed(self._open)), _still_there(self._new))
        self._set_mark()

    def _end(self) -> None:
        """The transformer has returned: the open offers whose nodes have been removed were made as well."""
        self._end_by_hand()
        for nodes in tuple(self._open):
            if nodes and all(node.graph is None for node in nodes):
                self._complete(nodes, ())
        self._open.clear()
        self._placed.clear()

    def _is_for_another_target(self, nodes: Sequence[ir.Node], candidate: ir.Node | None) -> bool:
        """Whether the result is for a target that the transformer does not serve; reports it."""
        wanted = self.transformer.targets
        if not wanted or self.options.target in wanted:
            return False
        node = candidate or (nodes[-1] if nodes else None)
        if node is not None:
            listed = f"--target {', '.join(target.value for target in wanted)}"
            served = "ONNX Runtime" if Target.ORT in wanted else listed
            reason = f"it serves {served}, and the result is for --target {self.options.target.value}"
            self.refuse(node, Reason(reason, Code.PLACEMENT))
        return True

    def _is_elsewhere(self, nodes: Sequence[ir.Node], candidate: ir.Node | None) -> bool:
        """Whether a node is not placed on the transformer's providers; reports it."""
        wanted, is_converted = self.transformer.providers, self.options.float16 or self.options.bfloat16
        for node in nodes if wanted else ():
            if is_converted and kernels.CUDA not in wanted:  # whatever runs it here: 16 bits are for a GPU
                self.refuse(candidate or node, Reason("the model is converted to 16 bits, for a GPU", Code.PLACEMENT))
                return True
            if self.provider_of(node) not in wanted:
                why = fusions.placed_on_other_provider(node, wanted, self.transformer.fused_ops, self.options)
                self.refuse(candidate or node, Reason(why, Code.PLACEMENT))
                return True
        return False

    def _is_worthwhile(self, nodes: Sequence[ir.Node], candidate: ir.Node | None) -> bool:
        """Whether what the transformer makes may pay at all; reports it if not."""
        if self.level == TransformerLevel.LEVEL1 or not nodes:
            return True
        try:
            fusions.check_worthwhile(self.transformer.fused_ops, candidate or nodes[-1], self.options)
        except fusions.Unwanted as unwanted:
            self.refuse(candidate or nodes[0], unwanted)
            return False
        return True

    def _must_round_as_before(self, nodes: Sequence[ir.Node]) -> bool:
        """Whether different rounding in some nodes could give another integer; reports it."""
        declared = self.transformer
        if declared.numerics is Numerics.EXACT or declared.keeps_elementwise:
            return False
        discrete = self._workspace.exactness.step_behind(nodes)
        if discrete is None:
            return False
        value, step = discrete
        producer = value.producer()
        assert producer is not None
        self.refuse(producer, Reason(f"{EXACT_PATH}: {step}", Code.NUMERICS, value.name or ""))
        return True

    def refuse(self, node: ir.Node, reason: str | Exception) -> None:
        """Report why a candidate is refused; costs nothing where no observer listens.

        Args:
            node: The candidate.
            reason: A clause for the user; a `TooLarge` and an `Unwanted` are always counted.
        """
        if isinstance(reason, TooLarge):
            self._workspace.state.too_large[self.transformer.name, node] = reason.nbytes
        elif isinstance(reason, fusions.Unwanted):
            self._workspace.state.declined[self.transformer.name, node] = reason.cost
        if self._observers.listens_to_refusals:
            decision = getattr(reason, "decision", None)
            if decision is not None:
                self._observers.weighed(self.transformer, node, decision)
            shown = reason
            if isinstance(reason, Refusal) and not isinstance(reason, fusions.Declined):
                shown = with_claims(reason, node)
            self._observers.refused(self.transformer, node, reason_of(shown))

    def answered(self, nodes: Iterable[ir.Node], question: Callable[[ir.Node], T]) -> Iterator[tuple[ir.Node, T]]:
        """The nodes of which a question has an answer, each with it; the others are refused with its reason.

        Args:
            nodes: The nodes, each asked about when it is reached.
            question: What is asked; it raises `Refusal` where it has no answer.
        """
        for node in self.cancellation.checked(nodes):
            try:
                answer = question(node)
            except Refusal as refusal:
                self.refuse(node, refusal)
            else:
                yield node, answer

    def replace(
        self,
        replacements: Mapping[ir.Value, ir.Value],
        before: ir.Node,
        origin: Sequence[ir.Node] = (),
    ) -> list[ir.Node]:
        """Replace values by new ones (see `Editor.replace`), if the providers can run the new nodes.

        This is an edit: it belongs to the rewrite that has been offered (see `substitute` and `attempt`).

        Args:
            replacements: Old value to new value.
            before: The node before which new nodes are inserted.
            origin: The nodes that the new ones replace.

        Returns:
            The new nodes.

        Raises:
            Conflict: If it is not possible; nothing is changed then.
        """
        placement.check_constants(replacements, self.options)
        nodes = self.edit.replace(replacements, before, origin, self._accept_declared)
        self._new += nodes
        return nodes

    def _accept_declared(self, new: Sequence[ir.Node], origin: Sequence[ir.Node]) -> None:
        """Refuse new nodes, as `_accept` does, and copies of what the model has, too, unless they are declared."""
        self._check_new(new, origin, lambda _: False)

    def _accept(self, new: Sequence[ir.Node], origin: Sequence[ir.Node]) -> None:
        """Refuse new nodes, whichever edit brings them in, that are not defined or cannot run.

        Raises:
            Conflict: If the level, the target, the opset or the providers do not have them, or the run does not want
                them.
            ValueError: If the transformer does not declare them.
        """
        came = Counter(op_key(node.domain, node.op_type) for top in new for node in scope.with_nested(top))
        index = self.edit.index

        def is_copy(node: ir.Node) -> bool:
            key = op_key(node.domain, node.op_type)
            return index.total(key) > came[key]

        self._check_new(new, origin, is_copy)

    def _check_new(self, new: Sequence[ir.Node], origin: Sequence[ir.Node], is_copy: Callable[[ir.Node], bool]) -> None:
        """Refuse new nodes that are not defined or cannot run; import the domains of the others."""
        matched = origin or self._changing or next(reversed(self._open), ())
        # inner ones first: what is wrong with them is why the types around them are not known
        nodes = [one for node in new for one in reversed(tuple(scope.with_nested(node)))]
        for node in nodes:
            self._accept_one(node, matched, origin, is_copy)
        self._check_wanted(nodes, matched)

    def _accept_one(
        self,
        node: ir.Node,
        matched: Sequence[ir.Node],
        origin: Sequence[ir.Node],
        is_copy: Callable[[ir.Node], bool],
    ) -> None:
        """Refuse a new node that is not defined or cannot run (see `_accept`); else import its domain."""
        op, declared = (node.domain, node.op_type), self.transformer.produces
        if node.op_identifier() not in self.model.functions:  # of a call, its body's nodes are asked about
            stays = any(node.op_identifier() == old.op_identifier() for old in origin)  # an op of the model may
            copied = op not in declared and placement.may_be_copied(node) and is_copy(node)
            if not (stays or copied):
                placement.check_defined(node, self.model, declared, self.level, self.options)
            placement.check_form(node)
            placement.check_release(node, matched, self.options)
            placement.check_target(node, matched, self.options)
            if not (copied and placement.is_unknown(node)):
                placement.check_runnable(node, matched, self.options.providers, self._placed)
        self._import_domain(node)

    def _check_wanted(self, new: Sequence[ir.Node], matched: Sequence[ir.Node]) -> None:
        """Refuse fused forms that the run does not take: what comes at level 1 is canonical, whatever it costs."""
        fuses = self.transformer.fused_ops
        if self.level == TransformerLevel.LEVEL1 or not fuses:
            return
        replaced = {costs.form_of(node) for node in matched if node.graph is not None}
        for node in new:
            if (node.domain, node.op_type) in fuses and costs.form_of(node) not in replaced:
                fusions.check_convertible(node, self.options)
                smaller = len(new) < len(matched)
                decision = fusions.check_wanted(node, self.options, smaller=smaller)
                if decision is not None and self._observers.listens_to_refusals:
                    self._observers.weighed(self.transformer, matched[-1] if matched else node, decision)

    def _import_domain(self, node: ir.Node) -> None:
        imports = scope.of(scope.graph_of(node)).opset_imports
        if node.domain not in imports:
            self.edit.set_opset(imports, node.domain, placement.CONTRIB_VERSION)

    def provider_of(self, node: ir.Node) -> str | None:
        """The first of the chosen providers that can run a node, or None.

        Args:
            node: A node of a graph.
        """
        return placement.provider_of(node, self.options.providers)


def _still_there(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    return [node for node in nodes if node.graph is not None]
