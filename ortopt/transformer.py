"""The contract of a transformer."""

from __future__ import annotations

import abc
import dataclasses
import re
from typing import Any, ClassVar, TypeVar

import onnx_ir as ir

from ortopt.context import Context
from ortopt.errors import RegistrationError, UsageError
from ortopt.framework import pass_options
from ortopt.options import Numerics, Target, TransformerLevel

T = TypeVar("T")

PASSES_PACKAGE = "ortopt.transformers"

_RENAMED = {
    "edits": 'bypasses_editor = True for "raw"; "log" is the default',
    "alike_at_all_levels": "level_independent",
    "reach": "lookback",
    "wide": "looks_downstream",
}
"""Declarations that had other names: one that is still declared would otherwise be ignored in silence."""


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """The options of transformers that have none."""


def name_key(name: str) -> str:
    """The key by which names are looked up: the same for ``MatMulAddFusion`` and ``matmul_add_fusion``."""
    return name.replace("_", "").lower()


def snake_case(name: str) -> str:
    """A class name as a transformer's name; ``MatMul`` is one word."""
    words = re.sub(r"MatMul(?=[A-Z]|$)", "Matmul", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", words).lower()


class GraphTransformer(abc.ABC):
    """Changes one graph in place, and says whether it did.

    The framework visits the main graph, every nested subgraph and every local function; a transformer edits only
    through `Context.substitute` and `Context.attempt`, or ``context.edit`` and `Context.replace`, so that whatever it
    did can be rolled back.

    Attributes:
        name: The name that users know: the file's stem for passes of ortopt, else the class name in snake case.
        levels: The levels at which it runs.
        apply_once: Whether it is skipped after the first step of its level.
        level_independent: Whether it does the same at each of its levels: it then does not run at another level on
            what it has just left unchanged.
        after: Names of transformers that run earlier in the same level.
        needs: Ops (``Softmax``, ``com.microsoft::Gelu``) one of which the model has wherever there is anything to do;
            none are named where there are too many. Without any of them it is neither run nor imported, but for a rule
            of which somebody wants to know why it refuses.
        providers: Execution providers on which the nodes that it offers must be placed; empty is any.
        targets: Targets that it serves, such as ONNX Runtime where it writes what only that runtime likes better; empty
            is any.
        produces: The (domain, op type) pairs outside ai.onnx that it may introduce.
        fuses: The (domain, op type) pairs, of any domain, that it may introduce from level 2 on and that stand for
            several nodes: ``--fusions`` decides about them. None is what it `produces`.
        weighs: The (domain, op type, variant) triples of forms about which its match asks the table of costs.
        numerics: What it may do to numbers; approximate ones are off unless asked for. All but exact ones are kept
            away from values whose rounding decides about integers (see `Context.offer`).
        error_bound: In words, by how much its results may differ from the exact ones, beside rounding; for `numerics`
            BOUNDED, which must declare it.
        keeps_elementwise: Whether it leaves elementwise arithmetic as it is, whatever its numerics: what it may round
            differently are only sums and matrix products.
        enabled: Whether it runs without being asked for.
        bypasses_editor: Whether it edits onnx-ir directly: it then works on a clone of the whole model, once per step,
            and the clone is swapped in on success.
        offers_rewrites: Whether it offers each change (see `Context`); if not, a run of it is one rewrite.
        Options: A frozen dataclass: its options, with defaults.
    """

    name: ClassVar[str] = ""
    levels: ClassVar[tuple[TransformerLevel, ...]] = (TransformerLevel.LEVEL1,)
    apply_once: ClassVar[bool] = False
    level_independent: ClassVar[bool] = False
    after: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    providers: ClassVar[tuple[str, ...]] = ()
    targets: ClassVar[tuple[Target, ...]] = ()
    produces: ClassVar[tuple[tuple[str, str], ...]] = ()
    fuses: ClassVar[tuple[tuple[str, str], ...] | None] = None
    weighs: ClassVar[tuple[tuple[str, str, str], ...]] = ()
    numerics: ClassVar[Numerics] = Numerics.EXACT
    error_bound: ClassVar[str] = ""
    keeps_elementwise: ClassVar[bool] = False
    enabled: ClassVar[bool] = True
    bypasses_editor: ClassVar[bool] = False
    offers_rewrites: ClassVar[bool] = False
    Options: ClassVar[type] = NoOptions

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            stem = cls.__module__.rpartition(".")[2]
            cls.name = stem if name_key(stem) == name_key(cls.__name__) else snake_case(cls.__name__)

    def __init__(self, **settings: object) -> None:
        values = pass_options.checked(self.name, self.Options, settings)
        try:
            self.options: Any = self.Options(**values)
        except (TypeError, ValueError) as error:  # one that must be set is not, or the dataclass refuses a value
            raise UsageError(f"{self.name}: {error}") from error

    @property
    def fused_ops(self) -> tuple[tuple[str, str], ...]:
        """The ops that it may introduce and that stand for several nodes, as it declares them."""
        return self.produces if self.fuses is None else self.fuses

    @property
    def formula(self) -> str:
        """What becomes what: the first line of the class's docstring."""
        return (type(self).__doc__ or "").strip().partition("\n")[0].rstrip(".")

    def begin(self) -> None:  # noqa: B027 -- most passes keep nothing
        """A run begins: a pass that keeps anything between nodes, graphs or calls of `apply` begins anew.

        `ortopt.optimize` may read and rewrite a model several times: again after a repair, and to find the rewrite that
        makes a result differ. Each time, this is called first. It is the same instance, and has to do the same to the
        same graph. In a `GraphTransformerManager`, each call of `apply_transformers` is a run.
        """

    @abc.abstractmethod
    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Change a graph in place.

        Args:
            graph: The graph; those nested in it get calls of their own.
            context: The context, with the editor.

        Returns:
            Whether anything changed.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self.options).items())})"


