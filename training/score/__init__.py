"""Scores of a model: metrics, views, calibration and baselines; start at `evaluate`."""
