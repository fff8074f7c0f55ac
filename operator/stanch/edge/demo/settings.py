"""What a simulated engine is told on its command line."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """What the flags say."""

    name: str
    role: str
    host: str
    port: int
    advertise: str | None
    model: str
    blocks: int
    block_tokens: int
    lease_seconds: float
    seed: int
    leash: bool
    ranks: int
    kit: bool
    api_key: str | None
    token: str | None
    token_file: str | None
    annotations: str | None


def settings_from(arguments: list[str] | None = None) -> Settings:
    """The settings that the command line gives; exits with 2 and a usage line where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m stanch.edge.demo.engine", description="A simulated vLLM engine."
    )
    parser.add_argument("--name", default="engine")
    parser.add_argument("--role", choices=("prefill", "decode", "both"), default="both")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument(
        "--advertise", help="the host by which decodes reach this engine, if not the one asked"
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--block-tokens", type=int, default=32)
    parser.add_argument("--lease-seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--data-parallel-size",
        dest="ranks",
        type=int,
        choices=range(1, 65),
        default=1,
        metavar="RANKS",
        help="engines behind the one server, each with a scheduler and a cache of its own",
    )
    parser.add_argument("--no-kit", dest="kit", action="store_false", help="an engine without the kit")
    parser.add_argument("--api-key", help="as vLLM's, for /v1 and the list; with the kit only")
    parser.add_argument("--token", help="the kit takes commands by POST with this token")
    parser.add_argument("--token-file", help="the same, with the token in that file")
    parser.add_argument("--annotations", help="the file that a downward-API volume would show")
    parser.add_argument("--leash", action="store_true", help="end when standard input ends")
    return Settings(**vars(parser.parse_args(arguments)))


@contextmanager
def token_file(settings: Settings) -> Iterator[Settings]:
    """The settings with their token in a file, as a kit wants it, for as long as the engine lives."""
    if settings.token is None:
        yield settings
        return
    # Where /proc names open files it needs no name of its own, and leaves nothing however the process ends.
    nameless = Path("/proc/self/fd").is_dir()
    make = tempfile.TemporaryFile if nameless else tempfile.NamedTemporaryFile
    with make("w", prefix="stanch-demo-") as file:
        file.write(settings.token)
        file.flush()
        path = f"/proc/self/fd/{file.fileno()}" if nameless else str(file.name)
        yield replace(settings, token_file=path)
