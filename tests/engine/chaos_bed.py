"""What the tests of the kit's chaos, cordon and restart share: an engine with an environment and a launcher
of its own, the pod's annotations as the kubelet shows them, and clients that see headers and tokens."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.engine import install
from tests.engine.bed import Bed, Engine, EngineError, Spec
from tests.engine.client import MODEL_NAME, NoAnswerError, complete
from tests.engine.model import words


class Fitted(Engine):
    """An engine of the bed with variables of its own, and with a command before its command."""

    def __init__(
        self, bed: Bed, spec: Spec, variables: Mapping[str, str], launcher: Sequence[str] = ()
    ) -> None:
        installed = install.locate(bed.version)
        if installed is None:
            raise EngineError(f"vLLM {bed.version} is not installed; run `make engines`")
        super().__init__(spec, installed, bed.directory / "model", bed.directory)
        self._variables, self._launcher = dict(variables), list(launcher)
        bed.engines.append(self)

    def _command(self) -> list[str]:
        return [*self._launcher, *super()._command()]

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), **self._variables}


def start(*engines: Engine) -> None:
    """All at once; returns when all are ready."""
    for engine in engines:
        engine.launch()
    for engine in engines:
        engine.wait_ready()


class Annotations:
    """A downward-API volume with one item, replaced as the kubelet replaces it: by renaming a symlink to a
    new directory (pkg/volume/util/atomic_writer.go)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = 0
        directory.mkdir(parents=True)
        self.path = directory / "annotations"
        self.path.symlink_to("..data/annotations")

    def write(self, values: Mapping[str, Mapping[str, object]]) -> None:
        """Annotation -> JSON object. ASCII only: there JSON's quotes are those of Go's %q."""
        self._number += 1
        lines = (f"{key}={json.dumps(json.dumps(value))}" for key, value in sorted(values.items()))
        link = self._directory / "..data"
        old = link.readlink() if link.is_symlink() else None
        fresh = self._directory / f"..{self._number}"
        fresh.mkdir()
        (fresh / "annotations").write_text("\n".join(lines))
        new = self._directory / "..data_tmp"
        new.symlink_to(fresh.name)
        new.replace(link)
        if old is not None:
            shutil.rmtree(self._directory / old)


class Reply(NamedTuple):
    """headers: names in lower case."""

    status: int
    headers: dict[str, str]
    body: Any


def post(url: str, path: str, body: object, headers: Mapping[str, str], timeout_s: float = 60) -> Reply:
    """One POST of JSON on a connection of its own. Raises NoAnswerError."""
    connection = _connection(url, timeout_s)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        text = response.read()
        return Reply(
            response.status,
            {key.lower(): value for key, value in response.getheaders()},
            json.loads(text) if text else None,
        )
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswerError(f"POST {path}: {error!r}") from error
    finally:
        connection.close()


def payload(prompt: str, max_tokens: int, **more: object) -> dict[str, object]:
    """A completion of exactly that many tokens."""
    return {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }


class Stream:
    """One streamed completion, read in a thread of its own.

    status: None before the answer began. times: monotonic seconds, one for each piece of text, which is a
    token or, where the server is busy, a few. tokens: what vLLM counted at the end, None where there was no
    end. ended: "done" after vLLM's last word, else what broke it off; None while it is open.
    """

    def __init__(self, url: str, body: Mapping[str, object], timeout_s: float = 120) -> None:
        self.status: int | None = None
        self.times: list[float] = []
        self.tokens: int | None = None
        self.ended: str | None = None
        self.started = time.monotonic()
        self._connection = _connection(url, timeout_s)
        self._thread = threading.Thread(target=self._run, args=(dict(body),), daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float = 120) -> str:
        """How it ended. Raises NoAnswerError where it is open after that time."""
        self._thread.join(timeout_s)
        if self.ended is None:
            raise NoAnswerError(f"still streaming after {timeout_s} s")
        return self.ended

    def _run(self, body: dict[str, object]) -> None:
        ended = "closed by the server"
        try:
            text = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
            self._connection.request("POST", "/v1/completions", text, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            self.status = response.status
            for line in response:
                word = line.strip().removeprefix(b"data: ")
                if word == b"[DONE]":
                    ended = "done"
                elif word.startswith(b'{"id"'):
                    now, said = time.monotonic(), json.loads(word)
                    if said["choices"]:
                        self.times.append(now)
                    else:
                        self.tokens = said["usage"]["completion_tokens"]
        except (OSError, http.client.HTTPException) as error:
            ended = repr(error)
        finally:
            self._connection.close()
            self.ended = ended


class Flow:
    """Completions at one engine, one after another, until the block ends. statuses: of those answered;
    broken: those that got no answer."""

    def __init__(self, url: str, tokens: int = 8) -> None:
        self.statuses: list[int] = []
        self.broken: list[str] = []
        self._url, self._tokens = url, tokens
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(timeout=90)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.05):
            number += 1
            try:
                pending = complete(self._url, words(40, seed=50_000 + number), max_tokens=self._tokens)
                self.statuses.append(pending.answer().status)
            except NoAnswerError as error:
                self.broken.append(str(error))


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
