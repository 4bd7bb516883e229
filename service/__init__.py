"""The serving program: HTTP in, class probabilities and embeddings out."""
