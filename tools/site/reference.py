"""The pages of the Python interface: mkdocstrings makes them from the docstrings."""

from __future__ import annotations

MODULES = {
    "ortopt.api": "`optimize`, and what it returns",
    "ortopt.options": "options, levels, targets",
    "ortopt.runtime.session": "`InferenceSession`",
    "ortopt.errors": "all errors, with their exit codes",
    "ortopt.rule": "`RewriteRule`",
    "ortopt.transformer": "`GraphTransformer`",
    "ortopt.context": "`Context`: what a pass may know and do",
    "ortopt.graph.match": "the questions of `match`",
    "ortopt.graph.edit": "the edits",
    "ortopt.manager": "`GraphTransformerManager`",
    "ortopt.observers": "hooks into a run",
    "ortopt.cancellation": "stopping a run",
    "ortopt.adapters": "passes of onnx-ir, rules of onnxscript",
    "ortopt.testing": "tests of passes",
    "ortopt.integrations.optimum": "folders that Optimum has exported",
}
"""The public modules, and what each is about."""


def pages() -> dict[str, str]:
    """The pages by file name, the overview among them."""
    lines = [f"| [{name}]({name}.md) | {about} |" for name, about in MODULES.items()]
    head = "# Python interface\n\nThe names of `ortopt` itself are those of these modules: `ortopt.optimize` is "
    head += "`ortopt.api.optimize`.\n\n| module | about |\n| --- | --- |\n"
    made = {f"{name}.md": f"# {name}\n\n::: {name}\n" for name in MODULES}
    return {"index.md": head + "\n".join(lines) + "\n", **made}
