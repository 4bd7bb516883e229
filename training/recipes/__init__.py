"""Recipes of training runs; start at `catalogue`."""
