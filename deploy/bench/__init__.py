"""Measurements of the service, each against something bare in the same run. See ``__main__.py``."""

import models  # noqa: F401  # whatever of this package comes first: before onnxruntime is imported
