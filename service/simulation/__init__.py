"""The engine on paper: traffic, rival policies, discrete events, and a replay against the real one."""
