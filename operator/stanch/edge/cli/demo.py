"""`stanch demo`: the whole story on a small fleet of simulated engines."""

from __future__ import annotations

import click


@click.command()
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the fleet's traffic.")
@click.option("--plain", is_flag=True, help="Plain lines, also in a terminal.")
def demo(seed: int, plain: bool) -> int:
    """Start a small prefill/decode fleet, plant the leak, and watch it being found, confirmed and healed."""
    from stanch.edge.demo.story import main

    return main(seed, True if plain else None)
