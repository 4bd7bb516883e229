"""Every decoder of bytes from outside, fed with bytes that nobody thought of."""
