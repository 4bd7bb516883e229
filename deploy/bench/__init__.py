"""Measurements of the service, each against something bare in the same run. See ``__main__.py``."""

import nightjar_alerts  # noqa: F401  # disables onnxruntime's telemetry before a module here imports onnxruntime
