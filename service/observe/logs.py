"""Logs: one JSON object a line on standard error, with the request id, never with a body.

Libraries that use the standard ``logging`` (uvicorn) come out in the same form.
"""

import logging
import sys
from typing import Any

import structlog

from service.settings import Settings

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


_TEXT = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
_JSON: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def configure(settings: Settings) -> None:
    """Send everything, ours and the libraries', through one formatter at the level asked for."""
    text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *([_TEXT] if text else _JSON),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper(), force=True)
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
