"""`stanch check`: one question, one answer, one exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from stanch.core.verdict import State
from stanch.edge import interrupt
from stanch.edge.cli.options import Options, Seconds, live_options

if TYPE_CHECKING:
    from stanch.edge.live import Judged, Live


@click.command()
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option(
    "--role",
    type=click.Choice(["decode", "prefill", "both", "auto"]),
    default="auto",
    show_default=True,
    help="What the engines do; auto: as their metrics tell, where they do.",
)
@click.option("--for", "seconds", type=Seconds(0, above=True), help="Watch for so long before answering.")
@live_options
def check(urls: Sequence[str], role: str, seconds: float | None, options: Options) -> int:
    """Say whether the engines at these URLs hold KV cache for requests that nobody runs.

    Without --for the answer rests on one look, and the most that the metrics can say then is suspect; the
    engine kit's list, where there is one, says since when. Exit codes: 0 healthy, 1 suspect, 2 fault,
    3 cannot tell; of several engines the worst of fault, cannot tell, suspect, healthy.
    """
    from stanch.edge.targets import TargetError, distinct, from_url, role_of

    try:
        watched = distinct([from_url(url, role_of(role), options.policy) for url in urls])
    except TargetError as error:
        raise click.UsageError(str(error)) from None

    async def look() -> int:
        from stanch.edge import output as out
        from stanch.edge.advice import advise
        from stanch.edge.watching import watching

        judged: list[Judged] = []
        async with watching(watched, options.policy, options.key) as live:
            learned = asyncio.ensure_future(live.learn())
            if seconds is None:
                await live.look()
                await learned
                await live.ask_kits()
                judged = live.turn()
            else:
                await learned
                async for turn in live.turns(seconds):
                    judged = turn
            if options.canary:
                judged = await asyncio.gather(*(_asked(live, one) for one in judged))
            advice = {name: advise(version, live.facts(name)) for name, version in live.versions.items()}
        with out.to_whoever_reads():
            if options.output == "json":
                for one in judged:
                    name = one.watched.target.name
                    out.json_line(out.live_record(one, advice.get(name), one_look=seconds is None))
            else:
                out.print_check(out.console(), judged, advice, one_look=seconds is None)
        return out.exit_code(j.verdict.state for j in judged)

    return interrupt.run(look())


async def _asked(live: Live, judged: Judged) -> Judged:
    """With the engine's own word, where there is something to ask."""
    return await live.confirm(judged) if judged.verdict.state in (State.SUSPECT, State.FAULT) else judged
