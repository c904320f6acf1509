"""Fusion groups: which nodes run together in one session, on which execution provider.

`placement` asks which provider can run a node; `dag` shows a graph as numbers; `literal` and `cost` cut it into
clusters; `lifting` turns clusters into functions; `groups` reads grouped models. docs/groups.md tells the file format.
"""
