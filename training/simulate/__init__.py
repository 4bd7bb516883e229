"""Simulated multiband light curves of an LSST-like survey, with host metadata and labels; start at `generate`."""
