"""What is scraped: a name and the address of a /metrics page, checked before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from urllib.parse import quote

from yarl import URL

from stanch.edge.families import names_to_ask

METRICS_PATH = "/metrics"


@dataclass(frozen=True, slots=True)
class Target:
    """One server to scrape.

    url: its base URL ("http://10.0.0.7:8000", then /metrics is added) or the URL of its metrics page. A URL
    with a query of its own is asked as it is, unfiltered. evidence: ask also for what tells a role.
    Raises ValueError with one sentence where the URL cannot be one.
    """

    name: str
    url: str
    evidence: bool = False
    page: URL = field(init=False, repr=False, compare=False)
    filtered_page: URL | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError(f"the target {self.url!r} needs a name")
        page = _metrics_url(self.url)
        object.__setattr__(self, "page", page)
        object.__setattr__(
            self, "filtered_page", None if page.query_string else _filtered(page, self.evidence)
        )

    @property
    def shown(self) -> str:
        """The URL as it may be printed: without a user and a password."""
        url = URL(self.url)
        return self.url if url.raw_user is None and url.raw_password is None else str(url.with_user(None))


def _metrics_url(text: str) -> URL:
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError(f"{text!r} is not a URL: it has a space or a control character in it")
    try:
        url = URL(text)
        port = url.port
    except ValueError as error:
        raise ValueError(f"{text!r} is not a URL: {error}") from None
    if url.scheme not in ("http", "https"):
        raise ValueError(f"{text!r} must start with http:// or https://, for example http://10.0.0.7:8000")
    if not url.host:
        raise ValueError(f"{text!r} names no host, for example http://10.0.0.7:8000")
    if port == 0:
        raise ValueError(f"{text!r} has port 0, which nobody listens on")
    if url.raw_fragment:
        raise ValueError(f"{text!r} has a fragment (#{url.fragment}), which a server never sees")
    if url.raw_path in ("", "/") and not url.query_string:
        url = url.with_path(METRICS_PATH)
    return url


def _filtered(page: URL, evidence: bool) -> URL:
    """The page for the needed families only.

    The slash matters: in vLLM 0.9 .. 0.33 exactly /metrics is another handler, which ignores the query
    (prometheus_fastapi_instrumentator); all else below it is prometheus_client's, which honours it.
    """
    return URL(f"{str(page).rstrip('/')}/?{_query(evidence)}", encoded=True)


@cache
def _query(evidence: bool) -> str:
    return "&".join(f"name%5B%5D={quote(name, safe=':')}" for name in names_to_ask(evidence))
