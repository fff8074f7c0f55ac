"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from stanch.core.policy import DAY, Policy

F = TypeVar("F", bound=Callable[..., Any])

# With a short hold the default interval would see too few readings of it.
_READINGS_PER_HOLD = 10


class Seconds(click.ParamType[float]):
    """A number of seconds within a range; units are refused, not guessed."""

    name = "seconds"

    def __init__(self, least: float, most: float = DAY, *, above: bool = False) -> None:
        self.least, self.most, self.above = least, most, above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        allowed = f"{'above ' if self.above else ''}{self.least:g} to {self.most:g}"
        try:
            number = float(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a number of seconds (allowed: {allowed}, without a unit)", param, ctx
            )
        if not (self.least < number if self.above else self.least <= number) or not number <= self.most:
            self.fail(f"{value} is out of range (allowed: {allowed} seconds)", param, ctx)
        return number


def policy_options(command: F) -> F:
    for option in (
        click.option(
            "--kv-pin-seconds",
            type=Seconds(0),
            help="How long a bidirectional decode pins finished turns (decoder_kv_blocks_ttl); 0: never.",
        ),
        click.option(
            "--hold-seconds",
            type=Seconds(1),
            help="Hold of every pattern that has one, instead of the policy's.",
        ),
        click.option(
            "--policy",
            "policy_file",
            type=click.Path(path_type=Path),
            help="YAML file of thresholds; `stanch policy` prints one.",
        ),
    ):
        command = option(command)
    return command


def output_option(command: F) -> F:
    return click.option(
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="For people, or one JSON object per engine and reading.",
    )(command)


def live_options(command: F) -> F:
    for option in (
        click.option(
            "--api-key-file",
            type=click.Path(path_type=Path),
            help="File with the engines' --api-key, which a canary needs.",
        ),
        click.option(
            "--canary",
            is_flag=True,
            help="Ask a suspect itself: one request of one token.",
        ),
        click.option(
            "--interval",
            type=Seconds(0.1, 600),
            help="Seconds between readings.  [default: the policy's 5, or a tenth of --hold-seconds]",
        ),
    ):
        command = option(command)
    return command


def make_policy(
    policy_file: Path | None,
    hold_seconds: float | None,
    kv_pin_seconds: float | None,
    interval: float | None = None,
) -> Policy:
    """The policy of the options: a file's, then what the options say. Raises FileError."""
    policy = Policy()
    if policy_file is not None:
        from stanch.edge.policy_file import load_policy  # pydantic: not needed by a plain check

        policy = load_policy(policy_file)
    if hold_seconds is not None:
        policy = policy.with_hold(hold_seconds)
        policy = replace(
            policy,
            interval_seconds=max(0.1, min(policy.interval_seconds, hold_seconds / _READINGS_PER_HOLD)),
        )
    if kv_pin_seconds is not None:
        policy = replace(policy, kv_pin_seconds=kv_pin_seconds)
    if interval is not None:
        policy = replace(policy, interval_seconds=interval)
    return policy


def read_key(path: Path | None) -> str | None:
    """The API key in that file. Raises FileError."""
    if path is None:
        return None
    from stanch.edge.errors import FileError

    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(
            f"{path}: the API key cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if not key or not key.isprintable() or not key.isascii():
        raise FileError(f"{path}: holds no API key of printable characters")
    return key
