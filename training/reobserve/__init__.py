"""Objects as other surveys would have seen them: origins, patterns, and views of the one through the other."""
