"""Scores of a model on data files and real surveys, and baselines; start at `evaluate` and `surveys`."""
