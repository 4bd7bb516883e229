"""Light curves for training: files, surveys, mixtures, splits and views; start at `dataset` and `sample`."""
