"""What is checked of a model: its structure, which every reader relies on, and its nodes against the specification."""
