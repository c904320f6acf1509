"""How fast results run, beside the peers' and the floor: `python -m benchmarks.speed`."""
