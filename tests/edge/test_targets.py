"""Which engines to look at: URLs, pairs and files of them, and what is said of those that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.edge.errors import FileError
from stanch.edge.targets import TargetError, Watched, distinct, from_file, from_pair, from_url, role_of

pytestmark = pytest.mark.unit
row = pytest.param


@pytest.mark.parametrize(
    ("url", "name", "page", "base"),
    [
        row("http://h:8000", "h:8000", "http://h:8000/metrics", "http://h:8000", id="plain"),
        row("http://h:8000/", "h:8000", "http://h:8000/metrics", "http://h:8000", id="slash"),
        row("http://h:8000/metrics", "h:8000", "http://h:8000/metrics", "http://h:8000", id="page"),
        row("http://h:8000/metrics/", "h:8000", "http://h:8000/metrics/", "http://h:8000", id="page-slash"),
        row("https://h/a/metrics", "h/a", "https://h/a/metrics", "https://h/a", id="below-a-path"),
        row("http://[::1]:8000", "[::1]:8000", "http://[::1]:8000/metrics", "http://[::1]:8000", id="ipv6"),
        row(
            "http://u:p@h:1", "h:1", "http://u:p@h:1/metrics", "http://u:p@h:1", id="no-password-in-the-name"
        ),
    ],
)
def test_a_url(url: str, name: str, page: str, base: str) -> None:
    one = from_url(url, Role.DECODE, Policy())
    assert (one.target.name, str(one.target.page), one.base) == (name, page, base)
    assert one.target.shown == url.replace("u:p@", "")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        row("h:8000", "must start with http:// or https://", id="no-scheme"),
        row("ftp://h:8000", "must start with http:// or https://", id="ftp"),
        row("http://", "names no host", id="no-host"),
        row("http://h:99999", "is not a URL", id="port-too-high"),
        row("http://h:x", "is not a URL", id="port-no-number"),
        row("http://h:0", "has port 0", id="port-0"),
        row("http://h h", "has a space", id="space"),
        row("http://h\x1b[2J", "control character", id="control-character"),
        row("http://h#x", "has a fragment", id="fragment"),
        row("http://[::1", "is not a URL", id="half-an-ipv6"),
        row("", "must start with", id="empty"),
    ],
)
def test_what_is_no_url(url: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        from_url(url, None, Policy())


@pytest.mark.parametrize(
    ("pair", "url", "role"),
    [
        row("http://h:1=decode", "http://h:1", Role.DECODE, id="decode"),
        row("http://h:1=prefill", "http://h:1", Role.PREFILL, id="prefill"),
        row("http://h:1=both", "http://h:1", Role.BOTH, id="both"),
        row("http://h:1=auto", "http://h:1", None, id="auto"),
        row("http://h:1/metrics?a=b=decode", "http://h:1/metrics?a=b", Role.DECODE, id="a-query"),
    ],
)
def test_a_pair(pair: str, url: str, role: Role | None) -> None:
    one = from_pair(pair, Policy())
    assert (one.target.url, one.role, one.target.evidence) == (url, role, role is None)


@pytest.mark.parametrize(
    "pair", ["http://h:1", "http://h:1=", "http://h:1=Decode", "http://h:1=unknown", "=decode", "decode", ""]
)
def test_what_is_no_pair(pair: str) -> None:
    with pytest.raises(TargetError):
        from_pair(pair, Policy())


def test_a_word_that_is_no_role() -> None:
    with pytest.raises(TargetError, match="'worker' is not a role: say one of decode, prefill, both, auto"):
        role_of("worker")


@pytest.mark.parametrize(
    "urls",
    [
        row(("http://h:1", "http://h:1"), id="same"),
        row(("http://h:1", "http://h:1/metrics"), id="same-page"),
        row(("http://h:1", "https://h:1"), id="same-name"),
    ],
)
def test_one_that_is_given_twice(urls: tuple[str, ...]) -> None:
    with pytest.raises(TargetError, match="is given twice"):
        distinct([from_url(url, None, Policy()) for url in urls])


def load(folder: Path, text: str) -> list[Watched]:
    (folder / "targets.yaml").write_text(text)
    return from_file(folder / "targets.yaml", Policy(kv_pin_seconds=7.0, lease_seconds=9.0))


def test_a_file(tmp_path: Path) -> None:
    text = """
