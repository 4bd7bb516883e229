"""Deciders of the table reader: each is a function of the evidence, the roles so far and the options."""
