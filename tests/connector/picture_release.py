"""A picture of an engine with the kit on it, and what a test of a release does to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from stanch_connector.engine import layout
from stanch_connector.engine.guard import Guard
from stanch_connector.engine.kit import Kit, answer
from tests.connector.picture import request
from tests.connector.picture_ranks import Engine, vllm_modules

EMPTY: Any = ([],)
BLOCKS: Any = ([3, 4],)


@contextmanager
def pictured() -> Iterator[None]:
    """vLLM's modules as far as a release imports them; ids without a random part."""
    with vllm_modules(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "ids_are_randomized", lambda: False)
        yield


@dataclass
class Scene:
    """An engine with the kit, whose ranks are asked of every parked request at once."""

    ranks: int = 1
    depth: int = 1
    own_handshake: bool = False
    later: bool = False
    plugged: bool = True
    now: float = 100.0
    engine: Engine = field(init=False)
    kit: Kit = field(init=False)
    guard: Guard = field(init=False)

    def __post_init__(self) -> None:
        self.engine = Engine(
            self.ranks,
            depth=self.depth,
            own_handshake=self.own_handshake,
            later=self.later,
            plugged=self.plugged,
        )
        self.guard = Guard()
        self.kit = Kit(self.engine.scheduler, self.guard, lambda: self.now)
        self.engine.scheduler._stanch_kit = self.kit  # type: ignore[attr-defined]

    @property
    def requests(self) -> dict[str, Any]:
        return self.engine.scheduler.requests

    def park(self, name: str, to_read: Any, peer: str = "prefill-1") -> Any:
        params = {"do_remote_prefill": True, "remote_engine_id": peer}
        one = request(name, kv_transfer_params=params)
        self.engine.scheduler.add_request(one)
        self.engine.scheduler.park(one, to_read=to_read)
        return one

    def lose(self, *names: str, ranks: tuple[int, ...] | None = None) -> None:
        """The fault: these ranks (all, unless told) never report these requests."""
        for number, connector in enumerate(self.engine.connectors):
            if ranks is None or number in ranks:
                connector.lost |= set(names)

    def step(self, steps: int = 4, seconds: float = 1.0) -> None:
        for _ in range(steps):
            self.now += seconds
            self.engine.step()

    def ask(self, question: str, **args: Any) -> Any:
        return json.loads(answer(self.engine.core, question, self.guard, json.dumps(args)))

    def release(self, *ids: str, **args: Any) -> Any:
        return self.ask("release", ids=list(ids) or None, **args)

    def quiet(self) -> bool:
        """No hook failed, on either side."""
        return self.guard.errors == self.engine.guard.errors == {}
