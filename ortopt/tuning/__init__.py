"""Measuring instead of believing: which passes and fused forms make a model faster on this machine."""
