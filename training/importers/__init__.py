"""Importers of files of surveys and challenges into Parquet data files for training.

Every format has a reader (`snana`, `ztf`, and `tables` with its presets in `surveys`) that yields the objects of
`tables`. `commands` validates them, drops unusable points and objects, counts the reasons, and writes the file
with its provenance.
"""
