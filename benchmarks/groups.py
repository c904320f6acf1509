"""Every zoo model grouped: `python -m benchmarks.groups` (`make zoo` too) checks each as a file and by its numbers.

For each model, list of providers and policy: the grouped model passes ONNX's checker, ONNX Runtime loads it as it is
and gives the original's numbers, and nothing of a model that ONNX Runtime can load is left to the host. No GPU is
needed: where a node would run is data. Ends with exit status 1 if one of them does not hold.
"""

from __future__ import annotations

import argparse
import sys
import time

import onnx

from benchmarks.tables import markdown, number
from ortopt import zoo
from ortopt.api import optimize
from ortopt.partition.dag import is_constant_node
from ortopt.partition.partitioning import group
from ortopt.partition.settings import POLICIES, PartitionOptions
from ortopt.semantics import GROUP_DOMAIN
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.verification.verify import verify

PROVIDERS = (("cpu",), ("cpu", "cuda"), ("cuda", "cpu"))


def sweep(models: tuple[str, ...], optimized: bool) -> tuple[str, list[str]]:
    """Group every model in every way.

    Args:
        models: Names of zoo models.
        optimized: Whether to optimize at level 3 first.

    Returns:
        A table of how many groups there are, and one line for each failure.
    """
    lines, failed = [], []
    ways = [(providers, policy) for providers in PROVIDERS for policy in POLICIES]
    for name in models:
        print(name, file=sys.stderr, flush=True)
        original = load(zoo.cached(name))
        source = optimize(original, verify=False).model if optimized else original
        valid = not _objection(to_bytes(source))  # it knows none of ONNX Runtime's own ops in ai.onnx
        line = [name, str(sum(not is_constant_node(node) for node in source.graph))]
        for providers, policy in ways:
            model = load(source)
            started = time.perf_counter()
            groups = group(model, PartitionOptions(providers=providers, policy=policy))
            seconds = time.perf_counter() - started
            left = [node for node in model.graph if node.domain != GROUP_DOMAIN and not is_constant_node(node)]
            data = to_bytes(model)
            outcome = verify(original, load(data), inputs=zoo.inputs(name), in_process=True)
            reason = "" if outcome.status == "verified" else f"{outcome.status}: {outcome.reason}"
            if valid:
                reason = reason or _objection(data)
            if left:
                reason = reason or f"{len(left)} nodes are left to the host, the first a {left[0].op_type}"
            line.append(f"{len(groups)} in {number(seconds)} s")
            if reason:
                failed.append(f"{name} {','.join(providers)} {policy}: {reason}")
        lines.append(line)
    heads = [f"{','.join(providers)} {policy}" for providers, policy in ways]
    return markdown(["model", "nodes", *heads], lines), failed


def _objection(data: bytes) -> str:
    """What ONNX's checker has against a model; empty if nothing."""
    try:
        onnx.checker.check_model(onnx.load_from_string(data))
    except onnx.checker.ValidationError as error:
        return f"invalid: {error}"
    return ""


def main() -> None:
    """Read the command line, run, print the table and what failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="", help="names by commas (default all)")
    parser.add_argument("--optimized", action="store_true", help="optimize at -O3 first")
    options = parser.parse_args()
    models = tuple(options.models.split(",")) if options.models else zoo.names()
    table, failed = sweep(models, options.optimized)
    print(table)
    print("\n".join(failed))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
