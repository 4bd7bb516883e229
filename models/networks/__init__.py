"""Networks in torch, one folder a family: nothing that is served imports them."""
