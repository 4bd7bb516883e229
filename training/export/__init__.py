"""From a run to a bundle: graph, parity, golden vectors, manifest and card; start at `bundle`."""
