"""Discrete-event simulation of the engine with different batching policies, and replay with the real engine.

Run it as ``python -m deploy.bench.simulation --alerts 500 --visits '[1000]'``.
"""
