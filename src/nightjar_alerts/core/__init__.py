"""Classification of light curves: one core for the service, the stream worker and Python.

It has no input or output of its own, and imports no web framework, metrics client or broker client.
"""
