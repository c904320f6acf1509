"""The contract of a transformer, and the context in which one works."""

from __future__ import annotations

import abc
import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import onnx_ir as ir

from ortopt.analysis import kernels, releases, shapes
from ortopt.analysis.exactness import Exactness
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import OptimizationCancelled, RegistrationError, UsageError
from ortopt.graph import scope
from ortopt.graph.edit import Conflict, Editor, TooLarge
from ortopt.graph.match import Refusal, with_claims
from ortopt.options import Numerics, Options, Target, TransformerLevel
from ortopt.semantics import GROUP_DOMAIN, STANDARD_DOMAINS

if TYPE_CHECKING:
    from ortopt.observers import Observers

PASSES_PACKAGE = "ortopt.transformers"
EXACT_PATH = "it is computed from integers, and its rounding decides about a discrete step"
CONTRIB_VERSION = 1  # of every domain of ONNX Runtime's own that a model may not import yet


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """For transformers that have nothing to choose."""


def name_key(name: str) -> str:
    """What is alike in ``MatMulAddFusion`` and ``matmul_add_fusion``: names are looked up by it."""
    return name.replace("_", "").lower()


def snake_case(name: str) -> str:
    """A class name as a transformer's name; ``MatMul`` is one word."""
    words = re.sub(r"MatMul(?=[A-Z]|$)", "Matmul", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", words).lower()


class GraphTransformer(abc.ABC):
    """Changes one graph in place, and says whether it did.

    The framework visits the main graph, every nested subgraph and every local function; a transformer edits only
    through ``context.edit`` (or `Context.replace`), so that whatever it did can be taken back.

    Attributes:
        name: The name that users know: the file's stem for passes of ortopt, else the class name in snake case.
        levels: When it runs.
        apply_once: Whether it is skipped after the first step of its level.
        alike_at_all_levels: Whether it does the same at each of its levels: it then does not look at another level at
            what it has just left as it is.
        after: Names of transformers that run earlier in the same level.
        providers: Execution providers on which a node must be placed; empty is any.
        produces: The (domain, op type) pairs outside ai.onnx that it may introduce.
        numerics: What it may do to numbers; approximate ones are off unless asked for. All but exact ones are kept
            away from values whose rounding decides about integers (see `Context.rewrite`).
        keeps_elementwise: Whether it leaves elementwise arithmetic as it is, whatever its numerics: what it may round
            otherwise are sums and matrix products alone.
        enabled: Whether it runs without being asked for.
        edits: ``"log"``: through the editor. ``"raw"``: on onnx-ir directly; it then works on a clone of the whole
            model, once per step, and the clone is swapped in on success.
        offers_rewrites: Whether it asks `Context.rewrite` before each change; if not, a run of it is one rewrite.
        Options: A frozen dataclass: what can be chosen, with defaults.
    """

    name: ClassVar[str] = ""
    levels: ClassVar[tuple[TransformerLevel, ...]] = (TransformerLevel.LEVEL1,)
    apply_once: ClassVar[bool] = False
    alike_at_all_levels: ClassVar[bool] = False
    after: ClassVar[tuple[str, ...]] = ()
    providers: ClassVar[tuple[str, ...]] = ()
    produces: ClassVar[tuple[tuple[str, str], ...]] = ()
    numerics: ClassVar[Numerics] = Numerics.EXACT
    keeps_elementwise: ClassVar[bool] = False
    enabled: ClassVar[bool] = True
    edits: ClassVar[Literal["log", "raw"]] = "log"
    offers_rewrites: ClassVar[bool] = False
    Options: ClassVar[type] = NoOptions

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            package, _, stem = cls.__module__.rpartition(".")
            cls.name = stem if package == PASSES_PACKAGE else snake_case(cls.__name__)

    def __init__(self, **settings: object) -> None:
        try:
            self.options: Any = self.Options(**settings)
        except TypeError as error:
            known = ", ".join(field.name for field in dataclasses.fields(self.Options)) or "none"
            raise UsageError(f"{self.name} does not take {', '.join(settings)}; its options: {known}") from error

    @property
    def formula(self) -> str:
        """What becomes what: the first line of the class's docstring."""
        return (type(self).__doc__ or "").strip().partition("\n")[0].rstrip(".")

    @abc.abstractmethod
    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Change a graph in place.

        Args:
            graph: The graph; those nested in it get calls of their own.
            context: What is known, and the way to edit.

        Returns:
            Whether anything changed.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self.options).items())})"


