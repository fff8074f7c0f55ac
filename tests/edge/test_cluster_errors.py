"""Which error an answer of the API server is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stanch.edge.cluster import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unreachable,
)
from stanch.edge.cluster.errors import Expired, error_of

pytestmark = pytest.mark.unit


def status(code: int, reason: str = "", **more: Any) -> bytes:
    return json.dumps(
        {"kind": "Status", "code": code, "reason": reason, "message": "so it is", **more}
    ).encode()


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Forbidden),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", Invalid),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Expired),
        (413, "RequestEntityTooLarge", Invalid),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", Unreachable),
        (500, "InternalError", Unreachable),
        (503, "ServiceUnavailable", Unreachable),
        (504, "Timeout", Unreachable),
    ],
)
def test_by_code_and_reason(code: int, reason: str, kind: type[ClusterError]) -> None:
    error = error_of("get pods a in b", code, status(code, reason), {})
    assert type(error) is kind
    assert str(error) == f"get pods a in b: so it is (HTTP {code})"
    assert error.code == code
    assert error.status["reason"] == reason


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>\n<h1>Bad Gateway</h1>\x1b[31m", "<html> <h1>Bad Gateway</h1>?[31m"),
        (b"", "no reason given"),
        (b"[1]", "[1]"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (
            json.dumps({"kind": "Pod", "message": "no Status"}).encode(),
            '{"kind": "Pod", "message": "no Status"}',
        ),
        (b"x" * 9999, "x" * 500),
    ],
    ids=["html", "nothing", "list", "no text", "another kind", "long"],
)
def test_what_is_no_status(body: bytes, said: str) -> None:
    error = error_of("list pods", 502, body, {})
    assert str(error) == f"list pods: {said} (HTTP 502)"
    assert error.status == {}
    assert error.causes == []


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"Retry-After": "3"}, {}, 3.0),
        ({}, {"retryAfterSeconds": 4}, 4.0),
        ({"Retry-After": "3"}, {"retryAfterSeconds": 4}, 3.0),
        ({"Retry-After": "9999"}, {}, 60.0),
        ({"Retry-After": "-1"}, {}, 0.0),
        ({"Retry-After": "Fri, 31 Dec 2026 23:59:59 GMT"}, {}, None),
        ({"Retry-After": "nan"}, {}, None),
        ({}, {}, None),
        ({}, None, None),
    ],
    ids=["header", "status", "both", "too long", "negative", "date", "no number", "neither", "no details"],
)
def test_when_to_come_back(headers: dict[str, str], details: Any, seconds: float | None) -> None:
    error = error_of("list pods", 429, status(429, details=details), headers)
    assert isinstance(error, Unreachable)
    assert error.retry_after == seconds
