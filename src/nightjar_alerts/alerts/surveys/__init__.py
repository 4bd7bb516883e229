"""Known surveys: one module each, with its :class:`Survey` as ``SURVEY``.

survey = surveys.SURVEY_BY_NAME["ztf"]
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from nightjar_alerts.alerts.layouts import Survey

SURVEYS: Final[tuple[Survey, ...]] = tuple(
    import_module(f"{__name__}.{module.name}").SURVEY for module in sorted(iter_modules(__path__))
)
SURVEY_BY_NAME: Final[Mapping[str, Survey]] = {survey.name: survey for survey in SURVEYS}