def is_tuple_of(declared: object, kind: type) -> bool:
    """Whether something is a tuple with elements of one type only; a forgotten comma makes something else."""
    return isinstance(declared, tuple) and all(isinstance(one, kind) for one in declared)


def check_instance(transformer: object) -> None:
    """Refuse what is no instance of a transformer.

    Raises:
        RegistrationError: If it is none; the message says what to pass.
    """
    if isinstance(transformer, GraphTransformer):
        return
    if isinstance(transformer, type) and issubclass(transformer, GraphTransformer):
        raise RegistrationError(f"pass an instance, {transformer.__name__}(), not the class {transformer.__name__}")
    raise RegistrationError(
        f"pass an instance of GraphTransformer or RewriteRule, not {type(transformer).__name__} (ortopt.adapters"
        " makes transformers of onnx-ir's passes and onnxscript's rules)"
    )


def check_contract(transformer: GraphTransformer) -> None:
    """Refuse a transformer whose declarations make no sense.

    Raises:
        RegistrationError: If one makes none; the message names class and declaration.
    """
    kind = type(transformer)
    where = f"{kind.__module__}.{kind.__qualname__}"
    if not kind.levels or not is_tuple_of(kind.levels, TransformerLevel):
        raise RegistrationError(f"{where}: levels must be a tuple of TransformerLevel")
    for declaration in ("after", "providers"):
        if not is_tuple_of(getattr(kind, declaration), str):
            raise RegistrationError(f"{where}: {declaration} must be a tuple of names")
    if not is_tuple_of(kind.produces, tuple) or not all(len(op) == 2 and is_tuple_of(op, str) for op in kind.produces):
        raise RegistrationError(f"{where}: produces must be a tuple of (domain, op type)")
    if not isinstance(kind.numerics, Numerics):
        raise RegistrationError(f"{where}: numerics must be a Numerics")
    if (
        kind.numerics is Numerics.REORDERED
        and kind.edits == "log"
        and not (kind.offers_rewrites or kind.keeps_elementwise)
    ):
        raise RegistrationError(
            f"{where}: what may round otherwise must offer its rewrites (offers_rewrites): some must round as they did"
        )
    if kind.edits not in ("log", "raw"):
        raise RegistrationError(f"{where}: edits must be 'log' or 'raw'")
    if not (kind.__doc__ or "").strip():
        raise RegistrationError(f"{where}: the first docstring line is the formula; there is none")
    package, _, stem = kind.__module__.rpartition(".")
    if package == PASSES_PACKAGE and name_key(kind.__name__) != name_key(stem):
        raise RegistrationError(f"{where}: the class must be named as the file, {stem}")


_PATIENCE = 30.0


class Workspace:
    """A model with all that is kept about it while transformers work on it.

    Args:
        model: The model; changed in place.
        options: What the run wants.
        allowance: Bytes by which its constants may grow.
        token: Who may stop it from being made.

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
        """Say that a run was stopped: what was changed since this version of the editor is `settle`'s to take back."""
        self._unsettled = version

    def settle(self) -> ir.Model:
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

    def learn(self, token: CancellationToken) -> None:
        """Infer again what has become better known through edits.

        Raises:
            OptimizationCancelled: If the token was set; what is known stays true.
        """
        self.edit.learn(shapes.infer_again, token)

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


