"""A folder in the layout of the MALLORN challenge."""

import gzip
from pathlib import Path

COLUMNS = "object_id,Time (MJD),Flux,Flux_err,Filter"


def write_mallorn(folder: Path, objects: int = 6, unlabelled: int = 3, header: str = COLUMNS) -> Path:
    """A folder of labelled and unlabelled objects of 8 points each, one more flux missing in each."""
    types = ("AGN", "SN Ia", "SN II", "TDE", "SLSN-I", "SN Ia-91T-like")
    folder.mkdir(exist_ok=True)
    for part, names in (("train", [f"a{i}" for i in range(objects)]), ("test", [f"b{i}" for i in range(unlabelled)])):
        log = ["object_id,Z,Z_err,EBV,SpecType,English Translation,split,target"]
        log += [f'{name},0.{i + 1},,0.05,{types[i % 6]},"x, y",split_01,0' for i, name in enumerate(names)]
        (folder / f"{part}_log.csv").write_text("\n".join(log) + "\n")
        rows = [header]
        for i, name in enumerate(names):
            rows += [f"{name},{63_000 + day}.5,{i % 6 + 1}.5,0.25,{'ugrizy'[day % 6]}" for day in range(8)]
            rows.append(f"{name},63100.5,,0.25,r")
        (folder / "split_01").mkdir(exist_ok=True)
        with gzip.open(folder / "split_01" / f"{part}_full_lightcurves.csv.gz", "wt") as file:
            file.write("\n".join(rows) + "\n")
    return folder
