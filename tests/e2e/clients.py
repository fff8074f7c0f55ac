"""Clients as a shop has them: through the Services, a connection for each request, every answer checked."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.engine.client import MODEL_NAME, NoAnswerError, prefill_only
from tests.engine.model import words

# Two full blocks of prompt, and with steps of 50 ms an answer that takes two seconds.
PROMPT_TOKENS = 70
ANSWER_TOKENS = 40
PROMPTS = tuple(words(PROMPT_TOKENS, seed=seed) for seed in range(200, 208))
# Longer than any pause of an engine that will still answer, on a machine that does other things as well.
PATIENCE_S = 60.0
# An engine that turns a request away is out of its Service within a second, usually at once.
ELSEWHERE_S = 15.0


class LostError(Exception):
    """The request was lost; the message is how, in a word or two."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One request. began, ended: time.time(); lost: how, None where it got the right tokens; elsewhere: how
    often it was sent on to another engine (503 and `Connection: close`)."""

    number: int
    began: float
    ended: float
    lost: str | None
    elsewhere: int


class Clients:
    """A context: while it is open, requests begin `per_s` times a second; at its end all have ended.

    prefill, decode: URLs of the Services. expected: prompt -> the text that each answer must have.
    """

    def __init__(self, prefill: str, decode: str, expected: Mapping[str, str], per_s: float = 1.0) -> None:
        self._prefill, self._decode = prefill, decode
        self._expected = dict(expected)
        self._every_s = 1 / per_s
        self._ended: list[Ended] = []
        self._stop = threading.Event()
        # So many are never open at a time, unless an engine hangs; then the others go on.
        self._senders = ThreadPoolExecutor(64)
        self._pace = threading.Thread(target=self._run)

    def __enter__(self) -> Clients:
        self._pace.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._pace.join()
        self._senders.shutdown()

    @property
    def ended(self) -> list[Ended]:
        return list(self._ended)

    @property
    def lost(self) -> list[Ended]:
        return [one for one in self.ended if one.lost is not None]

    def story(self) -> str:
        """For a failure's report."""
        how = Counter(one.lost or "whole" for one in self.ended)
        return f"{dict(how)}, {sum(one.elsewhere for one in self.ended)} times sent elsewhere: {self.lost}"

    def _run(self) -> None:
        prompts = itertools.cycle(self._expected)
        due = time.monotonic()
        for number in itertools.count(1):
            self._senders.submit(self._one, number, next(prompts))
            due += self._every_s
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return

    def _one(self, number: int, prompt: str) -> None:
        began, elsewhere, lost = time.time(), 0, None
        request_id = f"shop-{number}"
        try:
            params = prefill_only(self._prefill, prompt, request_id=request_id, timeout_s=PATIENCE_S)
            end = time.monotonic() + ELSEWHERE_S
            while (text := decoded(self._decode, prompt, params, request_id)) is None:
                elsewhere += 1
                if time.monotonic() > end:
                    raise LostError("turned away")
                time.sleep(0.05)
            if text != self._expected[prompt]:
                lost = "other tokens"
        except LostError as error:
            lost = str(error)
        except NoAnswerError as error:
            lost = f"prefill: {error}"
        self._ended.append(Ended(number, began, time.time(), lost, elsewhere))


def decoded(
    decode: str, prompt: str, params: Mapping[str, Any], request_id: str, tokens: int = ANSWER_TOKENS
) -> str | None:
    """The text of the decode's half; None where the engine turned it away before it took it (503 and
    `Connection: close`). Raises LostError."""
    payload = {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "kv_transfer_params": dict(params),
    }
    parts = urlsplit(decode)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise LostError("not connected") from error
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        connection.request("POST", "/v1/completions", json.dumps(payload), headers)
        response = connection.getresponse()
        body = response.read()
    except TimeoutError as error:
        raise LostError(f"no answer within {PATIENCE_S:.0f} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise LostError("broken off") from error
    finally:
        connection.close()
    if response.status == 503 and response.getheader("Connection", "").lower() == "close":
        return None
    if response.status != 200:
        raise LostError(f"HTTP {response.status}")
    try:
        return str(json.loads(body)["choices"][0]["text"])
    except (ValueError, LookupError, TypeError) as error:
        raise LostError("HTTP 200 without an answer") from error


def learn(prefill: str, decode: str, prompts: Sequence[str] = PROMPTS) -> dict[str, str]:
    """What the engines answer to each prompt while nothing is wrong."""
    found = {}
    for number, prompt in enumerate(prompts):
        request_id = f"learn-{number}"
        params = prefill_only(prefill, prompt, request_id=request_id, timeout_s=PATIENCE_S)
        text = decoded(decode, prompt, params, request_id)
        assert text is not None, f"{decode} turns requests away"
        found[prompt] = text
    return found
