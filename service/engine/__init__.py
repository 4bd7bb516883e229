"""Light curves in, predictions out: the queue, the scheduler, the worker threads and what a run costs."""
