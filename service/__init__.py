"""The service: HTTP and stream worker, from light curves and alert packets to class probabilities and embeddings."""