class Context:
    """What a transformer may know and do while it works on a graph.

    Args:
        workspace: The model and its editor.
        transformer: Who works.
        level: At which level.
        step: In which step of the fixed-point loop, from 1.
        cancellation: Who may stop it.
        observers: Who watches.

    Attributes:
        edit: The editor.
        rewrites: How many offers have been accepted.
        mark: The editor's version after the last completed rewrite: a stopped run goes back to it.
    """

    def __init__(
        self,
        workspace: Workspace,
        transformer: GraphTransformer,
        level: TransformerLevel,
        step: int,
        cancellation: CancellationToken,
        observers: Observers,
    ) -> None:
        self.workspace = workspace
        self.transformer = transformer
        self.level = level
        self.step = step
        self.cancellation = cancellation
        self.observers = observers
        self.rewrites = 0
        self.mark = workspace.edit.version

    @property
    def model(self) -> ir.Model:
        """The whole model."""
        return self.workspace.model

    @property
    def edit(self) -> Editor:
        """The editor: the one way to change the model."""
        return self.workspace.edit

    @property
    def options(self) -> Options:
        """What the run wants."""
        return self.workspace.options

    def rewrite(self, nodes: Sequence[ir.Node], why: str = "") -> bool:
        """Offer one independent change before it is made.

        A transformer whose numerics are not exact is told no, with the reason, where a result of these nodes is
        computed from integers and decides about a discrete step: another rounding would be another integer.

        Args:
            nodes: The nodes that will go or change.
            why: What for, in a few words; the formula if empty.

        Returns:
            Whether to make it; if not, leave these nodes as they are.

        Raises:
            OptimizationCancelled: If the run has been asked to stop.
        """
        self.mark = self.edit.version
        self.cancellation.check()
        if self._must_round_as_before(nodes):
            return False
        self.edit.learn_names(self.cancellation)  # what takes long is done before the change begins
        candidate = (self.transformer.name, tuple(nodes))
        if candidate in self.workspace.left_out:
            return False  # said once, said for good: an offer made again would renumber those after it
        self.workspace.offered += 1
        if not self.observers.offer(self.transformer, nodes, self.workspace.offered, why):
            self.workspace.left_out.add(candidate)
            return False
        self.rewrites += 1
        return True

    def _must_round_as_before(self, nodes: Sequence[ir.Node]) -> bool:
        """Whether other rounding in some nodes could show as another integer; says so."""
        kind = type(self.transformer)
        if kind.numerics is Numerics.EXACT or kind.keeps_elementwise:
            return False
        found = self.workspace.exactness.step_behind(nodes)
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
            self.workspace.too_large[self.transformer.name, node] = reason.nbytes
        if self.observers.listens_to_refusals:
            told = with_claims(reason, node) if isinstance(reason, Refusal) else reason
            self.observers.refused(self.transformer, node, str(told))

    def replace(
        self,
        replacements: Mapping[ir.Value, ir.Value],
        before: ir.Node,
        origin: Sequence[ir.Node] = (),
    ) -> list[ir.Node]:
        """Let new values stand for old ones (see `Editor.replace`), if the providers can run the new nodes.

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

        def accept(nodes: Sequence[ir.Node]) -> None:
            for node in nodes:
                if node.op_identifier() not in there:  # an op that has been there may stay, wherever it comes from
                    self._check_defined(node)
                self._check_runnable(node, origin)

        nodes = self.edit.replace(replacements, before, origin, accept)
        for node in nodes:
            self._import_domain(node)
        if nodes:
            self.observers.rewrote(self.transformer, nodes, self.workspace.offered)
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

    def _check_runnable(self, node: ir.Node, origin: Sequence[ir.Node]) -> None:
        """Refuse a new node that no chosen provider can run, where what it replaces could be run."""
        if types_unknown(node):
            return
        version = scope.of(scope.graph_of(node)).opset_imports.get(node.domain, CONTRIB_VERSION)
        answers = (kernels.support(provider, node, version) for provider in self.options.providers)
        how = next((answer for answer in answers if answer is not None), None)
        expanded = how is kernels.Support.EXPANDED and node.domain not in STANDARD_DOMAINS
        if how is not None and not expanded:
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
        raise Conflict(f"no provider has a kernel of {node.op_type} for {types}")

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


def types_unknown(node: ir.Node) -> bool:
    """Whether an element type that decides about a kernel is not known."""
    return any(value is not None and value.type is None for value in node.inputs)
