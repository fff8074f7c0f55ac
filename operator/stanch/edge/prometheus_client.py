"""Asks a Prometheus by prometheus-api-client, and takes nothing on trust: one try, a time-out over all of it,
bounded answers, no redirect, no proxy and no netrc of the environment. Blocks: for a thread of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stanch.core.plan_conditions import Why
from stanch.edge.errors import FileError
from stanch.edge.prometheus_table import Credentials, credentials, normal
from stanch.edge.text import one_line

if TYPE_CHECKING:
    from prometheus_api_client import PrometheusConnect

# 500 engines are 4 MB.
MOST_BYTES = 64_000_000
_CHUNK = 1 << 16

UNREACHABLE = "PrometheusUnreachable"
UNAVAILABLE = "PrometheusUnavailable"
UNAUTHORIZED = "Unauthorized"
REFUSED = "QueryRefused"
NOT_PROMETHEUS = "NotPrometheus"
NO_CREDENTIALS = "CredentialsUnreadable"
NOT_ALLOWED = "PrometheusNotAllowed"


class PrometheusError(Exception):
    """No answer that can be used. why: as the watch's condition says it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.why = Why(reason, message)


@dataclass(frozen=True, slots=True)
class Answer:
    """result: of an instant vector. sent, received: seconds of our own clock. partial: why it may not be all
    of it, as the server says; None where it is."""

    result: list[Any]
    sent: float
    received: float
    partial: str | None = None


class Client:
    """Of one URL. Not for two threads at once. clock: our own, whose seconds an answer has."""

    def __init__(
        self, url: str, timeout_seconds: float, table: Path | None, clock: Callable[[], float]
    ) -> None:
        self._url = url
        self._seconds = timeout_seconds
        self._table = table
        self._clock = clock
        self._with: Credentials | None = None
        self._connect: PrometheusConnect | None = None
        self._last: dict[str, Any] = {}

    def ask(self, query: str) -> Answer:
        """The answer to an instant query, evaluated now. Raises PrometheusError."""
        try:
            url = normal(self._url)
        except ValueError as error:
            raise PrometheusError(NOT_PROMETHEUS, f"spec.prometheus.url: {error}") from None
        try:
            own = credentials(self._table, self._url)
        except FileError as error:
            raise PrometheusError(NO_CREDENTIALS, str(error)) from None
        if own is None:
            raise PrometheusError(NOT_ALLOWED, _not_allowed(url, self._table))
        if self._connect is None or own != self._with:
            self.close()
            self._connect, self._with = self._connected(url, own), own
        sent = self._clock()
        result = self._connect.custom_query(query)
        return Answer(result, sent, self._clock(), _partial(self._last))

    def close(self) -> None:
        if self._connect is not None:
            self._connect.close()
            self._connect = None

    def _connected(self, url: str, own: Credentials) -> PrometheusConnect:
        # Late: half of what these bring is never needed by an operator that scrapes.
        from prometheus_api_client import PrometheusConnect
        from requests import Response, Session
        from requests.exceptions import RequestException
        from urllib3.util.retry import Retry

        outer = self

        class Careful(Session):
            """What custom_query sends goes as a form, so that a query may be long, and what comes is looked
            at before that believes it."""

            def request(self, method: Any, url: Any, params: Any = None, *rest: Any, **more: Any) -> Any:
                end = time.monotonic() + outer._seconds
                more |= {"allow_redirects": False, "stream": True}
                try:
                    response: Response = super().request(method, url, None, params, *rest, **more)
                    with response:
                        body = outer._body(response, end)
                except (RequestException, OSError, ValueError) as error:
                    raise PrometheusError(
                        UNREACHABLE, f"{outer._url}: {_trouble(error, outer._seconds)}"
                    ) from None
                outer._last = outer._judged(response, body, own)
                return _Read(200, outer._last)

        session = Careful()
        session.trust_env = False
        session.verify = own.ca_file or True
        headers = {"User-Agent": "stanch", "Accept": "application/json", **dict(own.headers)}
        return PrometheusConnect(
            url,
            headers,
            retry=Retry(total=0),
            auth=own.basic,
            session=session,
            timeout=self._seconds,
            method="POST",
        )

    def _body(self, response: Any, end: float) -> bytes:
        got, size = [], 0
        for chunk in response.iter_content(_CHUNK):
            got.append(chunk)
            size += len(chunk)
            if size > MOST_BYTES:
                what = f"{self._url}: its answer is longer than {MOST_BYTES // 1_000_000} MB"
                raise PrometheusError(NOT_PROMETHEUS, what)
            if time.monotonic() > end:
                raise PrometheusError(
                    UNREACHABLE, f"{self._url}: its answer did not end within {self._seconds:g} s"
                )
        return b"".join(got)

    def _judged(self, response: Any, body: bytes, own: Credentials) -> dict[str, Any]:
        """The whole answer. Raises PrometheusError."""
        status, said = response.status_code, _json(body)
        if 300 <= status < 400:
            where = one_line(response.headers.get("Location", "nowhere").partition("?")[0], 200)
            raise self._error(NOT_PROMETHEUS, f"redirects to {where} (HTTP {status}), which is not followed")
        told = f": {one_line(str(said['error']), 300)}" if said is not None and said.get("error") else ""
        if status in (401, 403, 407):
            hint = "are the credentials of its entry in STANCH_PROMETHEUS_TABLE right?"
            if not own.any:
                hint = "STANCH_PROMETHEUS_TABLE has no credentials for this URL (docs/prometheus.md)"
            raise self._error(UNAUTHORIZED, f"answers HTTP {status}{told}: {hint}")
        if status in (400, 413, 414, 422):
            raise self._error(REFUSED, f"does not take the query (HTTP {status}){told}")
        if status == 429 or status >= 500:
            raise self._error(UNAVAILABLE, f"answers HTTP {status}{told}")
        if status != 200:
            hint = "is the path right (Mimir: /prometheus)?"
            raise self._error(NOT_PROMETHEUS, f"answers HTTP {status}{told}: {hint}")
        if said is None:
            kind = one_line(response.headers.get("Content-Type", "nothing said"), 100)
            hint = "is it the API of Prometheus, and not a page to log in?"
            raise self._error(NOT_PROMETHEUS, f"answers something that is no JSON object ({kind}): {hint}")
        data = said.get("data")
        if said.get("status") != "success" or not isinstance(data, dict):
            raise self._error(NOT_PROMETHEUS, f"gives no answer to a query{told}")
        if data.get("resultType") != "vector" or not isinstance(data.get("result"), list):
            raise self._error(NOT_PROMETHEUS, "answers something other than an instant vector")
        return said

    def _error(self, reason: str, what: str) -> PrometheusError:
        return PrometheusError(reason, f"{self._url} {what}")


