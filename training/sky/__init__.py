"""Real surveys: reading them, re-observing them, and measuring classifiers on them."""
