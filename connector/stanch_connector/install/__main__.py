"""Command line of the installer: `python -m stanch_connector.install TARGET [--json]`.

Exit status: 0 installed (or already there), 1 it could not be, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from stanch_connector.install import names
from stanch_connector.install.advice import advise, lines
from stanch_connector.install.place import place
from stanch_connector.install.tree import InstallError, wanted


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m stanch_connector.install",
        description="Copy the engine kit into a volume that the engine's container mounts at the same path.",
    )
    parser.add_argument("target", help="an existing directory: where the shared volume is mounted")
    parser.add_argument("--json", action="store_true", help="say what to set as JSON")
    options = parser.parse_args(argv)
    if not options.target or ":" in options.target:
        parser.error("TARGET is empty, or has a colon, which no PYTHONPATH can have (is a variable not set?)")
    target = Path(os.path.abspath(options.target))  # noqa: PTH100  (the path as mounted, links kept)
    try:
        version, files = wanted()
        written = place(target, version, files)
    except (InstallError, OSError) as error:
        sys.stderr.write(f"stanch: not installed: {error}\n")
        return 1
    advice = advise(str(target), os.environ)
    done = "installed" if written else "already there"
    if options.json:
        answer = {"version": version, "written": written, "files": len(files), **dataclasses.asdict(advice)}
        said = json.dumps(answer) + "\n"
    else:
        head = f"{names.DISTRIBUTION} {version}: {done} in {target} ({len(files)} files)"
        said = "\n".join([head, *lines(advice, os.environ)]) + "\n"
    try:
        sys.stdout.write(said)
        sys.stdout.flush()
    except OSError as error:
        # It is installed; that nobody reads what to set is no failure, nor for the interpreter's own flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write(f"stanch: installed, but its advice was not printed: {error.strerror}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
