"""Kafka as source and sink of the stream worker, with transactions."""
