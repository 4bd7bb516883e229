"""Simulation of the engine: traffic, policies, discrete events, and a replay with the real one.

Run it as ``python -m deploy.bench.simulation --alerts 500 --visits '[1000]'``.
"""
