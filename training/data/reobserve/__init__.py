"""Real objects observed with the cadence, bands and errors of other surveys."""
