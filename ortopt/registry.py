"""The installed transformers, and those that a run selects: discovery, names, selection, pipelines as text."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import importlib.metadata
import inspect
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from ortopt.discovery import pass_files, pass_manifest
from ortopt.discovery.deferred_passes import deferred
from ortopt.errors import PlugInWarning, RegistrationError, UnknownTransformerError, UsageError
from ortopt.framework.pass_options import checked, options_of
from ortopt.options import Numerics, Options, TransformerLevel
from ortopt.transformer import PASSES_PACKAGE, GraphTransformer, check_instance, name_key

ENTRY_POINTS = "ortopt.transformers"
Kind = type[GraphTransformer]


class Registration(Struct, frozen=True):
    """A transformer and where it comes from.

    Attributes:
        kind: The class.
        origin: The module, plug-in or call that it comes from.
        instance: The instance that runs, if the caller has made one.
    """

    kind: Kind
    origin: str
    instance: GraphTransformer | None = None

    @property
    def name(self) -> str:
        """The transformer's name."""
        return self.kind.name if self.instance is None else self.instance.name

    def made(self, settings: Mapping[str, object]) -> GraphTransformer:
        """The transformer with some of its options set; the caller's own instance, if it has one and none is set.

        Args:
            settings: Options by name.

        Raises:
            UsageError: If it does not take them.
        """
        own = self.instance
        if own is None or not settings:
            return self.kind(**settings) if own is None else own
        if self.kind.__init__ is not GraphTransformer.__init__:
            raise UsageError(
                f"{self.name} is an instance of yours, and its class has a constructor of its own: set"
                f" {', '.join(settings)} there"
            )
        chosen = checked(self.name, type(own.options), settings)
        changed = copy.copy(own)
        try:
            changed.options = dataclasses.replace(own.options, **chosen)
        except (TypeError, ValueError) as error:  # the dataclass refuses a value
            raise UsageError(f"{self.name}: {error}") from error
        return changed


