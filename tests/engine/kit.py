"""Loads the engine kit into a test engine, as its install does: the package and a .dist-info on
PYTHONPATH (vLLM finds plug-ins by entry points), and one flag."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.bed import REPOSITORY, Engine, until
from tests.engine.client import get

MIDDLEWARE = ("--middleware", "stanch_connector.apiserver.middleware.StanchMiddleware")


def kit_path(directory: Path) -> list[Path]:
    """What goes onto PYTHONPATH; the .dist-info is written below the directory."""
    info = directory / "stanch-0.1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stanch\nVersion: 0.1.0\n")
    entry_points = "[vllm.general_plugins]\nstanch = stanch_connector.plugin:register\n"
    (info / "entry_points.txt").write_text(entry_points)
    return [REPOSITORY / "connector", directory]


@dataclass(frozen=True, slots=True)
class Listed:
    """One answer of /stanch/v1/requests."""

    status: int
    body: dict[str, Any]
    seconds: float

    def entries(self, rank: int = 0) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.body["ranks"][str(rank)]["requests"]
        return listed

    def stuck(self, rank: int = 0) -> list[dict[str, Any]]:
        """What waits for remote KV, its client there or gone, and is kept for nobody."""
        return [one for one in self.entries(rank) if one["waitsFor"] == "remote_kv"]


def ask(engine: Engine, what: str = "requests") -> Listed:
    answer = get(engine.url, f"/stanch/v1/{what}", timeout_s=60)
    return Listed(answer.status, json.loads(answer.body), answer.seconds)


def until_listed(engine: Engine, count: int, *, gone: bool, rank: int = 0) -> Listed:
    """The first answer with that many stuck requests whose clients are gone, or all still there."""
    seen: list[Listed] = []

    def as_wanted() -> bool:
        seen.append(ask(engine))
        stuck = seen[-1].stuck(rank)
        return len(stuck) == count and all(one["clientGone"] is gone for one in stuck)

    until(as_wanted, f"{count} stuck requests in the list")
    return seen[-1]
