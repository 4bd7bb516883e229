"""Statistics of light curves computed inside the network: moments, correlations, periods."""
