"""Pages of docs/ that follow from the code: settings, metrics, tables of benchmarks."""