def is_tuple_of(declared: object, kind: type) -> bool:
    """Whether something is a tuple with elements of one type only; a forgotten comma makes something else."""
    return isinstance(declared, tuple) and all(isinstance(item, kind) for item in declared)


def _are_ops(declared: object) -> bool:
    """Whether something is a tuple of (domain, op type)."""
    return (
        isinstance(declared, tuple)
        and is_tuple_of(declared, tuple)
        and all(len(op) == 2 and is_tuple_of(op, str) for op in declared)
    )


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


def check_options(transformer: GraphTransformer) -> None:
    """Refuse options that a constructor of a class has set past that of `GraphTransformer`, which checks them.

    Raises:
        RegistrationError: If they are not of the dataclass that the class declares.
        UsageError: If a value that is not the default is of another type than declared, or too small.
    """
    kind, options = type(transformer), vars(transformer).get("options")
    if kind.Options is NoOptions or kind.__init__ is GraphTransformer.__init__:
        return
    if not isinstance(options, kind.Options):
        raise RegistrationError(
            f"{kind.__module__}.{kind.__qualname__}: options must be a {kind.Options.__name__}, as"
            " super().__init__(**settings) makes it"
        )
    pass_options.checked(transformer.name, type(options), pass_options.chosen(options))


def check_contract(transformer: GraphTransformer) -> None:
    """Refuse a transformer whose declarations make no sense.

    Raises:
        RegistrationError: If one makes none; the message names class and declaration.
    """
    kind = type(transformer)
    where = f"{kind.__module__}.{kind.__qualname__}"
    if not kind.levels or not is_tuple_of(kind.levels, TransformerLevel):
        raise RegistrationError(f"{where}: levels must be a tuple of TransformerLevel")
    for declaration in ("after", "needs", "providers"):
        if not is_tuple_of(getattr(kind, declaration), str):
            raise RegistrationError(f"{where}: {declaration} must be a tuple of names")
    if not is_tuple_of(kind.targets, Target):
        raise RegistrationError(f"{where}: targets must be a tuple of Target")
    if not _are_ops(kind.produces):
        raise RegistrationError(f"{where}: produces must be a tuple of (domain, op type)")
    if kind.fuses is not None and not _are_ops(kind.fuses):
        raise RegistrationError(f"{where}: fuses must be a tuple of (domain, op type), or None")
    if not dataclasses.is_dataclass(kind.Options):
        raise RegistrationError(f"{where}: Options must be a dataclass")
    if not isinstance(kind.numerics, Numerics):
        raise RegistrationError(f"{where}: numerics must be a Numerics")
    if bool(kind.error_bound) is not (kind.numerics is Numerics.BOUNDED):
        raise RegistrationError(f"{where}: numerics BOUNDED and an error_bound, in words, go together")
    if kind.numerics is Numerics.FINITE and kind.enabled and min(kind.levels) < TransformerLevel.LEVEL3:
        raise RegistrationError(f"{where}: what is right for finite numbers only runs from level 3 on, or is off")
    if (
        kind.numerics not in (Numerics.EXACT, Numerics.APPROXIMATE)
        and not kind.bypasses_editor
        and not (kind.offers_rewrites or kind.keeps_elementwise)
    ):
        raise RegistrationError(
            f"{where}: what may round otherwise must offer its rewrites (offers_rewrites): some must round as they did"
        )
    if kind.bypasses_editor and kind.providers:
        raise RegistrationError(
            f"{where}: what bypasses the editor offers no single nodes, so it cannot be for some providers only"
        )
    if (kind.providers or kind.targets) and not (kind.offers_rewrites or kind.bypasses_editor):
        raise RegistrationError(
            f"{where}: what is for some providers or targets only must offer its rewrites (offers_rewrites): so it"
            " is kept away from where it does not belong"
        )
    for renamed, remedy in _RENAMED.items():
        if hasattr(kind, renamed):
            raise RegistrationError(f"{where}: {renamed} is called otherwise now: write {remedy}")
    if not (kind.__doc__ or "").strip():
        raise RegistrationError(f"{where}: the first docstring line is the formula; there is none")
    if kind.__module__.startswith(f"{PASSES_PACKAGE}.") and name_key(kind.__name__) != name_key(kind.name):
        raise RegistrationError(f"{where}: the class must be named like the pass, {kind.name}")


__all__ = [
    "PASSES_PACKAGE",
    "Context",
    "GraphTransformer",
    "NoOptions",
    "check_contract",
    "check_instance",
    "check_options",
    "is_tuple_of",
    "name_key",
    "snake_case",
]
