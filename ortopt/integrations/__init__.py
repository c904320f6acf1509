"""ortopt inside of other tools: Hugging Face's Optimum, and Olive."""
