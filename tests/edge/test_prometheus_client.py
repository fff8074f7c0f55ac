"""One question over real HTTP: what is sent to whom, and what is made of whatever comes back."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stanch.edge import prometheus_client
from stanch.edge.prometheus_client import Answer, Client, PrometheusError
from tests.edge.authority import Authority
from tests.edge.prometheus_server import FakePrometheus, Reply, allowing, vector
from tests.engine.processes import free_ports

pytestmark = pytest.mark.unit
row = pytest.param

SERIES = [{"metric": {"__name__": "up"}, "value": [1.5, "1"]}]
GOOD = Reply(vector(SERIES))
HTML = {"Content-Type": "text/html"}
LOGIN = b"<!DOCTYPE html><html><body>Please log in</body></html>"


def error(kind: str, text: str) -> bytes:
    return json.dumps({"status": "error", "errorType": kind, "error": text}).encode()


def ask(url: str, seconds: float = 5.0, table: Path | None = None, query: str = "up") -> Answer:
    with TemporaryDirectory() as folder:
        client = Client(url, seconds, table or allowing(Path(folder), url), time.monotonic)
        try:
            return client.ask(query)
        finally:
            client.close()


def refused(url: str, seconds: float = 5.0, table: Path | None = None) -> tuple[str, str]:
    """Reason and sentence; the URL is in each sentence, and left out here."""
    with pytest.raises(PrometheusError) as caught:
        ask(url, seconds, table)
    why = caught.value.why
    return why.reason, why.message.replace(url, "URL")


def test_a_question_is_a_form_to_the_api_and_the_answer_has_our_times() -> None:
    long = "up" * 100_000
    with FakePrometheus(lambda _: GOOD) as fake:
        before = time.monotonic()
        answer = ask(f"{fake.url}/prometheus/", query=long)
        assert answer.result == SERIES
        assert answer.partial is None
        assert before <= answer.sent <= answer.received <= time.monotonic()
        (asked,) = fake.asked
    assert (asked.path, asked.query) == ("/prometheus/api/v1/query", long)
    assert asked.headers["User-Agent"] == "stanch"
    assert "Authorization" not in asked.headers


@pytest.mark.parametrize(
    ("reply", "reason", "says"),
    [
        row(Reply(LOGIN, headers=HTML), "NotPrometheus", "no JSON object (text/html)", id="login-page"),
        row(Reply(b""), "NotPrometheus", "no JSON object", id="empty"),
        row(Reply(b"[1, 2]"), "NotPrometheus", "no JSON object", id="a-list"),
        row(Reply(b'{"status": "succ'), "NotPrometheus", "no JSON object", id="cut-off"),
        row(Reply(b"[" * 100_000), "NotPrometheus", "no JSON object", id="nested-for-ever"),
        row(Reply(b"\xff\xfe{}"), "NotPrometheus", "no JSON object", id="not-utf8"),
        row(Reply(b"{}"), "NotPrometheus", "gives no answer", id="empty-object"),
        row(Reply(b'{"status": "success", "data": []}'), "NotPrometheus", "gives no answer", id="no-data"),
        row(
            Reply(b'{"status": "success", "data": {"resultType": "matrix", "result": []}}'),
            "NotPrometheus",
            "other than an instant vector",
            id="matrix",
        ),
        row(
            Reply(b'{"status": "success", "data": {"resultType": "vector", "result": {}}}'),
            "NotPrometheus",
            "other than an instant vector",
            id="result-is-no-list",
        ),
        row(Reply(error("execution", "too bad")), "NotPrometheus", "too bad", id="error-with-200"),
        row(Reply(LOGIN, 401, HTML), "Unauthorized", "HTTP 401: STANCH_PROMETHEUS_TABLE has no", id="401"),
        row(Reply(error("x", "no org id"), 401), "Unauthorized", "HTTP 401: no org id", id="401-of-Mimir"),
        row(Reply(b"", 403), "Unauthorized", "HTTP 403", id="403"),
        row(Reply(LOGIN, 404, HTML), "NotPrometheus", "HTTP 404: is the path right", id="404"),
        row(Reply(b"", 204), "NotPrometheus", "HTTP 204", id="204"),
        row(Reply(error("bad_data", "parse error"), 400), "QueryRefused", "400): parse error", id="400"),
        row(
            Reply(error("execution", "query processing would load too many samples\ninto memory"), 422),
            "QueryRefused",
            "(HTTP 422): query processing would load too many samples into memory",
            id="422",
        ),
        row(Reply(b"", 414), "QueryRefused", "HTTP 414", id="414"),
        row(Reply(b"slow down", 429), "PrometheusUnavailable", "HTTP 429", id="429"),
        row(Reply(error("timeout", "query timed out"), 503), "PrometheusUnavailable", "timed out", id="503"),
        row(Reply(LOGIN, 502, HTML), "PrometheusUnavailable", "HTTP 502", id="502"),
        row(
            Reply(b"", 302, {"Location": "https://login.example/?state=secret"}),
            "NotPrometheus",
            "redirects to https://login.example/ (HTTP 302), which is not followed",
            id="redirect",
        ),
        row(Reply(b"", 302, {}), "NotPrometheus", "redirects to nowhere", id="redirect-to-nowhere"),
        row(Reply(GOOD.body, wait=3), "PrometheusUnreachable", "no answer within 1 s", id="time-out"),
        row(Reply(GOOD.body, drip=0.1), "PrometheusUnreachable", "did not end within 1 s", id="drips"),
        row(
            Reply(GOOD.body, headers={"Content-Encoding": "gzip"}),
            "PrometheusUnreachable",
            "that can be read",
            id="not-gzip",
        ),
    ],
)
def test_what_is_no_answer(reply: Reply, reason: str, says: str) -> None:
    with FakePrometheus(lambda _: reply) as fake:
        found = refused(fake.url, 1.0)
        assert len(fake.asked) == 1, "one try"
    assert found[0] == reason
    assert says in found[1]
    assert found[1].startswith("URL")
    assert "Please" not in found[1], "what a page says is not repeated"


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_client, "MOST_BYTES", 1_000_000)
    with FakePrometheus(lambda _: Reply(vector(SERIES * 50_000))) as fake:
        assert refused(fake.url) == ("NotPrometheus", "URL: its answer is longer than 1 MB")


def test_nobody_there() -> None:
    started = time.monotonic()
    assert refused(f"http://127.0.0.1:{free_ports(1)}") == (
        "PrometheusUnreachable",
        "URL: the connection was refused",
    )
    assert time.monotonic() - started < 1.5, "it is tried once, without a pause"
    assert refused("http://no-such-name.invalid") == (
        "PrometheusUnreachable",
        "URL: its host name cannot be resolved",
    )


def test_a_url_that_is_none() -> None:
    assert refused("http://user:secret@p")[0] == "NotPrometheus"


@pytest.mark.parametrize(
    ("more", "partial"),
    [
        row({}, None, id="whole"),
        row({"warnings": []}, None, id="no-warnings"),
        row({"warnings": ["PromQL info: metric might not be a counter"]}, None, id="about-the-expression"),
        row({"infos": ["PromQL info: x"]}, None, id="infos"),
        row({"warnings": ["No StoreAPIs\nmatched"]}, "No StoreAPIs matched", id="Thanos"),
        row({"warnings": ["receive store x", "sidecar y"]}, "receive store x; sidecar y", id="several"),
        row({"warnings": "text"}, "text", id="not-a-list"),
        row({"isPartial": True}, "it says isPartial", id="VictoriaMetrics"),
        row({"isPartial": False}, None, id="VictoriaMetrics-whole"),
    ],
)
def test_partial_answers(more: dict[str, object], partial: str | None) -> None:
    with FakePrometheus(lambda _: Reply(vector(SERIES, **more))) as fake:
        assert ask(fake.url).partial == partial


def table(folder: Path, url: str, text: str) -> Path:
    path = folder / "table.yaml"
    path.write_text(f"- url: {url}\n{text}")
    return path


def test_bearer_basic_and_headers(tmp_path: Path) -> None:
    token, password = tmp_path / "token", tmp_path / "password"
    token.write_text("first\n")
    password.write_text("pa:ss")
    wanted = {"Authorization": "Bearer first"}

    def gate(_: str) -> Reply:
        headers = fake.asked[-1].headers
        right = all(headers.get(name) == value for name, value in wanted.items())
        return GOOD if right else Reply(error("auth", "who are you"), 401)

    with FakePrometheus(gate) as fake:
        assert refused(fake.url)[1] == (
            "URL answers HTTP 401: who are you: STANCH_PROMETHEUS_TABLE has no credentials for this URL "
            "(docs/prometheus.md)"
        )
        path = table(tmp_path, fake.url, f"  bearerTokenFile: {token}\n")
        client = Client(fake.url, 5.0, path, time.monotonic)
        assert client.ask("up").result == SERIES
        # A token that is renewed is used from the next question on.
        wanted["Authorization"] = "Bearer second"
        assert refused(fake.url, table=path) == (
            "Unauthorized",
            "URL answers HTTP 401: who are you: are the credentials of its entry in STANCH_PROMETHEUS_TABLE "
            "right?",
        )
        token.write_text("second")
        assert client.ask("up").result == SERIES
        client.close()
        wanted |= {"Authorization": "Basic c3RhbmNoOnBhOnNz", "X-Scope-OrgID": "gpu"}
        basic = f"  basicAuth: {{username: stanch, passwordFile: {password}}}\n"
        basic += "  headers: {X-Scope-OrgID: gpu}\n"
        assert ask(fake.url, table=table(tmp_path, fake.url, basic)).result == SERIES
        password.unlink()
        reason, text = refused(fake.url, table=table(tmp_path, fake.url, basic))
        assert (reason, text) == (
            "CredentialsUnreadable",
            f"{password}: the password cannot be read: No such file or directory",
        )


def test_credentials_are_not_sent_to_another_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes a LeakWatch chooses its URL. Nor do they follow a redirect, or come out of the
    environment."""
    (tmp_path / "token").write_text("secret")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with FakePrometheus(lambda _: GOOD) as thief:
        monkeypatch.setenv("HTTP_PROXY", thief.url)
        monkeypatch.setenv("http_proxy", thief.url)
        with FakePrometheus(lambda _: Reply(b"", 307, {"Location": f"{thief.url}/api/v1/query"})) as fake:
            text = f"  bearerTokenFile: {tmp_path}/token\n  headers: {{X-Scope-OrgID: gpu}}\n"
            path = table(tmp_path, fake.url, text)
            assert refused(fake.url, table=path)[0] == "NotPrometheus"
            assert fake.asked[0].headers["Authorization"] == "Bearer secret"
        # Nor is a server asked at all that the admin has not listed: we reach more than who writes a watch.
        assert refused(thief.url, table=path) == (
            "PrometheusNotAllowed",
            f"URL is not asked, since {path} has no entry for it: the operator's administrator adds "
            "`- url: URL` to that table (the chart's prometheus.table; docs/prometheus.md)",
        )
        with pytest.raises(PrometheusError, match="since STANCH_PROMETHEUS_TABLE is not set") as caught:
            Client(thief.url, 5.0, None, time.monotonic).ask("up")
        assert caught.value.why.reason == "PrometheusNotAllowed"
        assert thief.asked == []


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_an_authority_of_ones_own(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakePrometheus(lambda _: GOOD, authority.context) as fake:
        reason, text = refused(fake.url)
        assert reason == "PrometheusUnreachable"
        assert "TLS certificate is not accepted: unable to get local issuer certificate" in text
        # The environment of the process is no way in.
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.file))
        assert refused(fake.url)[0] == "PrometheusUnreachable"
        path = table(tmp_path, fake.url, f"  caFile: {authority.file}\n")
        assert ask(fake.url, table=path).result == SERIES
        monkeypatch.delenv("REQUESTS_CA_BUNDLE")
        other = tmp_path / "other"
        other.mkdir()
        path = table(tmp_path, fake.url, f"  caFile: {Authority(other).file}\n")
        assert "TLS certificate is not accepted" in refused(fake.url, table=path)[1]
