"""How good a model is: metrics, views, calibration and the baselines beside it; start at `evaluate`."""
