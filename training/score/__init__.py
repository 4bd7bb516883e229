"""Scores of a model: metrics, views, calibration and the baselines beside it; start at `evaluate`."""
