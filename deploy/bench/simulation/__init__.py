"""The engine on paper: traffic, rival policies, discrete events, and a replay against the real one.

Run it as ``python -m deploy.bench.simulation --alerts 500 --visits '[1000]'``.
"""
