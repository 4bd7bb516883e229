"""Decoding of alert packets to light curves: envelopes, Avro schemas and survey conventions."""
