"""Answers of Prometheus: made of pages as it would scrape them, and by a server on loopback whose every
answer a test decides."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from stanch.edge.prometheus_query import MARK, NAMES
from tests.prometheus import written

Series = dict[str, Any]
# What makes an answer to one query.
Answer = Callable[[str], "Reply"]


def scraped(page: str, target: Mapping[str, str], t: float, now: float, up: float = 1) -> list[Series]:
    """The answer's series of a page that was scraped at t, of a target with these labels, asked for at now.
    As Prometheus does it, a label that both have is exported_ on the series."""
    found = [_series({"__name__": "up", **target}, now, up)]
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name not in NAMES:
                continue
            own = {f"exported_{k}" if k in target else k: v for k, v in sample.labels.items()}
            labels = {"__name__": sample.name, **target, **own}
            found.append(_series(labels, now, sample.value))
            if sample.name.endswith("num_requests_running"):
                found.append(_series({**target, **own, MARK: "yes"}, now, t))
    return found


def _series(labels: dict[str, str], now: float, value: float) -> Series:
    text = {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value, "NaN" if value != value else repr(value))
    return {"metric": labels, "value": [round(now, 3), text]}


def vector(result: Sequence[Series], **more: Any) -> bytes:
    return json.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": list(result)}, **more}
    ).encode()


@dataclass
class Reply:
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    # Before the answer, and between its bytes.
    wait: float = 0.0
    drip: float = 0.0


@dataclass
class Asked:
    path: str
    query: str
    headers: dict[str, str]


class FakePrometheus:
    """Use `with FakePrometheus(answer) as fake`; asked at fake.url. context: for TLS."""

    def __init__(self, answer: Answer, context: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                query = dict(urllib.parse.parse_qsl(form)).get("query", "")
                fake.asked.append(Asked(self.path, query, dict(self.headers.items())))
                reply = fake.answer(query)
                time.sleep(reply.wait)
                with contextlib.suppress(OSError):
                    self.send_response(reply.status)
                    for name, value in reply.headers.items():
                        self.send_header(name, value)
                    if not reply.drip:
                        self.send_header("Content-Length", str(len(reply.body)))
                    self.end_headers()
                    pieces = [reply.body] if not reply.drip else [bytes([b]) for b in reply.body]
                    for piece in pieces:
                        self.wfile.write(piece)
                        self.wfile.flush()
                        time.sleep(reply.drip)

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self._scheme = "http"
        if context is not None:
            self._scheme = "https"
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakePrometheus:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def allowing(folder: Path, *urls: str) -> Path:
    """An administrator's table of these, without credentials."""
    return written(folder / "allowed.yaml", [{"url": url} for url in urls])
