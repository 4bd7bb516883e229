"""The HTTP edge: connections, bodies, requests, replies, problems, routes."""
