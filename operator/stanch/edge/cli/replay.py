"""`stanch replay`: recordings through the same code, as a timeline or as data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from stanch.edge import interrupt
from stanch.edge.cli.options import Options, judging_options


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--role",
    type=click.Choice(["decode", "prefill", "both"]),
    required=True,
    help="What the recorded engines do.",
)
@judging_options
def replay(files: Sequence[str], role: str, options: Options) -> int:
    """Judge recordings of /metrics pages: JSON lines {t, scenario, body, error}, also gzip; - for stdin.

    Prints a timeline of what changed, or with --output json one object per engine and line. The interval
    is the recording's own median step. A line that is no such object ends it with exit code 65.
    """
    from stanch.core.report import record, sentence
    from stanch.core.sample import Role
    from stanch.edge import output as out
    from stanch.edge.replay import judge, read_recording
    from stanch.edge.text import printable

    interrupt.tidily()
    stems = _stems(files) if len(files) > 1 else [None]
    recordings = [read_recording(file, stem) for file, stem in zip(files, stems, strict=True)]
    for lines in recordings:
        said: dict[str, object] = {}
        for line, verdict in judge(lines, options.policy, Role(role)):
            if options.output == "json":
                out.json_line({**record(verdict), "scenario": line.scenario})
                continue
            what = (verdict.state, verdict.signature, verdict.warnings, verdict.cap)
            if said.get(verdict.engine) != what:
                said[verdict.engine] = what
                scenario = f"{printable(line.scenario)}  " if line.scenario else ""
                click.echo(f"{verdict.t:9.1f} s  {scenario}{out.headline(verdict, sentence(verdict))}")
    return 0


def _stems(files: Sequence[str]) -> list[str | None]:
    """A name for each file: its own without its endings, or the whole path where that would not tell."""
    stems = ["stdin" if file == "-" else Path(file).name.split(".")[0] for file in files]
    return [stem if stems.count(stem) == 1 else file for stem, file in zip(stems, files, strict=True)]
