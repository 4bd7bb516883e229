"""RoMAE: a masked autoencoder with rotary embeddings of continuous positions."""
