"""From the files of surveys and challenges to the ragged Parquet that trains; start at `commands`, then `convert`.

Every format has a reader (`snana`, `ztf`, and `tables` with its presets in `surveys`, nested columns included) that
streams `RawObject` records in nJy and MJD TAI; `convert` checks them, drops what cannot be used, counts why, and writes
the file with its provenance.
"""
