"""What the demo is played on, as the watchdog and the director need it: simulated engines, or real ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Member:
    """One engine. role: prefill or decode; url has no path. pid: of its process, another one after a restart;
    None while none serves."""

    name: str
    role: str
    url: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """The router's counts. gave_up: ids of requests whose clients left; failures: which failed and why.

    out: the decodes that get no request, because they are not ready. planted: ids of requests that were
    marked to meet the defect, where it takes a mark.
    """

    sent: int
    answered: int
    failed: int
    gave_up: tuple[str, ...]
    failures: tuple[str, ...]
    in_flight: dict[str, int]
    out: tuple[str, ...]
    planted: tuple[str, ...] = ()


class Deployment(Protocol):
    """A prefill/decode deployment with traffic. kind: what its engines are. An engine whose process ends is
    started again at its address, as a kubelet does with a container."""

    @property
    def kind(self) -> str: ...

    @property
    def engines(self) -> Sequence[Member]: ...

    async def traffic(self) -> Traffic: ...

    async def plant(self, name: str, requests: int, seconds: float) -> None:
        """The next so many requests to this engine meet the defect, within that time of the first of them."""

    async def health(self, name: str) -> bool:
        """What a liveness probe sees."""

    def annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        """Show these annotations to the engine, in place of those before, as a downward-API volume does."""

    def log(self, name: str, lines: int) -> str:
        """The end of the engine's log."""


def write_annotations(path: Path, annotations: Mapping[str, str]) -> None:
    """The file of a downward-API volume: the whole of it anew, so that a reader sees one or the other."""
    new = path.with_suffix(".new")
    # ASCII: there JSON's quotes are those of Go's %q.
    new.write_text("".join(f"{key}={json.dumps(value)}\n" for key, value in annotations.items()))
    new.replace(path)
