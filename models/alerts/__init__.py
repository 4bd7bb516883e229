"""Raw alert packets to the canonical light curve: envelopes, Avro schemas, and one table of survey conventions."""