class Registry:
    """Transformer classes by name.

    Looking up is forgiving in spelling (``MatMulAddFusion`` is ``matmul_add_fusion``), never in substance.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, Registration] = {}

    def add(self, kind: Kind, origin: str) -> None:
        """Register a class.

        Args:
            kind: A concrete transformer.
            origin: Where it comes from, for messages.

        Raises:
            RegistrationError: If its name is taken, or its declarations make no sense.
        """
        pass_files.instance(kind, origin)
        self._add(Registration(kind, origin))

    def add_instance(self, transformer: GraphTransformer, origin: str) -> None:
        """Register an instance of the caller's; its class may need arguments.

        Args:
            transformer: The instance.
            origin: Where it comes from, for messages.

        Raises:
            RegistrationError: If its name is taken, or its declarations make no sense.
        """
        pass_files.check(transformer)
        self._add(Registration(type(transformer), origin, transformer))

    def _add(self, registration: Registration) -> None:
        key, name = name_key(registration.name), registration.name
        if key in self._by_key:
            origins = f"{self._by_key[key].origin} and {registration.origin}"
            raise RegistrationError(f"two transformers are named {name}: {origins}")
        self._by_key[key] = registration

    def copy(self) -> Registry:
        """A registry of the same classes, which have been checked."""
        other = Registry()
        other._by_key.update(self._by_key)
        return other

    def __iter__(self) -> Iterator[Kind]:
        return (registration.kind for registration in self.registrations())

    def registrations(self) -> list[Registration]:
        """All registrations, by name."""
        return sorted(self._by_key.values(), key=lambda registration: registration.name)

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, name: str) -> Kind:
        """The class of a name.

        Args:
            name: In either spelling.

        Raises:
            UnknownTransformerError: If there is none; names the nearest.
        """
        return self.registration(name).kind

    def origin(self, name: str) -> str:
        """Where the class of a name comes from."""
        return self.registration(name).origin

    def registration(self, name: str) -> Registration:
        """What is registered under a name.

        Args:
            name: In either spelling.

        Raises:
            UnknownTransformerError: If there is none; names the nearest.
        """
        registration = self._by_key.get(name_key(name))
        if registration is None:
            names = [known.name for known in self.registrations()]
            raise UnknownTransformerError(name, tuple(difflib.get_close_matches(name.lower(), names, 3, 0.5)))
        return registration


def installed() -> Registry:
    """The transformers of this installation: ortopt's own, then those of plug-ins, each in sorted order.

    Raises:
        RegistrationError: If a pass file does not load; the message names it.

    Warns:
        PlugInWarning: If a plug-in does not load; the message names it, and it is left out.
    """
    return _imported()


@functools.cache
def _imported() -> Registry:
    registry = Registry()
    for module in pass_files.paths():
        for kind in pass_files.load(module):
            registry.add(kind, f"{PASSES_PACKAGE}.{module}")
    for point in _plug_ins():
        _add_plug_in(registry, point)
    return registry


def _plug_ins() -> list[importlib.metadata.EntryPoint]:
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return sorted(points, key=lambda point: (point.name, point.value))


def _add_plug_in(registry: Registry, point: importlib.metadata.EntryPoint) -> None:
    """Add the transformers of a plug-in; what does not load is left out with a warning, and costs nothing else."""
    origin = f"plug-in {point.dist.name if point.dist else '?'} ({point.name} = {point.value})"
    try:
        loaded = point.load()
    except Exception as error:
        _warn_left_out(origin, f"it does not load: {type(error).__name__}: {error}")
        return
    for kind in loaded if isinstance(loaded, tuple | list) else (loaded,):
        if not (inspect.isclass(kind) and issubclass(kind, GraphTransformer)):
            _warn_left_out(origin, f"{kind!r} is no GraphTransformer class")
            continue
        try:
            registry.add(kind, origin)
        except RegistrationError as error:
            _warn_left_out(origin, str(error))


def _warn_left_out(origin: str, reason: str) -> None:
    warnings.warn(f"the {origin} is left out: {reason}", PlugInWarning, stacklevel=2)


class Selected(Struct, frozen=True):
    """A transformer that a run selects, and the levels at which it runs."""

    transformer: GraphTransformer
    levels: tuple[TransformerLevel, ...]


def select(options: Options, extra: Iterable[GraphTransformer] = ()) -> list[Selected]:
    """The transformers that a run selects.

    Args:
        options: Options of the run.
        extra: Instances of the user's; they run without being named, unless ``options.disable`` names them.

    Returns:
        Instances with their levels; in the order of ``options.passes`` if that is given, else by name.

    Raises:
        UnknownTransformerError: If a name is unknown.
        UsageError: If a pipeline cannot be read, a transformer does not take an option, or one that is asked for, by
            name or as an instance, does not run.
        RegistrationError: If an extra transformer is no instance of `GraphTransformer`, or its name is taken.
    """
    own = _instances(extra)
    if (
        not own
        and options.passes is None
        and not (options.disable or options.enable or options.only or options.settings)
    ):
        deferred = _select_unnamed(options)
        if deferred is not None:
            return deferred
    registry = installed().copy()
    for transformer in own:
        registry.add_instance(transformer, "the call")
    disabled = _level_names(options.disable, registry)
    enabled = [registry.registration(name).name for name in options.enable]
    only = [registry.registration(name).name for name in options.only]
    settings = {registry.registration(name).name: values for name, values in options.settings.items()}
    if options.passes is None:
        wanted = _wanted(registry, enabled, only, settings, finite_math=options.finite_math)
    elif settings:
        raise UsageError(f"options of {next(iter(settings))} belong into the pipeline, in braces")
    else:
        wanted = parse_pipeline(options.passes, registry)
    selected = []
    for transformer in wanted:
        off = disabled.get(name_key(transformer.name), frozenset())
        levels = tuple(level for level in type(transformer).levels if level <= options.level and level not in off)
        if levels:
            selected.append(Selected(transformer, levels))
    named = [*only, *enabled, *settings]
    named += [transformer.name for transformer in (*own, *(wanted if options.passes is not None else ()))]
    running = {chosen.transformer.name for chosen in selected}
    for name in named:
        if name not in running and name_key(name) not in disabled:
            raise UsageError(_why_idle(registry.find(name), options))
    return selected


def _select_unnamed(options: Options) -> list[Selected] | None:
    """The transformers of a run that names none; most wait until a node of their ops turns up.

    Returns:
        As `select`; None where all are imported anyway, or there are plug-ins.
    """
    if _imported.cache_info().currsize or _plug_ins():
        return None
    selected = []
    for transformer in _own_transformers():
        levels = tuple(level for level in transformer.levels if level <= options.level)
        if levels and transformer.enabled and transformer.numerics in _by_default(options.finite_math):
            selected.append(Selected(transformer, levels))
    return sorted(selected, key=lambda chosen: chosen.transformer.name)


def _own_transformers() -> Iterator[GraphTransformer]:
    """Ortopt's own transformers; they wait as far as the manifest is current."""
    for module, path in pass_files.paths().items():
        entry = pass_manifest.current(module, path)
        declared = {} if entry is None else entry.passes
        waiting = [deferred(module, name, values) for name, values in declared.items() if values is not None]
        if waiting and len(waiting) == len(declared):
            yield from waiting
        else:
            yield from map(pass_files.instance, pass_files.load(module))


