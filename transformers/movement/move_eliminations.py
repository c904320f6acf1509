"""Moves that leave all elements where they are, in the dimensions that they have: they only copy."""

import onnx_ir as ir

from ortopt import ops
from ortopt.graph import scope
from ortopt.graph.facts import contents
from ortopt.graph.match import dims, inputs, is_used, need, need_known, opset, same_dim, shape_of, users
from ortopt.rule import NEWEST_OPSET, Elimination, Forwarded, Match, RewriteRule
from ortopt.views.index_map import identity, part_along
from ortopt.views.reading import after, through

MOVES = "it moves elements, or the shape may change"


class _MoveElimination(Elimination):
    """An elimination of a move whose index map is the identity."""

    def match(self, root: ir.Node) -> Forwarded:
        """A move that gives back what it reads; what the file declares about the result is no proof of that."""
        return _copied(root)


class FlattenElimination(_MoveElimination):
    """``Flatten`` of a matrix into the same matrix → ``x``."""

    roots = ("Flatten",)


class ReshapeElimination(_MoveElimination):
    """``Reshape(x, shape of x)`` → ``x``, with 0, one -1 and symbols."""

    after = ("reshape_merging",)  # of two Reshapes to one shape, the target of the last stays
    roots = ("Reshape",)
    opsets = (5, NEWEST_OPSET)


class SliceElimination(_MoveElimination):
    """``Slice`` that takes everything in order → ``x``."""

    after = ("slice_merging",)  # of two Slices, the bounds of both together are looked at
    roots = ("Slice",)


class SqueezeElimination(_MoveElimination):
    """``Squeeze`` of no axis → ``x``: without axes, of a shape in which no dimension is 1."""

    roots = ("Squeeze",)


class UnsqueezeElimination(_MoveElimination):
    """``Unsqueeze`` at no axis → ``x``; one of a constant is `constant_folding`'s."""

    roots = ("Unsqueeze",)


class TransposeElimination(_MoveElimination):
    """``Transpose`` in the order of the axes, or of axes of size 1 alone → ``x``."""

    after = ("transpose_merging",)  # of two Transposes, the order of both together is looked at
    roots = ("Transpose",)

    def match(self, root: ir.Node) -> Forwarded:
        """The identity permutation, written or of rank at most 1; or each axis that moves has size 1."""
        return _copied(root, len(ops.Transpose(root).order))


class PadElimination(Elimination):
    """``Pad`` by nothing → ``x``, in every mode."""

    roots = ("Pad",)
    opsets = (2, NEWEST_OPSET)  # in the first version the attribute had another name

    def match(self, root: ir.Node) -> Forwarded:
        """Paddings that are known and all 0."""
        (x,) = inputs(root, 1)
        need(not any(ops.Pad(root).amounts), "it adds or takes something", root)
        return Forwarded((root,), x)


class SplitElimination(RewriteRule[Match]):
    """``Split`` of which one part is needed → ``Slice``, or x where the part is all of it.

    Runtimes copy all parts of a Split, whoever needs them. What others read as a whole stays for
    `conv_split_decomposition`, which serves ONNX Runtime.
    """

    roots = ("Split",)
    opsets = (2, NEWEST_OPSET)  # in the first version an input could hold the sizes, as floats too

    def match(self, root: ir.Node) -> Match:
        """One output that has a user: all, or a part of a fixed dimension."""
        (x,) = inputs(root, 1)
        needed = list(filter(is_used, root.outputs))
        need(len(needed) == 1, "several parts are needed", root)
        (part,) = needed
        if len(root.outputs) == 1 or (taken := after(identity(x), root, part)).is_identity:
            return Match((root,), lambda: {part: x})
        for_any = scope.of_node(root).options.target.keeps_to_onnx
        alone = all(user is root or user.graph is not root.graph for user in users(x))
        need(for_any or (alone and not x.is_graph_output()), "a convolution may give its parts", x)
        place = ops.Split(root).axis
        need(isinstance(dims(x)[place], int), "the dimension is not fixed", x)
        start, end, _ = part_along(taken, place)
        return Match((root,), lambda: {part: ops.slice_node(x, [(place, start, end, 1)], opset(root)).outputs[0]})


class TileElimination(Elimination):
    """``Tile(x, 1s)`` → ``x``."""

    roots = ("Tile",)
    opsets = (6, NEWEST_OPSET)  # before, it repeated one axis

    def match(self, root: ir.Node) -> Forwarded:
        """Repeats that are known and all 1."""
        x, repeats = inputs(root, 2)
        known = need_known(contents(repeats), "the repeats are not known", repeats)
        need(all(same_dim(count, 1) for count in known), "it repeats something, or takes nothing", repeats)
        return Forwarded((root,), x)


def _copied(root: ir.Node, rank: int | None = None) -> Forwarded:
    """What a move reads, if it gives the same.

    Args:
        root: The move.
        rank: The rank of what it reads, where that is known of a value of unknown shape.

    Raises:
        Refusal: If it moves elements, or may give other dimensions.
    """
    (x,) = inputs(root, 1)
    result = root.outputs[0]
    before, after_ = shape_of(x), None if result.is_graph_output() else shape_of(result)
    if before is not None and after_ is not None:  # most do other things, which takes long to find out by maps
        numbers = [pair for pair in zip(before, after_, strict=False) if all(isinstance(dim, int) for dim in pair)]
        alike = len(before) == len(after_) and all(one == other for one, other in numbers)
        need(alike, MOVES, root)
    need(through(x, root, rank=rank).is_identity, MOVES, root)
    return Forwarded((root,), x)
