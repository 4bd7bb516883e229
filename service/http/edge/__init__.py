"""The edge of the HTTP service: protocol, limits on bodies and clients, errors, timing."""
