"""Routes of the HTTP service."""
