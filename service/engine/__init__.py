"""Inference engine: request queue, batching policy, worker threads and cost model."""
