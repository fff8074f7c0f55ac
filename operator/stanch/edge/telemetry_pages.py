"""What is answered on the port for metrics and health: the bytes of a request to those of an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from prometheus_client.exposition import choose_encoder

from stanch.edge.telemetry import Telemetry

TEXT: Final = "text/plain; charset=utf-8"
# A page that took so long to make is given again for so many times as long: whoever asks without end gets
# at most a tenth of our time.
_SHARE: Final = 9.0


@dataclass(frozen=True, slots=True)
class Answer:
    """data: the whole of it, head and body."""

    status: int
    data: bytes


def refusal(status: int, why: str, **headers: str) -> Answer:
    return _written(status, f"{why}\n".encode(), TEXT, **headers)


def _written(status: int, body: bytes, kind: str, **headers: str) -> Answer:
    known = {
        "Server": "stanch",
        "Date": formatdate(usegmt=True),
        "Content-Type": kind,
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        *(f"{key}: {value}" for key, value in known.items()),
    ]
    return Answer(status, "\r\n".join([*lines, "", ""]).encode() + body)


class Pages:
    """monotonic: the clock by which signs of life were given."""

    def __init__(self, telemetry: Telemetry, monotonic: Callable[[], float]) -> None:
        self._telemetry = telemetry
        self._monotonic = monotonic
        # By what the reader takes (one of two): the page, and until when it is given again.
        self._made: dict[str, tuple[Answer, float]] = {}

    def answer(self, request: bytes) -> Answer:
        """To bytes with an empty line somewhere; what comes after it is not looked at."""
        head = request.partition(b"\r\n\r\n")[0].decode("latin-1")
        first, *lines = head.split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[1].startswith("/") or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
            return refusal(400, "this is no HTTP/1 request")
        if words[0] != "GET":
            return refusal(405, "there is only GET", Allow="GET")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        path = words[1].partition("?")[0]
        if path == "/metrics":
            return self._metrics(headers.get("accept", ""))
        if path in ("/healthz", "/readyz"):
            health, now = self._telemetry.health, self._monotonic()
            problems = health.dead(now) if path == "/healthz" else health.unready(now)
            text = "".join(f"{line}\n" for line in problems or ("ok",)).encode()
            return _written(503 if problems else 200, text, TEXT)
        return refusal(404, "there are /metrics, /healthz and /readyz")

    def _metrics(self, accept: str) -> Answer:
        # Only whether it is OpenMetrics: nothing of what a stranger wrote comes back to it.
        wants = "application/openmetrics-text; version=1.0.0" if "openmetrics-text" in accept else ""
        found, until = self._made.get(wants, (None, 0.0))
        began = time.perf_counter()
        if found is None or began >= until:
            encode, kind = choose_encoder(wants)
            found = _written(200, encode(self._telemetry.families.registry), kind)
            now = time.perf_counter()
            self._made[wants] = found, now + _SHARE * (now - began)
        return found
