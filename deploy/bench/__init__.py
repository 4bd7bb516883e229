"""Benchmarks of the service; see ``__main__.py``."""

import nightjar_alerts  # noqa: F401  # disables onnxruntime's telemetry before a module here imports onnxruntime
