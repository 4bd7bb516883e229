"""Training runs: one resumable loop, its tasks, heads and trees; start at `loop`."""
