"""Nightjar: classification of astronomical alerts in real time.

onnxruntime 1.29 and later report to Microsoft about the machine and the graphs that it opens, unless the environment
disables it before onnxruntime is imported. Importing this package disables it.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
