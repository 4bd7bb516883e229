"""The training program: simulate, train, evaluate, export."""

import models  # noqa: F401  # switches onnxruntime's reports off, before a module here imports onnxruntime
