"""Training runs: one resumable loop, and the tasks it can be given; start at `loop`."""
