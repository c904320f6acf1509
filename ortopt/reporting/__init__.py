"""What a run tells people and other programs."""
