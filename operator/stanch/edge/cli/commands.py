"""The command group, and what every command has in common: exit codes and errors as sentences."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

import click

from stanch.edge.cli.check import check
from stanch.edge.cli.demo import demo
from stanch.edge.cli.doctor import doctor
from stanch.edge.cli.incidents import incidents
from stanch.edge.cli.inject import inject
from stanch.edge.cli.lift import lift
from stanch.edge.cli.listing import requests
from stanch.edge.cli.operator import operator
from stanch.edge.cli.plan import plan
from stanch.edge.cli.probe import probe
from stanch.edge.cli.release import release
from stanch.edge.cli.remediate import remediate
from stanch.edge.cli.replay import replay
from stanch.edge.cli.show_policy import show_policy
from stanch.edge.cli.watch import watch
from stanch.edge.errors import (
    EXIT_DATA,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    FileError,
)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 64 wrong usage, 65 a bad input file. `check` has those of monitoring plug-ins.",
)
@click.version_option(package_name="stanch", message="stanch %(version)s")
def stanch() -> None:
    """Find KV cache that a vLLM engine holds for requests that nobody runs."""


_COMMANDS = (
    check,
    watch,
    requests,
    release,
    probe,
    replay,
    demo,
    show_policy,
    incidents,
    remediate,
    plan,
    inject,
    doctor,
    operator,
    lift,
)
for _command in _COMMANDS:
    stanch.add_command(_command)


def run(arguments: Sequence[str], *, debug: bool) -> int:
    """Run one command. Everything that goes wrong ends as a sentence on standard error and an exit code."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        # What a server, a file or a file's name says may have characters that the terminal's encoding lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = _run(arguments, debug=debug)
    error = _flushed(sys.stdout)
    if error is not None and not isinstance(error, BrokenPipeError):
        _say(f"stanch: the output cannot be written: {error.strerror or error}")
        code = EXIT_INTERNAL
    _flushed(sys.stderr)
    return code


def _open_streams() -> None:
    """A standard stream that was closed when we were started (`>&-`) leads to nowhere.

    Lowest first: each takes the number that is free, which a connection would take otherwise.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            flags = os.O_RDONLY if mode == "r" else os.O_WRONLY
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))


def _flushed(stream: TextIO) -> OSError | None:
    """Why what is left for the stream cannot be written; then the interpreter's own last flush finds none."""
    try:
        stream.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return error
    return None


def _say(text: str) -> None:
    """On standard error; where that cannot be written, the exit code says it alone."""
    with suppress(OSError):
        click.echo(text, err=True)


def _run(arguments: Sequence[str], *, debug: bool) -> int:
    try:
        code = stanch.main(list(arguments), prog_name="stanch", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        _say(help_wanted.format_message())
        return EXIT_USAGE
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "stanch"
        _say(f"{command}: {error.format_message()}\nTry '{command} --help'.")
        return EXIT_USAGE
    except FileError as error:
        _say(str(error))
        return EXIT_DATA
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The reader of our output has gone (`| head`); click and rich make that a SystemExit.
        return 0
    except Exception as error:
        if debug:
            raise
        if isinstance(error, ModuleNotFoundError) and not (error.name or "stanch").startswith("stanch"):
            _say(f"stanch: this command needs the package {error.name}: pip install 'stanch[operator]'")
            return EXIT_UNAVAILABLE
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            _say(f"stanch: the output cannot be written: {error.strerror}")
            return EXIT_INTERNAL
        _say(
            f"stanch: an error of its own, please report it: {type(error).__name__}: {error}"
            " (STANCH_DEBUG=1 shows where)"
        )
        return EXIT_INTERNAL
