"""Detection of edits past the editor: they can be neither rolled back nor tracked, and must be declared."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.edit import Editor
from ortopt.transformer import PASSES_PACKAGE, GraphTransformer

REMEDY = "edit through the context (substitute, attempt, edit), or declare bypasses_editor = True"


class DirectEdit(Exception):  # noqa: N818 -- a misuse, which the manager reports by its reason
    """A transformer without ``bypasses_editor`` has changed a graph past the editor: it cannot be taken back."""


def check_edits(
    transformer: GraphTransformer, edit: Editor, graph: ir.Graph, *, returned: object, logged: bool
) -> None:
    """Refuse what a transformer has done to a graph past the editor, as far as it can be detected.

    Nodes that were added or removed are always detected. Where nothing was edited through the editor, a transformer
    that returned True is detected as well, and so are nodes that were exchanged or have changed their ops: this looks
    at each node, and is skipped for ortopt's own passes, which tests check. Not detected are changes of inputs,
    attributes, names and other graphs, by a transformer that returns False or has used the editor as well.

    Args:
        transformer: The transformer that has run.
        edit: The editor of the model.
        graph: The graph that `apply` was called with.
        returned: What `apply` returned.
        logged: Whether the editor has recorded any change.

    Raises:
        DirectEdit: With what is wrong, and what to do about it.
    """
    index = edit.index
    known = graph in index
    if known and len(graph) != index.size(graph):
        raise DirectEdit(f"it put nodes into the graph, or took some out, past the editor: {REMEDY}")
    if logged:
        return
    if returned:
        raise DirectEdit(f"it returned True, and the editor has recorded no change: {REMEDY}")
    own = type(transformer).__module__.startswith(f"{PASSES_PACKAGE}.")
    if known and not own and not index.holds_exactly(graph):
        raise DirectEdit(f"it changed nodes of the graph past the editor: {REMEDY}")


__all__ = ["REMEDY", "DirectEdit", "check_edits"]
