"""Protocol and middleware of the HTTP service: connections, limits, API keys and errors."""