targets:
  - url: http://a:8000
    role: prefill
    name: prefill-1
    deployment: blue
    leaseSeconds: 30
  - &decode
    url: http://b:8000
    role: decode
    kvPinSeconds: 480
  - {<<: *decode, url: http://c:8000}
  - url: http://d:8000
"""
    found = load(tmp_path, text)
    shown = [
        (w.target.name, w.role, w.deployment, w.policy.kv_pin_seconds, w.policy.lease_seconds) for w in found
    ]
    assert shown == [
        ("prefill-1", Role.PREFILL, "blue", 7.0, 30.0),
        ("b:8000", Role.DECODE, "", 480.0, 9.0),
        ("c:8000", Role.DECODE, "", 480.0, 9.0),
        ("d:8000", None, "", 7.0, 9.0),
    ]


GOOD = "targets:\n  - url: http://a:1\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        row("", [":1: targets is missing"], id="empty"),
        row("targets:\n", [":1: targets must be a list, not null"], id="no-list"),
        row("targets: []\n", [":1: targets must not be empty"], id="empty-list"),
        row("targets: {url: http://a:1}\n", [":1: targets must be a list, not a mapping"], id="a-mapping"),
        row(
            "targets: [http://a:1]\n", [":1: targets.0 must be a mapping, not 'http://a:1'"], id="urls-alone"
        ),
        row(
            "url: http://a:1\n",
            [":1: targets is missing", ":1: url is not a known key; known are targets"],
            id="flat",
        ),
        row(
            GOOD + "  - url: http://b:1\n    roles: decode\n",
            [":4: targets.1.roles is not a known key; did you mean role?"],
            id="nearly-known",
        ),
        row(
            GOOD + "    role: worker\n",
            [":3: targets.0.role must be 'decode', 'prefill', 'both' or 'auto', not 'worker'"],
            id="no-role",
        ),
        row(GOOD + "\n  - role: decode\n", [":4: targets.1.url is missing"], id="no-url"),
        row(
            GOOD + "  - url: b:1\n",
            [":3: targets.1.url: 'b:1' must start with http:// or https://"],
            id="no-scheme",
        ),
        row(
            GOOD + "    name: ''\n",
            [":3: targets.0.name must have at least 1 character, not ''"],
            id="empty-name",
        ),
        row(
            GOOD + "    kvPinSeconds: 480s\n",
            [":3: targets.0.kvPinSeconds must be a number without a unit, not '480s' (allowed: 0 to 86400)"],
            id="unit",
        ),
        row(
            GOOD + "    leaseSeconds: 0\n",
            [":3: targets.0.leaseSeconds must be at least 1, not 0 (allowed: 1 to 86400)"],
            id="no-lease",
        ),
        row(
            GOOD + "    role: x\n  - role: y\n    url: z\n",
            [":3: targets.0.role", ":5: targets.1.url", ":4: targets.1.role"],
            id="several",
        ),
        row(
            GOOD + "  - url: http://a:1/metrics\n",
            [":3: the url http://a:1/metrics is given twice"],
            id="same-page",
        ),
        row(
            "targets:\n  - {url: http://a:1, name: x}\n  - {url: http://b:1, name: x}\n",
            [":3: the name x is given twice"],
            id="same-name",
        ),
        row(
            GOOD + "  - url: http://b:1\n    url: http://c:1\n",
            [":4: url is given twice"],
            id="duplicate-key",
        ),
    ],
)
def test_what_a_file_may_not_say(tmp_path: Path, text: str, expected: list[str]) -> None:
    with pytest.raises(FileError) as caught:
        load(tmp_path, text)
    lines = [line.removeprefix(str(tmp_path / "targets.yaml")) for line in str(caught.value).splitlines()]
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)
