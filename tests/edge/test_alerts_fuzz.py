"""Ten thousand payloads that nobody should send: an answer to each, no incident but of a whole alert."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stanch.edge.alerts_intake import Intake, Taken
from stanch.edge.alerts_payload import Payload, PayloadError, parse
from stanch.edge.alerts_table import DEFAULT
from stanch.edge.cluster import Cluster
from stanch.edge.journal import Journal
from stanch.edge.telemetry import Telemetry
from tests.edge.alerts_world import SMALL, TOKEN, World, alert, answer, payload, play

pytestmark = pytest.mark.unit

MANY = 10_000
OVER_HTTP = 500
_ODD: list[Any] = [
    None, True, False, 0, -1, 1 << 70, 1e308, "", " ", "\x00", "\ud7ff", "💥" * 300, "a" * 5000, [], {},
    [[]], {"": ""}, [None], "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999-23:59", "4", "firing",
    "resolved", "../../../etc/passwd", "%00", "-", "d0\n", "{{.}}", "'; drop table", "NaN",
    "2026-02-30T00:00:00Z",
]  # fmt: skip


def mutant(dice: random.Random) -> bytes:
    """A payload with a few things wrong, as an object or in its bytes."""
    found: Any = payload(*(alert(fingerprint=f"{n}") for n in range(dice.randint(0, 3))))
    for _ in range(dice.choice((0, 1, 1, 2, 5))):
        spoil(found, dice)
    # As text, so that what Python cannot write down (lone surrogates) also comes.
    raw = bytearray(json.dumps(found, ensure_ascii=dice.random() < 0.5).encode(errors="surrogatepass"))
    for _ in range(dice.choice((0, 0, 0, 1, 20))):
        place = dice.randrange(len(raw) or 1)
        kind = dice.randrange(4)
        if kind == 0:
            raw[place:place] = bytes(dice.randrange(256) for _ in range(dice.randint(1, 8)))
        elif kind == 1:
            del raw[place : place + dice.randint(1, 50)]
        elif kind == 2 and raw:
            raw[place % len(raw)] = dice.randrange(256)
        else:
            raw[place:place] = raw[place : place + 200]
    return bytes(raw)


def spoil(data: Any, dice: random.Random) -> None:
    """Change one thing, somewhere."""
    while True:
        if not isinstance(data, (dict, list)) or not data:
            return
        key: Any = dice.choice(list(data)) if isinstance(data, dict) else dice.randrange(len(data))
        if isinstance(data[key], (dict, list)) and data[key] and dice.random() < 0.7:
            data = data[key]
            continue
        break
    change: Callable[[], None] = dice.choice(
        [
            lambda: data.__setitem__(key, dice.choice(_ODD)),
            lambda: data.__delitem__(key),
            lambda: data.__setitem__(key, [data[key]]),
            lambda: data.__setitem__(key, {"x": data[key]}),
        ]
    )
    change()


def whole(raw: bytes) -> Payload | None:
    """What a strict reading of the same bytes finds; None for what is no payload."""
    try:
        return parse(raw)
    except PayloadError as error:
        errors = error.errors
    assert errors
    assert all(text and text.isprintable() for text in errors), errors
    return None


def test_of_ten_thousand_each_is_taken_whole_or_refused_with_the_field() -> None:
    """The reading and the table, without the sockets between them: no exception but the one that says why."""
    dice = random.Random(20261130)
    log = io.StringIO()

    async def script() -> Counter[str]:
        counts: Counter[str] = Counter()
        telemetry = Telemetry(Journal(log))
        for number in range(MANY):
            found = whole(mutant(dice))
            if found is None:
                counts["refused"] += 1
                continue
            intake = Intake(Cluster("unused"), telemetry.families, telemetry.note, DEFAULT)
            taken = intake.take(found)
            assert isinstance(taken, Taken), number
            told = taken.accepted + taken.duplicate + taken.resolved + taken.unmapped
            assert told == len(found.alerts)
            json.dumps(taken.as_data(), allow_nan=False).encode()
            counts["taken"] += 1
        return counts

    counts = asyncio.run(script())
    assert counts["taken"] > MANY / 20
    assert counts["refused"] > MANY / 2
    assert "Traceback" not in log.getvalue()


def test_over_http_there_is_never_a_500_and_never_an_incident_from_garbage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    dice = random.Random(7)

    async def script(w: World) -> None:
        w.pod()
        codes: Counter[int] = Counter()
        expected: set[str] = set()
        for _ in range(OVER_HTTP):
            raw = mutant(dice)
            found = whole(raw)
            got = await w.send(raw)
            codes[got.code] += 1
            assert (got.code == 200) is (found is not None), raw
            assert got.data["schema"] == "stanch.alerts/1"
            if found is not None:
                expected |= {one.fingerprint for one in found.alerts}
        assert set(codes) == {200, 400}
        assert {one["metadata"]["labels"]["stanch.dev/alert"] for one in w.api.incidents} <= expected
        assert all(one["spec"]["podRef"] == {"name": "d0", "uid": "uid-d0"} for one in w.api.incidents)
        # The bytes around it, too.
        head = f"POST /alerts/v4 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
        before = len(w.api.incidents)
        for _ in range(OVER_HTTP):
            request = bytearray(head + b"Content-Length: 2\r\n\r\n{}")
            for _ in range(dice.randint(1, 6)):
                request[dice.randrange(len(request))] = dice.randrange(256)
            back = await w.raw(bytes(request), end=True)
            assert back == b"" or answer(back).code in range(400, 500), request
        assert len(w.api.incidents) == before

    play(script, tmp_path, bounds=replace(SMALL, rate=1e6, burst=10**6, head_seconds=2.0))
    assert caplog.records == []
    assert "Traceback" not in capfd.readouterr().err
