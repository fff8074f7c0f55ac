"""The command group, and what every command has in common: exit codes and errors as sentences."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

import click

from stanch.edge.cli.check import check
from stanch.edge.cli.demo import demo
from stanch.edge.cli.replay import replay
from stanch.edge.cli.show_policy import show_policy
from stanch.edge.cli.watch import watch
from stanch.edge.errors import FileError

EXIT_USAGE, EXIT_DATA, EXIT_UNAVAILABLE, EXIT_INTERNAL, EXIT_INTERRUPTED = 64, 65, 69, 70, 130


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 64 wrong usage, 65 a bad input file. `check` has those of monitoring plug-ins.",
)
@click.version_option(package_name="stanch", message="stanch %(version)s")
def stanch() -> None:
    """Find KV cache that a vLLM engine holds for requests that nobody runs."""


for _command in (check, watch, replay, demo, show_policy):
    stanch.add_command(_command)


def run(arguments: Sequence[str], *, debug: bool) -> int:
    """Run one command. Everything that goes wrong ends as a sentence on standard error and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        # What a server, a file or a file's name says may have characters that the terminal's encoding lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = _run(arguments, debug=debug)
    try:
        sys.stdout.flush()
    except OSError as error:
        # Nothing is left to be written at the interpreter's own last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            click.echo(f"stanch: the output cannot be written: {error.strerror or error}", err=True)
            return EXIT_INTERNAL
    return code


def _run(arguments: Sequence[str], *, debug: bool) -> int:
    try:
        code = stanch.main(list(arguments), prog_name="stanch", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        click.echo(help_wanted.format_message(), err=True)
        return EXIT_USAGE
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "stanch"
        click.echo(f"{command}: {error.format_message()}\nTry '{command} --help'.", err=True)
        return EXIT_USAGE
    except FileError as error:
        click.echo(str(error), err=True)
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
            click.echo(
                f"stanch: this command needs the package {error.name}: pip install 'stanch[operator]'",
                err=True,
            )
            return EXIT_UNAVAILABLE
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            click.echo(f"stanch: the output cannot be written: {error.strerror}", err=True)
            return EXIT_INTERNAL
        click.echo(
            f"stanch: an error of its own, please report it: {type(error).__name__}: {error}"
            " (STANCH_DEBUG=1 shows where)",
            err=True,
        )
        return EXIT_INTERNAL
