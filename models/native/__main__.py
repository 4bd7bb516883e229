"""Build the kernels of our own for this machine, or say whether there are any."""

import argparse
import sys

from models.native.library import NativeError, build, find


def main() -> int:
    """Build or check; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.native", description=__doc__)
    parser.add_argument("--check", action="store_true", help="build nothing, say whether there are kernels")
    asked = parser.parse_args()
    try:
        print(find() if asked.check else build())
    except NativeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
