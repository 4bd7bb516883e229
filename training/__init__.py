"""The training program: simulate, train, evaluate, export."""
