"""What a transformer changes past the editor can be neither taken back nor seen: it must say that it does so."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.edit import Editor
from ortopt.transformer import PASSES_PACKAGE, GraphTransformer

REMEDY = "edit through the context (substitute, attempt, edit), or declare bypasses_editor = True"


class DirectEdit(Exception):  # noqa: N818 -- what a transformer did, told by its reason
    """A transformer without ``bypasses_editor`` has changed a graph past the editor: it cannot be taken back."""


def check_edits(transformer: GraphTransformer, edit: Editor, graph: ir.Graph, *, said: object, logged: bool) -> None:
    """Refuse what a transformer has done to a graph without the editor, as far as it can be seen.

    Nodes that came or went are seen at once, whatever else has been edited. Where nothing was edited through the
    editor, so are a transformer that says that it changed something, and nodes that have become other ones, or have
    changed their ops: this looks at each node, and is not asked of ortopt's own passes, which tests hold to it. What is
    not seen: other inputs, attributes, names, and changes of graphs that it was not given, by a transformer that
    returns False or has used the editor as well.

    Args:
        transformer: Who has run.
        edit: The editor of the model.
        graph: The graph that it was given.
        said: What `apply` returned.
        logged: Whether the editor has seen any change.

    Raises:
        DirectEdit: With what is wrong, and what to do about it.
    """
    index = edit.index
    known = graph in index
    if known and len(graph) != index.size(graph):
        raise DirectEdit(f"it put nodes into the graph, or took some out, past the editor: {REMEDY}")
    if logged:
        return
    if said:
        raise DirectEdit(f"it says that it changed something, and the editor has seen nothing: {REMEDY}")
    own = type(transformer).__module__.startswith(f"{PASSES_PACKAGE}.")
    if known and not own and not index.holds_exactly(graph):
        raise DirectEdit(f"it changed nodes of the graph past the editor: {REMEDY}")


__all__ = ["REMEDY", "DirectEdit", "check_edits"]