def _by_default(finite_math: bool) -> set[Numerics]:
    """What transformers that nobody asked for may do to numbers."""
    return set(Numerics) - {Numerics.APPROXIMATE} - (set() if finite_math else {Numerics.FINITE})


def _wanted(
    registry: Registry,
    enabled: Sequence[str],
    only: Sequence[str],
    settings: Mapping[str, Mapping[str, object]],
    *,
    finite_math: bool,
) -> list[GraphTransformer]:
    """The transformers that run without a pipeline: those named, or those on by default, enabled or handed over."""
    by_default = _by_default(finite_math)
    wanted = []
    for known in registry.registrations():
        kind, name = known.kind, known.name
        runs = (kind.enabled and kind.numerics in by_default) or name in enabled or known.instance is not None
        if name in only or (runs and not only):
            wanted.append(known.made(settings.get(name, {})))
    return wanted


def _why_idle(kind: Kind, options: Options) -> str:
    """Why a transformer that was asked for does not run, and what would let it run."""
    levels = " and ".join(str(level.value) for level in kind.levels)
    if min(kind.levels) > options.level:
        return f"{kind.name} runs at level {levels}, and this run ends at level {options.level}"
    if options.passes is not None:
        return f"{kind.name} (level {levels}) does not run: the pipeline does not name it"
    return f"{kind.name} (level {levels}) does not run: it is not among the only ones that may"


def _instances(transformers: Iterable[GraphTransformer]) -> list[GraphTransformer]:
    """The caller's transformers as a list.

    Raises:
        RegistrationError: If one is no instance; the message says what to pass.
    """
    if isinstance(transformers, GraphTransformer) or inspect.isclass(transformers):
        raise RegistrationError("transformers takes a list of instances, e.g. [MyRule()]")
    instances = list(transformers)
    for transformer in instances:
        check_instance(transformer)
    return instances


def _level_names(names: Iterable[str], registry: Registry) -> dict[str, frozenset[TransformerLevel]]:
    """``NAME`` and ``NAME@LEVEL`` as name key to levels."""
    levels: dict[str, frozenset[TransformerLevel]] = {}
    for text in names:
        name, at, number = text.partition("@")
        kind = registry.find(name)
        if not at:
            chosen = frozenset(TransformerLevel)
        elif number in {str(level.value) for level in kind.levels}:
            chosen = frozenset({TransformerLevel(int(number))})
        else:
            known = ", ".join(str(level.value) for level in kind.levels)
            raise UsageError(f"{kind.name} has no level {number!r}; its levels: {known}")
        key = name_key(kind.name)
        levels[key] = levels.get(key, frozenset()) | chosen
    return levels


_ITEM = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*(?:\{(?P<settings>[^{}]*)\})?\s*(?:,|$)")


def parse_pipeline(text: str, registry: Registry) -> list[GraphTransformer]:
    """A pipeline spelled out, e.g. ``constant_folding{max_growth=1MB},matmul_add_fusion``.

    Args:
        text: Names with options in braces, separated by commas.
        registry: The registry that resolves the names.

    Returns:
        Instances, in the text's order.

    Raises:
        UnknownTransformerError: If a name is unknown.
        UsageError: If the text cannot be read, or an option is unknown or of another type.
    """
    transformers: list[GraphTransformer] = []
    position = 0
    while position < len(text):
        item = _ITEM.match(text, position)
        if item is None:
            raise UsageError(f"cannot read the pipeline at {text[position : position + 30]!r}")
        known = registry.registration(item["name"])
        transformers.append(known.made(parse_settings(known.kind, item["settings"] or "")))
        position = item.end()
    return transformers


def parse_settings(kind: Kind, text: str) -> Mapping[str, object]:
    """Options spelled as ``name=value,name=value``, typed as the transformer's options are.

    Raises:
        UsageError: If an option is unknown or its value of another type.
    """
    options = options_of(kind.Options)
    values: dict[str, object] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in options or not equals:
            known = ", ".join(options) or "none"
            raise UsageError(f"{kind.name} does not take {part!r}; its options: {known}")
        try:
            values[name] = options[name].parsed(value)
        except UsageError as error:
            raise UsageError(f"{kind.name}: {error}") from error
    return values
