"""Minimal endpoints of other model servers around the same network: what somebody would write with them in an hour.

Each runs in an environment of its own (``peers.py`` makes it) and is told by environment what to serve and where.
"""
