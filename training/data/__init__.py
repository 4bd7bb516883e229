"""From stored light curves to batches: files, splits, random views and masks; start at `dataset`."""
