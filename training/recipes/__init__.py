"""Every named training run; start at `catalogue`."""
