"""The command `stanch`: the only composition root. No traceback ever reaches a user."""

from __future__ import annotations

import os
import sys

from stanch.edge import interrupt
from stanch.edge.errors import EXIT_INTERRUPTED, EXIT_UNAVAILABLE

interrupt.at_once()


def main() -> int:
    """Run the command line; the exit code is that of the command (see each one's help)."""
    try:
        from stanch.edge.cli import commands
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.startswith("stanch"):
            raise
        print(  # noqa: T201
            f"stanch: the command line needs the package {missing.name}: pip install 'stanch[operator]'",
            file=sys.stderr,
        )
        return EXIT_UNAVAILABLE
    try:
        return commands.run(sys.argv[1:], debug=bool(os.environ.get("STANCH_DEBUG")))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
