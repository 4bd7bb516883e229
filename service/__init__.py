"""The serving program: HTTP in, class probabilities and embeddings out."""

import models  # noqa: F401  # switches onnxruntime's reports off, before a module here imports onnxruntime
