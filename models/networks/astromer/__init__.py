"""ASTROMER and its multiband form: a transformer over windows of one light curve."""
