"""Running passes: one batch on one graph, taken back if it fails."""
