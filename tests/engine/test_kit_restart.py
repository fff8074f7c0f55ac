"""Restart in place, on an engine in something that stands for a container (chaos_container.py), with two
API-server processes.

The commands come as on Kubernetes, through the annotations file, and stay in it: each restart starts with the
last one's command before its eyes.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stanch_connector import contract
from tests.engine.bed import HERE, Bed, Engine, Spec, until
from tests.engine.chaos_bed import Annotations, Fitted, Stream, payload, post, start
from tests.engine.client import NoAnswerError, Pending, complete, get, pd_request
from tests.engine.kit import MIDDLEWARE, ask, kit_path
from tests.engine.marks import PARK
from tests.engine.model import words
from tests.engine.pair import USAGE, WAITING

pytestmark = pytest.mark.engine
VERSION = "0.29.0"
# Of a worker's step, so that a generation of 300 tokens takes 15 s: a dozen questions take less.
STEP_MS = 50
RESTART_S = 400


@dataclass
class Container:
    """A decode engine in a container, and the prefill engine that it reads from."""

    prefill: Engine
    engine: Engine
    volume: Annotations
    record: Path
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def boot(self) -> str:
        found: str = ask(self.engine, "state").body["bootId"]
        return found

    def order(self, verb: str, deadline_s: float, boot: str | None = None) -> str:
        """Write a command into the annotations; its id."""
        name = f"c-{next(self.numbers)}"
        body: dict[str, object] = {
            "id": name, "verb": verb, "bootId": boot or self.boot(), "deadlineSeconds": deadline_s,
        }  # fmt: skip
        self.volume.write({contract.ANNOTATION_COMMAND: body})
        return name

    def outcome(self, name: str) -> dict[str, Any] | None:
        outcomes = ask(self.engine, "state").body["outcomes"]
        return next((one for one in outcomes if one["id"] == name), None)

    def until_outcome(self, name: str) -> dict[str, Any]:
        """What one of the API servers says of it, once that is any more than that it has begun."""
        found: list[dict[str, Any]] = []

        def ended() -> bool:
            outcome = self.outcome(name)
            found.extend([outcome] if outcome and outcome["state"] != "running" else [])
            return bool(found)

        until(ended, f"{name} has ended")
        return found[0]

    def until_draining(self) -> None:
        """Both API servers: the kernel gives each connection to one of them."""

        def both() -> bool:
            return all(ask(self.engine, "state").body["draining"] for _ in range(12))

        until(both, "draining", every_s=0.05)

    def ends(self) -> list[dict[str, Any]]:
        """One record of each end of the container's process."""
        return [json.loads(line) for line in self.record.read_text().splitlines()]

    def until_ended(self, count: int, deadline_s: float = 180) -> dict[str, Any]:
        """The record of the newest end."""
        until(lambda: len(self.ends()) == count, f"end {count} of the container's process", deadline_s, 0.05)
        return self.ends()[-1]

    def until_new(self, old_boot: str) -> None:
        """Another start of the engine answers."""

        def answers() -> bool:
            try:
                return self.engine.healthy and self.boot() != old_boot
            except NoAnswerError:
                return False

        until(answers, "the engine is back", RESTART_S, 0.25)

    def works(self) -> None:
        """A request goes through both engines (the first after a start makes the handshake)."""
        number = next(self.numbers)
        prompt = words(64, seed=9000 + number)
        assert pd_request(self.prefill.url, self.engine.url, prompt, number=number).answer(90).status == 200


@pytest.fixture(scope="module")
def container(bed: Bed) -> Container:
    volume = Annotations(bed.directory / "podinfo")
    volume.write({})
    record = bed.directory / "record"
    record.touch()
    path = kit_path(bed.directory / "kit")
    prefill = Fitted(bed, Spec("prefill"), {})
    engine = Fitted(
        bed,
        Spec(
            "decode",
            inject=True,
            extra_args=(*MIDDLEWARE, "--api-server-count", "2"),
            python_path=path,
            connector={"stanch_step_delay_ms": STEP_MS},
        ),
        {contract.ENV_ANNOTATIONS: str(volume.path)},
        [sys.executable, str(HERE / "chaos_container.py"), str(record)],
    )
    start(prefill, engine)
    made = Container(prefill, engine, volume, record)
    made.works()
    return made


def refused(container: Container, request_id: str | None = None) -> bool:
    """Whether a new request gets what a draining engine says, and in no other way than that."""
    headers = {} if request_id is None else {"X-Request-Id": request_id}
    reply = post(container.engine.url, "/v1/completions", payload(words(10), 1), headers)
    if reply.status == 200:
        return False
    assert (reply.status, reply.headers["connection"]) == (503, "close")
    assert reply.body["error"]["message"] == "draining"
    return True


