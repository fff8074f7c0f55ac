"""`stanch probe`: one real request through a prefill/decode pair, and where it broke."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stanch.edge import interrupt
from stanch.edge.cli.options import Seconds, key_option, key_reader, output_option

if TYPE_CHECKING:
    from stanch.edge.probed import Probed


@click.command()
@click.option("--prefill", required=True, metavar="URL", help="The prefill engine.")
@click.option("--decode", required=True, metavar="URL", help="The decode engine.")
@click.option(
    "--timeout",
    type=Seconds(1, 600),
    default=60.0,
    show_default=True,
    help="For each of the two answers; the first request after a start is slow.",
)
@click.option("--model", help="The model to ask for.  [default: the first that each engine serves]")
@key_option("File with the engines' --api-key.")
@output_option
def probe(
    prefill: str, decode: str, timeout: float, model: str | None, api_key_file: Path | None, output: str
) -> int:
    """Send one real request through a pair of engines and say where it broke.

    The prompt is new each time and longer than a block, so its KV must be transferred. A decode engine that
    does not answer in time is left with the probe's own request, like any other that is given up. Exit codes:
    0 it works, 1 it broke, 3 cannot tell.
    """
    from stanch.core.policy import Policy
    from stanch.edge import output as out
    from stanch.edge.client import session
    from stanch.edge.probe import Probe
    from stanch.edge.probed import End, MisuseError
    from stanch.edge.targets import TargetError, distinct, from_url

    try:
        pair = distinct([from_url(url, None, Policy()) for url in (prefill, decode)])
    except TargetError as error:
        raise click.UsageError(str(error)) from None
    key = key_reader(api_key_file)

    async def run() -> Probed:
        async with session() as connection:
            return await Probe(connection, pair[0], pair[1], timeout, model, key).run()

    try:
        probed = interrupt.run(run())
    except MisuseError as error:
        raise click.UsageError(str(error)) from None
    with out.to_whoever_reads():
        if output == "json":
            data: dict[str, object] = {
                "schema": "stanch.probe/1",
                "prefill": pair[0].target.shown,
                "decode": pair[1].target.shown,
                "end": probed.end.value,
                "where": probed.where,
                "reason": probed.why,
                "requestId": probed.request_id,
                "promptTokens": probed.prompt_tokens,
                "prefillSeconds": probed.prefill_seconds,
                "decodeSeconds": probed.decode_seconds,
            }
            out.json_line(data)
        else:
            out.print_table(None, _sentence(probed))
    return {End.WORKS: 0, End.BROKE: 1, End.UNKNOWN: 3}[probed.end]


def _sentence(probed: Probed) -> str:
    at = f" at {probed.where}" if probed.where is not None else ""
    head = {"works": "WORKS", "broke": f"BROKE{at}", "unknown": "CANNOT TELL"}[probed.end.value]
    took = [
        f"{name} {seconds:.2f} s"
        for name, seconds in (("prefill", probed.prefill_seconds), ("decode", probed.decode_seconds))
        if seconds is not None
    ]
    end = f" ({probed.prompt_tokens} tokens; {', '.join(took)})" if took else ""
    return f"{head}: {probed.why}{end}"
