"""From the files of surveys and challenges to the ragged Parquet that trains; start at `commands`.

Every format has a reader (`snana`, `ztf`, and `tables` with its presets in `surveys`) that yields the objects of
`models.tables`; `commands` checks them, drops what cannot be used, counts why, and writes
the file with its provenance.
"""
