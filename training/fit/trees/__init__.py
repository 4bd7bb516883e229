"""Trees on features of light curves."""
