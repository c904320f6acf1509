"""Fusion groups: which nodes run together in one session, on which execution provider.

`partitioning` does all of it: `partition` (data only), `group` (in place). `groups` reads grouped models. Behind them:
`placement` asks who can run a node, `dag` shows a graph as numbers, `cost`, `balance` and `lazy_tensor_policy` cut it,
`preparation` and `shape_only_outputs` change it so that groups grow and need less, `outlining` makes functions,
`quotient` draws them.
docs/groups.md tells the file format.
"""
