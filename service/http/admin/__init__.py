"""The admin interface: what is served, and every way to change it. On a port or socket of its own, off by default.

It listens where :mod:`service.settings` says (``admin_port``, ``admin_socket``) and asks for keys of its own
(``admin_keys``), which an address other than loopback cannot do without. Beside its own routes it has those of Triton's
model repository extension, so that clients of Triton can load and unload. Every change, and every refusal of one, is a
line in the log.
"""