def lost(pending: Pending) -> bool:
    """Whether its client knows that there is no answer."""
    try:
        return pending.answer().status >= 500
    except NoAnswerError:
        return not pending.open


def test_politely(container: Container, capsys: pytest.CaptureFixture[str]) -> None:
    """What is open ends as it would have; then the engine ends, and starts again but once."""
    boot, before = container.boot(), len(container.ends())
    whole = complete(container.engine.url, words(40, seed=1), max_tokens=150)
    stream = Stream(container.engine.url, payload(words(40, seed=2), 300))
    until(lambda: len(stream.times) > 3, "the stream runs")
    ordered = time.monotonic()
    name = container.order("restart", 180)
    container.until_draining()
    assert container.outcome(name) == {"id": name, "verb": "restart", "state": "running"}
    assert refused(container)
    assert refused(container, contract.CANARY_PREFIX + "0123456789abcdef"), "another start's canary"
    assert not refused(container, f"{contract.CANARY_PREFIX}{boot}-1")
    ready = ask(container.engine, "ready")
    assert (ready.status, ready.body["reason"]) == (503, "a restart is under way")
    assert get(container.engine.url, "/health").status == 200
    assert get(container.engine.url, "/v1/models").status == 200
    # Not lost: both were open when the drain began.
    assert stream.ended is None
    assert stream.wait() == "done"
    assert stream.tokens == 300
    assert whole.answer().body["usage"]["completion_tokens"] == 150
    done = time.monotonic()
    end = container.until_ended(before + 1)
    container.until_new(boot)
    # The command is in the file still, for a boot id that is no more.
    assert container.until_outcome(name) == {
        "id": name, "verb": "restart", "state": "ignored", "reason": "for another boot id",
    }  # fmt: skip
    assert ask(container.engine, "ready").status == 200
    container.works()
    assert len(container.ends()) == before + 1
    with capsys.disabled():
        print(
            f"\npolite: open requests took {done - ordered:.1f} s, the end came {end['at'] - done:.1f} s "
            f"after them with code {end['code']}, {end['left']} processes were left, "
            f"{time.monotonic() - end['at']:.1f} s to the next answer"
        )


def test_on_the_deadline(container: Container, capsys: pytest.CaptureFixture[str]) -> None:
    """A client mid-stream, and parked requests whose clients wait: it ends all the same."""
    boot, before = container.boot(), len(container.ends())
    parked: list[Pending] = [
        pd_request(
            container.prefill.url, container.engine.url, words(300, seed=20 + one), mark=PARK, number=one
        )
        for one in range(2)
    ]
    until(lambda: container.engine.metric(WAITING) == 2, "two parked")
    stream = Stream(container.engine.url, payload(words(40, seed=3), 460))
    until(lambda: len(stream.times) > 3, "the stream runs")
    ordered = time.monotonic()
    container.order("restart", 8)
    container.until_draining()
    assert refused(container)
    assert stream.ended is None
    end = container.until_ended(before + 1)
    ended = stream.wait()
    assert ended != "done", "it had three times as much to say as time"
    assert stream.tokens is None
    assert all(lost(one) for one in parked)
    container.until_new(boot)
    container.works()
    until(lambda: container.engine.metric(USAGE) == 0, "nothing is held")
    assert len(container.ends()) == before + 1
    with capsys.disabled():
        print(
            f"\non the deadline of 8 s: the end came {end['at'] - ordered:.1f} s after the order "
            f"with code {end['code']}, {end['left']} processes were left; the client saw: {ended}"
        )


def test_a_drain_ends_by_itself_and_nothing_restarts(container: Container) -> None:
    boot, before = container.boot(), len(container.ends())
    name = container.order("drain", 8)
    container.until_draining()
    assert refused(container)
    assert container.until_outcome(name)["state"] == "done", "nothing was open"
    until(lambda: not any(refused(container) for _ in range(12)), "the drain's deadline has passed")
    stale = container.order("restart", 30, boot="0123456789abcdef")
    assert container.until_outcome(stale)["state"] == "ignored"
    again = container.order("drain", 30)
    container.until_draining()
    container.order("undrain", 5)
    until(lambda: not any(refused(container) for _ in range(12)), "the drain is ended")
    # It came to rest, or was ended before it did.
    assert container.until_outcome(again)["state"] in ("done", "failed")
    assert (container.boot(), len(container.ends())) == (boot, before)
