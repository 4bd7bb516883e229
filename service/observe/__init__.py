"""Observability: metrics, traces, input statistics and the live view."""
