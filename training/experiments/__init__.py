"""Published experiments, reproduced; one file each, results in `docs/experiments.md`."""
