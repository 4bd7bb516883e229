"""Answers as clients see them, over HTTP and in a stream: replies, their writers, their fields."""
