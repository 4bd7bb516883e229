"""Formats of light curves and answers on the wire, each a reader and a writer without any knowledge of HTTP."""
