"""Informer: sparse attention over long light curves, for classes and for forecasts."""
