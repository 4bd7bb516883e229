"""Measurements of the service, each against something bare in the same run. See ``__main__.py``."""

import models  # noqa: F401  # switches onnxruntime's reports off, before a module here imports onnxruntime
