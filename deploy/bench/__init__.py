"""Measurements of the service, each against something bare in the same run. See ``__main__.py``."""
