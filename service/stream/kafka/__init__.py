"""Kafka as source and sink of the stream worker, transactions included."""
