"""Networks in torch, one module per family. The service does not import them."""
