"""Re-observation of objects with the cadence, bands and errors of other surveys: origins, cadences, views."""
