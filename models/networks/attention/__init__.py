"""Kinds of attention that the networks can use: exact, hashed, linear and sparse."""
