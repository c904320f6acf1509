"""What several passes recognize, by family."""
