"""Watching the service: metrics, statistics of models, traces and logs."""