def _not_allowed(url: str, table: Path | None) -> str:
    where = "STANCH_PROMETHEUS_TABLE is not set" if table is None else f"{table} has no entry for it"
    return (
        f"{url} is not asked, since {where}: the operator's administrator adds `- url: {url}` to that table "
        "(the chart's prometheus.table; docs/prometheus.md)"
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """As much of a response as custom_query looks at."""

    status_code: int
    said: dict[str, Any]

    def json(self) -> dict[str, Any]:
        return self.said


def _json(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _partial(said: dict[str, Any]) -> str | None:
    """Thanos warns of stores that did not answer, VictoriaMetrics says isPartial."""
    warnings = said.get("warnings") or []
    if not isinstance(warnings, list):
        warnings = [warnings]
    # What PromQL's own engine has to say of an expression is no word about data.
    real = [str(one) for one in warnings if not str(one).startswith("PromQL info")]
    if real:
        return one_line("; ".join(real), 300)
    return "it says isPartial" if said.get("isPartial") is True else None


def _trouble(error: Exception, seconds: float) -> str:
    """What went wrong on the way, as a sentence without the libraries' names for it."""
    from requests.exceptions import ConnectionError as NoConnection
    from requests.exceptions import SSLError, Timeout

    text = one_line(str(error), 2000)
    if isinstance(error, Timeout):
        return f"no answer within {seconds:g} s"
    if isinstance(error, SSLError):
        _, told, why = text.partition("certificate verify failed: ")
        why = f": {why.partition(' (_ssl')[0][:200]}" if told else ""
        return f"its TLS certificate is not accepted{why} (caFile in STANCH_PROMETHEUS_TABLE)"
    if "NameResolutionError" in text or "Failed to resolve" in text:
        return "its host name cannot be resolved"
    if "Connection refused" in text:
        return "the connection was refused"
    if isinstance(error, NoConnection):
        return "no connection, or it ended before the answer did"
    return f"no answer that can be read ({type(error).__name__})"
