"""The admin's table of servers: which URL may be asked, and how; what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from stanch.edge.errors import FileError
from stanch.edge.prometheus_table import Credentials, credentials

pytestmark = pytest.mark.unit
row = pytest.param

URL = "https://mimir.example/prometheus"


def table(folder: Path, text: str) -> Path:
    path = folder / "prometheus.yaml"
    path.write_text(text)
    return path


def test_credentials_of_each_kind(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc.def\n")
    (tmp_path / "password").write_text("se cret ü\n")
    (tmp_path / "ca.crt").write_text("")
    path = table(
        tmp_path,
        f"""
- url: {URL}
  bearerTokenFile: {tmp_path}/token
  caFile: {tmp_path}/ca.crt
  headers: {{X-Scope-OrgID: "gpu|web"}}
- url: http://thanos.monitoring:10902
  basicAuth: {{username: stanch, passwordFile: {tmp_path}/password}}
- url: http://plain:9090
""",
    )
    mimir, thanos = credentials(path, URL), credentials(path, "http://thanos.monitoring:10902/")
    assert mimir is not None
    assert thanos is not None
    assert dict(mimir.headers) == {"Authorization": "Bearer abc.def", "X-Scope-OrgID": "gpu|web"}
    assert (mimir.basic, mimir.ca_file, mimir.any) == (None, str(tmp_path / "ca.crt"), True)
    assert thanos.basic == (b"stanch", "se cret ü".encode())
    assert "cret" not in repr(thanos)
    assert "abc" not in repr(mimir)
    assert credentials(path, "http://plain:9090") == Credentials()
    (tmp_path / "token").write_text("renewed")
    renewed = credentials(path, URL)
    assert renewed is not None
    assert dict(renewed.headers)["Authorization"] == "Bearer renewed"


@pytest.mark.parametrize(
    ("url", "same"),
    [
        row("https://mimir.example/prometheus/", True, id="slash-at-the-end"),
        row("https://mimir.example:443/prometheus", True, id="its-own-port"),
        row("HTTPS://MIMIR.example/prometheus", True, id="capitals"),
        row("http://mimir.example/prometheus", False, id="without-TLS"),
        row("https://mimir.example/", False, id="another-path"),
        row("https://mimir.example/prometheus/x", False, id="below-it"),
        row("https://mimir.example/PROMETHEUS", False, id="paths-have-capitals"),
        row("https://mimir.example:8443/prometheus", False, id="another-port"),
        row("https://mimir.example.evil/prometheus", False, id="another-host"),
        row("https://evil/https://mimir.example/prometheus", False, id="inside-a-path"),
    ],
)
def test_credentials_go_to_their_url_only(tmp_path: Path, url: str, same: bool) -> None:
    path = table(tmp_path, f'- {{url: "{URL}", headers: {{X-Scope-OrgID: a}}}}\n')
    assert (credentials(path, url) is not None) is same


def test_nothing_is_asked_without_a_table_or_by_an_empty_one(tmp_path: Path) -> None:
    assert credentials(None, URL) is None
    assert credentials(table(tmp_path, ""), URL) is None
    assert credentials(table(tmp_path, "[]\n"), URL) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        row("url: http://p\n", ":1: must be a list, not a mapping", id="a-mapping"),
        row("- {}\n", ":1: 0.url is missing", id="no-url"),
        row("- url: http://p\n- url: p:9090\n", ":2: 1.url: 'p:9090' must start with", id="no-scheme"),
        row("- url: http://a:b@p\n", ":1: 0.url: credentials do not belong into a URL", id="user-in-url"),
        row("- url: http://p?x\n", ":1: 0.url: 'http://p?x' must have neither ? nor #", id="query"),
        row("- url: http://p\n  token: x\n", ":2: 0.token is not a known key", id="unknown-key"),
        row(
            "- url: http://p\n\n- url: http://p/\n",
            ":3: the url http://p/ is given twice",
            id="twice",
        ),
        row(
            "- url: http://p\n  bearerTokenFile: /a\n  basicAuth: {username: u, passwordFile: /b}\n",
            ":1: bearerTokenFile and basicAuth exclude each other",
            id="two-kinds",
        ),
        row("- url: http://p\n  caFile: /a\n", ":2: caFile is for https", id="ca-without-tls"),
        row(
            "- url: http://p\n  headers:\n    Authorization: Bearer x\n",
            ":2: 0.headers: Authorization is not to be set here",
            id="authorization",
        ),
        row("- url: http://p\n  headers: {'a b': x}\n", ":2: 0.headers: 'a b' is not the name", id="header"),
        row('- url: http://p\n  headers: {a: "x\\ny"}\n', ":2: 0.headers: the value of a", id="newline"),
        row("- url: [\n", ":2: is not YAML", id="no-yaml"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = table(tmp_path, text)
    with pytest.raises(FileError) as caught:
        credentials(path, URL)
    assert str(caught.value).startswith(f"{path}{said}")


@pytest.mark.parametrize(
    ("held", "said"),
    [
        row(None, "No such file", id="absent"),
        row(b"", "holds no token", id="empty"),
        row(b"two words", "holds no token", id="two-words"),
        row(b"a\nb", "holds no token", id="two-lines"),
        row("ü".encode(), "holds no token", id="not-ascii"),
        row(b"\xff\xfe", "holds no token", id="not-text"),
        row(b"x" * 70_000, "larger than 64 kB", id="huge"),
    ],
)
def test_a_token_that_is_none(tmp_path: Path, held: bytes | None, said: str) -> None:
    token = tmp_path / "token"
    if held is not None:
        token.write_bytes(held)
    path = table(tmp_path, f"- url: {URL}\n  bearerTokenFile: {token}\n")
    with pytest.raises(FileError) as caught:
        credentials(path, URL)
    assert str(token) in str(caught.value)
    assert said in str(caught.value)
    if shown := (held or b"")[:40].decode(errors="ignore"):
        assert shown not in str(caught.value)
    assert credentials(path, "http://another") is None, "nothing is read for others"


def test_an_authority_that_is_not_there(tmp_path: Path) -> None:
    path = table(tmp_path, f"- url: {URL}\n  caFile: {tmp_path}/none.crt\n")
    with pytest.raises(FileError, match="no such file"):
        credentials(path, URL)
