"""The ground floor: light curves, bundles and networks. Importable without torch except for the networks themselves.

onnxruntime 1.29 and later tell Microsoft about the machine and the graphs that it opens, and keep an identifier of the
machine in its user's home, unless the environment says otherwise before it is first imported. Here it says otherwise.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
