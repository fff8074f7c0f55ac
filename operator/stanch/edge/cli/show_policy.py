"""`stanch policy`: every threshold with its default and its reason."""

from __future__ import annotations

import click


@click.command("policy")
def show_policy() -> None:
    """Print the default policy as YAML, every value explained."""
    from stanch.core.policy import Policy
    from stanch.edge.policy_file import as_yaml

    click.echo(as_yaml(Policy()), nl=False)
