"""Half an hour under load while models change, clients hang up and nonsense comes in: nothing may be wrong or lost."""
