"""Published experiments, reproduced; one file each, results in `training/RESULTS.md`."""
