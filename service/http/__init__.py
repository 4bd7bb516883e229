"""HTTP service: connections, request bodies, formats, responses, problem documents and routes."""
