"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from stanch.core.policy import DAY, Policy

F = TypeVar("F", bound=Callable[..., Any])

# With a short hold the default interval would see too few readings of it.
_READINGS_PER_HOLD = 10
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Seconds(click.ParamType[float]):
    """A length of time within a range, in seconds: 120, 120s, 2m or 1h."""

    name = "seconds"

    def __init__(self, least: float, most: float = DAY, *, above: bool = False) -> None:
        self.least, self.most, self.above = least, most, above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        allowed = f"{'above ' if self.above else ''}{self.least:g} to {self.most:g}"
        text, unit = str(value), 1.0
        if text[-1:] in _UNITS:
            text, unit = text[:-1], _UNITS[text[-1]]
        try:
            if "_" in text or not text.isascii():
                raise ValueError  # to Python 1_0 is ten
            number = float(text) * unit
        except ValueError:
            how = "such as 120, 120s or 2m"
            self.fail(f"{value!r} is not a number of seconds (allowed: {allowed}, {how})", param, ctx)
        if not (self.least < number if self.above else self.least <= number) or not number <= self.most:
            self.fail(f"{value} is out of range (allowed: {allowed} seconds)", param, ctx)
        return number


@dataclass(frozen=True, slots=True)
class Options:
    """What check, watch and replay are told in the same way. key: of the engines, read at each use."""

    policy: Policy
    output: str
    canary: bool = False
    key: Callable[[], str | None] = lambda: None


def judging_options(command: F) -> F:
    """--policy, --hold-seconds, --kv-pin-seconds, --output; the command gets `options`."""
    return _with_options(command, _POLICY)


def live_options(command: F) -> F:
    """The same, and --interval, --canary, --api-key-file."""
    return _with_options(command, (*_POLICY, *_LIVE))


def output_option(command: F) -> F:
    return click.option(
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="For people, or JSON: one object a line.",
    )(command)


class _SecondNameHidden(click.Option):
    """An option whose second name is taken, and never shown: `release` calls another secret by it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return None if record is None else (record[0].replace(f", {self.opts[1]}", ""), record[1])


def key_option(help_text: str) -> Callable[[F], F]:
    """vLLM's own --api-key, as `api_key_file`."""
    return click.option(
        "--api-key-file",
        "--token-file",
        "api_key_file",
        cls=_SecondNameHidden,
        type=click.Path(path_type=Path),
        help=help_text,
    )


_POLICY: tuple[Callable[[Any], Any], ...] = (
    output_option,
    click.option(
        "--kv-pin-seconds",
        type=Seconds(0),
        help="How long a bidirectional decode pins finished turns (decoder_kv_blocks_ttl); 0: never, unless "
        "its kit says so.",
    ),
    click.option(
        "--hold-seconds", type=Seconds(1), help="Hold of every pattern that has one, instead of the policy's."
    ),
    click.option(
        "--policy",
        "policy_file",
        type=click.Path(path_type=Path),
        help="YAML file of thresholds; `stanch policy` prints one.",
    ),
)
_LIVE: tuple[Callable[[Any], Any], ...] = (
    key_option("File with the engines' --api-key, which a canary and the engine kit's list need."),
    click.option("--canary", is_flag=True, help="Ask a suspect itself: one request of one token."),
    click.option(
        "--interval",
        type=Seconds(0.1, 600),
        help="Seconds between readings.  [default: the policy's 5, or a tenth of --hold-seconds]",
    ),
)


def _with_options(command: F, options: tuple[Callable[[Any], Any], ...]) -> F:
    @functools.wraps(command)
    def told(
        *,
        policy_file: Path | None,
        hold_seconds: float | None,
        kv_pin_seconds: float | None,
        output: str,
        interval: float | None = None,
        canary: bool = False,
        api_key_file: Path | None = None,
        **others: Any,
    ) -> Any:
        policy = make_policy(policy_file, hold_seconds, kv_pin_seconds, interval)
        return command(options=Options(policy, output, canary, key_reader(api_key_file)), **others)

    found: Any = told
    for option in options:
        found = option(found)
    return found  # type: ignore[no-any-return]


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


def server(url: str) -> tuple[str, str]:
    """(the server's URL without a path of metrics, the same as it may be shown). Raises UsageError."""
    from stanch.core.policy import Policy
    from stanch.edge.targets import TargetError, from_url

    try:
        watched = from_url(url, None, Policy())
    except TargetError as error:
        raise click.UsageError(str(error)) from None
    return watched.base, watched.target.shown


def key_reader(path: Path | None, what: str = "API key") -> Callable[[], str | None]:
    """Reads the secret in that file, anew at each call, because it may rotate; it is never printed.

    Raises FileError, here already and at each call, where there is none in it.
    """
    if path is None:
        return lambda: None

    from stanch.edge.secret_file import read_secret

    def read() -> str:
        return read_secret(path, what)

    read()
    return read
