"""Fits to validation light curves: calibration, prediction sets, novelty, ensembles; start at `fit`."""
