"""`stanch demo`: the whole story on a small fleet of simulated engines, or of real ones."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stanch.edge import interrupt
from stanch.edge.errors import EXIT_UNAVAILABLE

if TYPE_CHECKING:
    from stanch.edge.demo.story import Stage

# The package ships no fault injector and no installer: both are the test bed's, which only a checkout has.
_BED = "tests.engine.demo_fleet"


class NoEnginesError(Exception):
    """There are no real engines to play on; the text is one sentence that says what brings them."""


@click.command()
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the fleet's traffic.")
@click.option("--plain", is_flag=True, help="Plain lines, also in a terminal.")
@click.option(
    "--engines",
    is_flag=True,
    help="Real vLLM engines on this machine's CPU: in a checkout, after `make engines`. Takes two to three "
    "minutes and 5 GB of memory.",
)
def demo(seed: int, plain: bool, engines: bool) -> int:
    """Start a small prefill/decode fleet, plant a leak, and watch it being found, confirmed and healed.

    First by a release; then, where none is allowed, by a restart in place.
    """
    from stanch.edge.demo.story import SIMULATED, main

    try:
        stage = real_engines(_checkout()) if engines else SIMULATED
    except NoEnginesError as error:
        click.echo(f"stanch demo: {error}", err=True)
        return EXIT_UNAVAILABLE
    interrupt.tidily()
    return main(seed, True if plain else None, stage)


def real_engines(checkout: Path) -> Stage:
    """The stage that the test bed of this checkout sets. Raises NoEnginesError."""
    if not checkout.joinpath(*_BED.split(".")).with_suffix(".py").is_file():
        raise NoEnginesError(
            "real engines come with a checkout of Stanch, where `make engines` installs them and "
            "`.venv/bin/stanch demo --engines` plays on them"
        )
    sys.path.insert(0, str(checkout))
    bed = importlib.import_module(_BED)
    if (why := bed.missing()) is not None:
        raise NoEnginesError(why)
    stage: Stage = bed.STAGE
    return stage


def _checkout() -> Path:
    """Where this package lies, if it lies in a checkout: two above the package."""
    import stanch

    return Path(str(stanch.__file__)).parents[2]
