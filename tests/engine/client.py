"""The clients of the test engines: a request through a pair, waiting, giving up. Standard library only."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.engine.model import words

MODEL_NAME = "tiny"
# Of an answer, on two cores that do as much besides: nothing is shown by how long it takes.
PATIENCE_S = 180.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said, and how long it took."""

    status: int
    body: Any
    seconds: float


class NoAnswerError(Exception):
    """The server refused, closed, or did not answer in time."""


def get(url: str, path: str, *, timeout_s: float = 30) -> Answer:
    """One GET on a connection of its own; the body is text. Raises NoAnswerError."""
    started = time.monotonic()
    connection = _connect(url, timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return Answer(response.status, response.read().decode(), time.monotonic() - started)
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswerError(f"GET {path}: {error!r}") from error
    finally:
        connection.close()


class Pending:
    """One POST that is under way in a thread of its own, and whose client may give up."""

    def __init__(
        self, url: str, path: str, payload: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float
    ) -> None:
        self._connection = _connect(url, timeout_s)
        self._answer: Answer | None = None
        self._trouble: Exception | None = None
        # Connected here, so that giving up has a socket to close whenever it comes.
        try:
            self._connection.connect()
        except OSError as error:
            raise NoAnswerError(f"POST {path}: {error!r}") from error
        self._thread = threading.Thread(
            target=self._run, args=(path, dict(payload), dict(headers)), daemon=True
        )
        self._thread.start()

    @property
    def open(self) -> bool:
        """Whether the client still waits."""
        return self._thread.is_alive()

    def give_up(self) -> None:
        """Close the connection as an impatient client does; the server then aborts the request."""
        sock = self._connection.sock
        if sock is not None and self.open:
            # Answered or closed in this very moment: then nothing is left to give up.
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=10)

    def answer(self, timeout_s: float = PATIENCE_S) -> Answer:
        """The answer, waited for at most that long. Raises NoAnswerError."""
        self._thread.join(timeout=timeout_s)
        if self._answer is not None:
            return self._answer
        raise NoAnswerError("still waiting" if self._trouble is None else repr(self._trouble))

    def _run(self, path: str, payload: dict[str, Any], headers: dict[str, str]) -> None:
        started = time.monotonic()
        try:
            body = json.dumps(payload)
            self._connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
            response = self._connection.getresponse()
            content = json.loads(response.read() or b"null")
            self._answer = Answer(response.status, content, time.monotonic() - started)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._trouble = error
        finally:
            self._connection.close()


def complete(
    url: str,
    prompt: str,
    *,
    max_tokens: int = 4,
    request_id: str | None = None,
    kv_transfer_params: Mapping[str, Any] | None = None,
    rank: int | None = None,
    timeout_s: float = PATIENCE_S,
    more: Mapping[str, Any] | None = None,
) -> Pending:
    """Start one completion of exactly `max_tokens` tokens."""
    payload: dict[str, Any] = {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        # A random model may say the end-of-text token at any time.
        "ignore_eos": True,
        **(more or {}),
    }
    if kv_transfer_params is not None:
        payload["kv_transfer_params"] = dict(kv_transfer_params)
    headers: dict[str, str] = {}
    if request_id is not None:
        headers["X-Request-Id"] = request_id
    if rank is not None:
        headers["X-data-parallel-rank"] = str(rank)
    return Pending(url, "/v1/completions", payload, headers, timeout_s)


def prefill_only(
    url: str,
    prompt: str,
    *,
    request_id: str | None = None,
    rank: int | None = None,
    timeout_s: float = PATIENCE_S,
) -> dict[str, Any]:
    """Have the prefill engine compute the prompt; return the kv_transfer_params to read its blocks with."""
    ask = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    answer = complete(
        url,
        prompt,
        max_tokens=1,
        request_id=request_id,
        kv_transfer_params=ask,
        rank=rank,
        timeout_s=timeout_s,
    ).answer(timeout_s)
    if answer.status != 200 or not answer.body.get("kv_transfer_params"):
        raise NoAnswerError(f"prefill answered {answer.status}: {str(answer.body)[:300]}")
    params: dict[str, Any] = answer.body["kv_transfer_params"]
    return params


def pd_request(
    prefill: str,
    decode: str,
    prompt: str,
    max_tokens: int = 4,
    *,
    mark: str = "plain-",
    number: int = 0,
    rank: int | None = None,
    timeout_s: float = PATIENCE_S,
) -> Pending:
    """One request through the pair, returned once the decode has it; the mark begins its id (marks.py)."""
    request_id = f"{mark}{number}"
    params = prefill_only(prefill, prompt, request_id=request_id, timeout_s=timeout_s)
    return complete(
        decode,
        prompt,
        max_tokens=max_tokens,
        request_id=request_id,
        kv_transfer_params=params,
        rank=rank,
        timeout_s=timeout_s,
    )


class Traffic:
    """Healthy requests through the pair, one after another with a pause between, until stopped."""

    def __init__(
        self, prefill: str, decode: str, *, pause_s: float = 0.5, tokens: int = 20, rank: int | None = None
    ) -> None:
        self.answered = 0
        self.failed = 0
        self._target = (prefill, decode)
        self._pause_s, self._tokens, self._rank = pause_s, tokens, rank
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(timeout=PATIENCE_S)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            prompt = words(64, seed=10_000 + number)
            try:
                pending = pd_request(
                    *self._target, prompt, self._tokens, mark="traffic-", number=number, rank=self._rank
                )
                ok = pending.answer().status == 200
            except NoAnswerError:
                ok = False
            self.answered += ok
            self.failed += not ok
            self._stop.wait(self._pause_s)


def _connect(url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
