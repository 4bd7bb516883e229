"""Train on your own labels: from a labelled table to a served model; start at `run`."""
