"""ELAsTiCC, simulated alerts of two data challenges: bare records of LSST's packets of 2022 with other record names."""

import re
from dataclasses import replace
from typing import Final

from nightjar_alerts.alerts.layouts import Survey
from nightjar_alerts.alerts.surveys import lsst

SURVEY: Final = Survey(
    name="elasticc",
    title="ELAsTiCC",
    bands=lsst.SURVEY.bands,
    layouts=(replace(lsst.RUBIN, marks=(("diaSource", "psFlux"),)),),
    record_name=re.compile(r"elasticc\.v(\d{1,3}(?:_\d{1,3}){1,2})\.alert"),
    bare=("elasticc/0.9.1", "elasticc/0.9"),
)
