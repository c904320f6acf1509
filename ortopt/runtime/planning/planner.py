"""From a model to a plan: groups as they are, nodes between them gathered into as few sessions as can be.

A node that no group took runs in a session of ONNX Runtime if that may have a kernel for it (its neighbours share the
session), as a plan of plans if groups or host nodes are in its subgraphs, and in onnx's reference implementation
otherwise, or if the caller gave an op for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt.analysis.providers import CUDA
from ortopt.graph import scope
from ortopt.options import Options
from ortopt.runtime.execution.group_runner import HOST, GroupContext
from ortopt.runtime.planning.execution_plan import ExecutionPlan
from ortopt.runtime.planning.graph_planner import GraphPlanner
from ortopt.runtime.planning.node_kinds import ModelPlanning
from ortopt.system import processor


def plan_model(model: ir.Model, context: GroupContext) -> ExecutionPlan:
    """The plan of a model.

    Args:
        model: The model, of which no more than shapes may become known; loaded by `ortopt.serialization.load`.
        context: What its groups share.

    Raises:
        InvalidModelError: A call does not fit its group.
        UsageError: Something cannot be run here at all.
    """
    scope.attach(model, Options())
    planning = ModelPlanning(model, context)
    plan = GraphPlanner(planning, model.graph).plan()
    if surplus := _beyond_cuda(context):
        context.off_cuda = surplus
        context.groups.clear()
        planning = ModelPlanning(model, context)
        plan = GraphPlanner(planning, model.graph).plan()
    sessions = [group for group in planning.groups if group.wanted_provider != HOST]
    if len(sessions) > 1:
        allowed = context.maker.options.intra_op_num_threads
        threads = divide_threads(allowed, [group.spec.work for group in sessions])
        for group, count in zip(sessions, threads, strict=True):
            group.threads = count
    for version, general in planning.versions:
        version.threads = general.threads
    return plan


def _beyond_cuda(context: GroupContext) -> frozenset[int]:
    """The positions of the groups that are too many on CUDA: those with the least work. That is said."""
    limit = context.settings.max_cuda_groups
    wanted = [i for i, group in enumerate(context.groups) if group.wanted_provider == CUDA]
    if len(wanted) <= limit or not context.falls_back:
        return frozenset()
    wanted.sort(key=lambda i: -context.groups[i].spec.work)
    context.tell(
        f"{len(wanted)} groups are for {CUDA}, where each takes a session with handles of cuBLAS and cuDNN, tens of"
        f" megabytes: the {limit} with the most work run there, the other {len(wanted) - limit} on the CPU."
        " Make fewer and larger groups (deny fewer ops, allow more arguments), or let"
        f" ORTOPT_MAX_CUDA_GROUPS be {len(wanted)}"
    )
    return frozenset(wanted[limit:])


def divide_threads(allowed: int, work: Sequence[float]) -> list[int]:
    """The intra-op threads of each group: several sessions share what one session was allowed.

    Each session of ONNX Runtime has a pool of its own, and a pool of n threads adds n - 1 to the caller's. With k
    groups that run one after the other, k pools of n threads would be n times k threads, spinning against each other.
    So the caller's n counts for all: n - 1 pool threads are divided among the groups by the work that they have.

    Args:
        allowed: The caller's setting; 0 is as many as there are processors.
        work: What each group has to do, in any unit.

    Returns:
        A number of at least 1 for each group, the calling thread included; the pools have ``allowed - 1`` together.
    """
    total = allowed or processor.usable()
    shares = [1] * len(work)
    if not work:
        return shares
    for _ in range(total - 1):
        # The group whose work for each of its threads is greatest gets the next one.
        neediest = max(range(len(work)), key=lambda i: (work[i] / shares[i], -i))
        shares[neediest] += 1
    return shares
