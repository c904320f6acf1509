"""What a run returns: the model, and what was done to it."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO, Literal

import onnx_ir as ir
from msgspec import Struct, field

from ortopt import semantics
from ortopt.analysis import blocks, releases
from ortopt.analysis.blocks import Block, BlockCount
from ortopt.analysis.costs import Cost
from ortopt.analysis.loaded_weights import loaded_bytes
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import TransformerError
from ortopt.framework.workspace import NO_GROWTH, Growth
from ortopt.graph import scope
from ortopt.interface.ports import PortChange
from ortopt.observers import HistoryEntry
from ortopt.onnx_ir_internals import initializers_of
from ortopt.optimization.replay import NumberedRewrite
from ortopt.options import Numerics

if TYPE_CHECKING:
    import onnx

    from ortopt.instrumentation.lineage import Lineage
    from ortopt.optimization.half_precision_conversion import HalfPrecision
    from ortopt.optimization.missing_providers import NotShown
    from ortopt.serialization.save import Saved
    from ortopt.verification.verify import Verification


class ModelFigures(Struct, frozen=True):
    """The size of a model.

    Attributes:
        ops: Node count by op, as ``Add`` or ``com.microsoft::Gelu``; subgraphs and functions included.
        initializers: Number of initializers.
        nbytes: Bytes of all constants, Constant nodes included.
        loaded: Bytes of constants that nodes read when the model runs: as `nbytes`, but for those of which others are
            computed, which count instead.
        functions: Number of local functions.
        blocks: Number of blocks that one op can stand for, by family (see `ortopt.analysis.blocks`).
    """

    ops: Mapping[str, int]
    initializers: int
    nbytes: int
    loaded: int
    functions: int
    blocks: Mapping[str, BlockCount] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return sum(self.ops.values())


class PassTotal(Struct, frozen=True):
    """What one transformer did in a whole run.

    Attributes:
        transformer: Its name.
        rewrites: Number of rewrites that it made.
        seconds: Its duration in all.
        visits: Number of nodes that a rule was offered.
        numerics: What it may do to numbers.
        error_bound: Its proven bound, in words, if its numerics are BOUNDED.
        growth: What its rewrites have added to the model.
    """

    transformer: str
    rewrites: int
    seconds: float
    visits: int
    numerics: Numerics = Numerics.EXACT
    error_bound: str = ""
    growth: Growth = NO_GROWTH


class SizeRefusal(Struct, frozen=True):
    """What one transformer left as it is because the file would have grown by more than is allowed.

    Attributes:
        transformer: Its name.
        count: Number of candidates.
        nbytes: Bytes that they would have added in all.
    """

    transformer: str
    count: int
    nbytes: int


class CostRefusal(Struct, frozen=True):
    """What one transformer left as it is because a fused form is not worth it on the provider.

    Attributes:
        transformer: Its name.
        cost: What the form costs.
        count: Number of candidates.
    """

    transformer: str
    cost: Cost
    count: int


class Summary(Struct, frozen=True):
    """What a run did.

    Attributes:
        before: The size of the original.
        after: The size of the result.
        passes: Totals by transformer, the most rewrites first; those that did nothing left out.
        seconds: Seconds by phase: ``load``, ``optimize``, ``verify``.
        bound_reached: The levels that ended at a limit of steps or rewrites.
        failures: Transformers that raised and were left out, with the reasons.
        rewrites: Number of rewrites that were offered.
        too_large: What was left as it is because the file would have grown too much.
        requires: The runtimes that can load the result.
        declined: What was left as it is because a fused form is not worth it.
        required: The runtimes that can load the original.
    """

    before: ModelFigures
    after: ModelFigures
    passes: tuple[PassTotal, ...]
    seconds: Mapping[str, float]
    bound_reached: tuple[int, ...]
    failures: tuple[TransformerError, ...]
    rewrites: int
    too_large: tuple[SizeRefusal, ...] = ()
    requires: releases.Requirement = releases.UNKNOWN
    declined: tuple[CostRefusal, ...] = ()
    required: releases.Requirement = releases.UNKNOWN


class Repair(Struct, frozen=True):
    """A rewrite that made the result differ from the original, and what was left out for it.

    Attributes:
        rewrite: Its number, its transformer, where it was, its nodes.
        left_out: ``"pass"``, or ``"rewrite"`` where the transformer was kept.
        reason: How the outputs differ, in words.
        output: The output that differs most.
        error: Its error after the rewrite, relative to its scale; infinite where it is not comparable.
        error_before: The worst error before it.
        probes: Number of models that were compared to find it.
        seconds: Duration of the search.
    """

    rewrite: NumberedRewrite
    left_out: Literal["pass", "rewrite"]
    reason: str
    output: str
    error: float
    error_before: float
    probes: int
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class OptimizeResult:
    """What `optimize` returns.

    Attributes:
        model: The optimized model.
        history: Every run of every transformer.
        summary: What changed.
        verification: How the result compares with the original; None if it was not asked for.
        stopped: Whether the deadline ended the run.
        repairs: What was left out because the result differed from the original, in order.
        provenance: Whether `save` writes into each new node which pass made it, from which nodes.
        lineage: The `Lineage` among the observers of the run, if there was one: what a page shows beside the result.
        half_precision: What became of a conversion to 16 bits; None if none was asked for.
        verified_on: The providers that the verification ran on; empty without one.
        not_shown: What of the model could not be run here, because a provider is not here; None where all of it was.
        interface: The inputs and outputs that are others than those of the original, as was asked for.
    """

    model: ir.Model
    history: tuple[HistoryEntry, ...]
    summary: Summary
    verification: Verification | None = None
    stopped: bool = False
    repairs: tuple[Repair, ...] = ()
    provenance: bool = False
    lineage: Lineage | None = dataclasses.field(default=None, repr=False, compare=False)
    half_precision: HalfPrecision | None = None
    verified_on: tuple[str, ...] = ()
    not_shown: NotShown | None = None
    interface: tuple[PortChange, ...] = ()

    @property
    def verified(self) -> bool:
        """Whether the result has been run against the original and agrees."""
        return self.verification is not None and self.verification.status == "verified"

    def save(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        external_data: Literal["auto", "inline", "copy", "reuse"] = "auto",
    ) -> Saved:
        """Write the model, atomically.

        Args:
            path: The file, whose ending chooses the format (.onnx, .ort, .json, .textproto), or a binary stream.
            external_data: Where weights go: inside the file, copied beside it, or left in the original's files.

        Returns:
            The files that were written, and their size.

        Raises:
            OutputError: If it cannot be written.
        """
        from ortopt.optimization.formats import save_as

        saved = save_as(self.model, path, external_data=external_data, provenance=self.provenance)
        if saved.not_reused:
            warnings.warn(saved.not_reused, stacklevel=2)
        return saved

    def to_bytes(self) -> bytes:
        """The model as the bytes of a file, weights inside.

        Raises:
            OutputError: If it is larger than protobuf's 2 GB.
        """
        from ortopt.serialization.save import to_bytes

        return to_bytes(self.model, provenance=self.provenance)

    def to_proto(self) -> onnx.ModelProto:
        """The model as protobuf, weights inside.

        Raises:
            OutputError: If it is larger than protobuf's 2 GB.
        """
        import onnx

        proto = onnx.ModelProto()
        proto.ParseFromString(self.to_bytes())
        return proto

    def __repr__(self) -> str:
        """Nodes, size, and whether it is verified."""
        before, after = self.summary.before, self.summary.after
        parts = [f"{before.nodes} → {after.nodes} nodes", f"{before.nbytes} → {after.nbytes} bytes of constants"]
        parts.append("verified" if self.verified else "not verified")
        if self.repairs:
            parts.append(f"{len(self.repairs)} repaired")
        if self.stopped:
            parts.append("stopped")
        return f"<OptimizeResult: {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        """What notebooks show (see `ortopt.notebook_html`)."""
        from ortopt import notebook_html  # by its public name: what shows results stands above this layer

        return notebook_html(self)


def figures(model: ir.Model, token: CancellationToken = NEVER) -> ModelFigures:
    """Count what a model holds. Linear in the nodes.

    Args:
        model: The model.
        token: Cancellation token.
    """
    ops: Counter[str] = Counter()
    found: list[Block] = []
    initializers = nbytes = 0
    for graph in scope.graphs(model, token):
        for value in token.checked(initializers_of(graph).values()):
            initializers += 1
            nbytes += value.const_value.nbytes if value.const_value is not None else 0
        for node in token.checked(graph):
            ops[f"{node.domain}::{node.op_type}" if node.domain else node.op_type] += 1
            found += blocks.blocks_at(node)
            if node.op_type == "Constant" and not node.domain:
                tensor = semantics.constant_tensor(node.outputs[0])
                nbytes += tensor.nbytes if tensor is not None else 0
    counts = blocks.count(found)
    return ModelFigures(
        dict(sorted(ops.items())), initializers, nbytes, loaded_bytes(model, token), len(model.functions), counts
    )
