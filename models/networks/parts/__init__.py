"""Layers that several families of networks share."""
