"""Two light curves as tensors, for the scripts in this folder."""

import numpy as np

COLUMNS = {
    "mjd": ("FP64", np.array([60310.12, 60313.09, 60317.21, 60310.12, 60314.30])),
    "flux": ("FP32", np.array([812.5, 2304.1, 4120.9, 310.2, 295.7], np.float32)),
    "flux_err": ("FP32", np.array([110.2, 131.7, 140.3, 55.1, 57.9], np.float32)),
    "band": ("BYTES", np.array([b"r", b"g", b"r", b"i", b"i"], object)),
    "offsets": ("INT64", np.array([0, 3, 5])),
}
