"""The training program: simulate, train, evaluate, export."""

import models  # noqa: F401  # whatever of this package comes first: before onnxruntime is imported
