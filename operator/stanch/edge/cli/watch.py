"""`stanch watch`: the same judgement, turn after turn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stanch.edge import interrupt
from stanch.edge.cli.options import Options, Seconds, live_options
from stanch.edge.text import printable

if TYPE_CHECKING:
    from stanch.core.policy import Policy
    from stanch.edge.live import Live
    from stanch.edge.targets import Watched


@click.command()
@click.option(
    "--target", "pairs", metavar="URL=ROLE", multiple=True, help="An engine and its role; repeatable."
)
@click.option(
    "--targets",
    "targets_file",
    type=click.Path(path_type=Path),
    help="YAML file of targets instead (see docs/targets.md).",
)
@click.option("--for", "seconds", type=Seconds(0, above=True), help="End after so long.  [default: never]")
@live_options
def watch(pairs: Sequence[str], targets_file: Path | None, seconds: float | None, options: Options) -> int:
    """Watch engines and show what is wrong with which of them.

    A live table in a terminal, elsewhere one line per change; with --output json one object per engine and
    turn.
    """
    watched = _targets(pairs, targets_file, options.policy)
    canary = options.canary

    async def run() -> None:
        from stanch.edge.watching import watching

        async with watching(watched, options.policy, options.key) as live:
            what = _what(watched, options.policy)
            if options.output == "json":
                await live.learn()
                await _json(live, seconds, canary)
            elif sys.stdout.isatty():
                await _table(live, seconds, canary, what)
            else:
                click.echo(what, err=True)  # to be seen at once; it is no data
                await live.learn()
                await _lines(live, seconds, canary)

    interrupt.run(run())
    return 0


def _targets(pairs: Sequence[str], targets_file: Path | None, policy: Policy) -> list[Watched]:
    from stanch.edge.targets import TargetError, distinct, from_file, from_pair

    if bool(pairs) == (targets_file is not None):
        raise click.UsageError("say what to watch: either --target URL=ROLE (repeatable) or --targets FILE")
    if targets_file is not None:
        return from_file(targets_file, policy)
    try:
        return distinct([from_pair(pair, policy) for pair in pairs])
    except TargetError as error:
        raise click.UsageError(str(error)) from None


def _what(watched: Sequence[Watched], policy: Policy) -> str:
    """What is shown until the first turn, which takes an interval."""
    names = ", ".join(one.target.name for one in watched[:3]) + (", ..." if len(watched) > 3 else "")
    count = "1 server" if len(watched) == 1 else f"{len(watched)} servers"
    return printable(f"watching {count} ({names}), a reading every {policy.interval_seconds:g} s")


async def _json(live: Live, seconds: float | None, canary: bool) -> None:
    from stanch.edge import output as out
    from stanch.edge.advice import advise

    async for judged in live.turns(seconds):
        for one in live.ask_in_background(judged) if canary else judged:
            name = one.watched.target.name
            out.json_line(out.live_record(one, advise(live.versions.get(name), live.facts(name))))
        out.flush()


async def _table(live: Live, seconds: float | None, canary: bool, what: str) -> None:
    from rich.live import Live as View
    from rich.text import Text

    from stanch.edge import output as out

    screen = out.console()
    with View(Text(what), console=screen, auto_refresh=False, transient=False) as view:
        await live.learn()
        async for judged in live.turns(seconds):
            rows = live.ask_in_background(judged) if canary else judged
            most = max(5, screen.size.height - 4)
            view.update(out.table(rows, blind_fleet=live.blind_fleet, most=most), refresh=True)


async def _lines(live: Live, seconds: float | None, canary: bool) -> None:
    from stanch.edge import output as out

    said: dict[str, object] = {}
    async for judged in live.turns(seconds):
        for one in live.ask_in_background(judged) if canary else judged:
            v = one.verdict
            stuck = v.stuck.count if v.stuck is not None else 0
            what = (v.state, v.signature, v.warnings, v.confirmation, v.cap, stuck)
            if said.get(v.engine) != what:
                said[v.engine] = what
                click.echo(out.plain_line(v, out.clock_time(v.t)))
        out.flush()
