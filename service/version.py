"""Which version of the service this is."""

from importlib.metadata import PackageNotFoundError, version


def _version() -> str:
    try:
        return version("nightjar-alerts")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0"


VERSION = _version()
