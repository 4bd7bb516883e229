"""Calibration, prediction sets, novelty and ensembles, fitted to validation light curves."""
