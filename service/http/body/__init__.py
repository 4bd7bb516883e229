"""Request bodies: their forms, checks and formats."""
