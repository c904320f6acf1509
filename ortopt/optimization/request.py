"""The options of a run, checked and normalized as `ortopt.optimize` takes them."""

from __future__ import annotations

import dataclasses
from typing import Any

from ortopt.analysis import providers as execution
from ortopt.analysis import releases
from ortopt.errors import UsageError
from ortopt.options import Options, declarations


def make_options(**values: Any) -> Options:
    """Check and normalize options.

    Args:
        **values: Options by name, as `ortopt.optimize` takes them; the defaults of those that are missing.

    Raises:
        UsageError: If a value makes no sense.
    """
    default = {field.name: field.default for field in dataclasses.fields(Options)}
    for name, declared in declarations().items():
        if name in values and not (values[name] is None and default[name] is None):
            values[name] = declared.kind.checked(name, values[name])
    if values.get("min_onnxruntime") is not None:
        values["min_onnxruntime"] = releases.parse_release(values["min_onnxruntime"])
    if values.get("passes") is not None and values.get("only"):
        raise UsageError("give either a pipeline or a selection (only), not both")
    if "providers" in values:
        values["providers"] = tuple(dict.fromkeys(map(execution.normalize, values["providers"])))
        if not values["providers"]:
            raise UsageError("at least one execution provider is needed")
    return Options(**values)


__all__ = ["make_options"]
