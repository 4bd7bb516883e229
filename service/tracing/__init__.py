"""Which trace a request belongs to, what it spent its time on, and telling a collector."""
