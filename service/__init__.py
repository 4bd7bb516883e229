"""The serving program: HTTP in, class probabilities and embeddings out."""

import models  # noqa: F401  # whatever of this package comes first: before onnxruntime is imported
