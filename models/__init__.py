"""Light curves, bundles, alert packets and networks. Everything but the networks works without torch."""
