"""The admin's table of the Prometheus servers that a LeakWatch may name (STANCH_PROMETHEUS_TABLE).

Only a URL of this file is asked, with the credentials that stand beside it: whoever may write a LeakWatch
must choose neither where a token is sent nor what the operator, which reaches more than they do, asks. The
file and what it names are read at each use, so a token that is renewed is used from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from yarl import URL

from stanch.edge.errors import FileError
from stanch.edge.secret_file import read_password, read_secret
from stanch.edge.yaml_file import Place, load


def normal(url: str) -> str:
    """The URL in the form in which two are compared: no slash at the end, the scheme's own port left out, the
    host in small letters. Raises ValueError where it is no plain http or https URL."""
    found = URL(url)
    if found.scheme not in ("http", "https") or not found.host:
        raise ValueError(f"{url!r} must start with http:// or https:// and name a host")
    if found.raw_user is not None or found.raw_password is not None:
        raise ValueError("credentials do not belong into a URL: use bearerTokenFile or basicAuth")
    if found.raw_query_string or found.raw_fragment or "?" in url or "#" in url:
        raise ValueError(f"{url!r} must have neither ? nor #: /api/v1/query is added to it")
    return str(found).rstrip("/")


def _plain(url: str) -> str:
    normal(url)
    return url


def _header(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _token(name):
            raise ValueError(f"{name!r} is not the name of a header")
        if name.lower() in ("authorization", "host", "content-length", "content-type"):
            raise ValueError(
                f"{name} is not to be set here; for credentials use bearerTokenFile or basicAuth"
            )
        if not (value.isascii() and value.isprintable()) or value != value.strip():
            raise ValueError(f"the value of {name} must be plain ASCII without spaces around it")
    return headers


def _token(text: str) -> bool:
    return bool(text) and text.isascii() and all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in text)


class _BasicAuth(BaseModel):
    model_config = ConfigDict(extra="forbid")

    username: Annotated[str, Field(min_length=1, max_length=1024, pattern="^[^:\\x00-\\x1f]+$")]
    password_file: Path = Field(alias="passwordFile")


class Entry(BaseModel):
    """One server. url: as a LeakWatch gives it in spec.prometheus.url."""

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, AfterValidator(_plain)]
    bearer_token_file: Path | None = Field(None, alias="bearerTokenFile")
    basic_auth: _BasicAuth | None = Field(None, alias="basicAuth")
    ca_file: Path | None = Field(None, alias="caFile")
    headers: Annotated[dict[str, str], AfterValidator(_header), Field(max_length=32)] = {}


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid")

    servers: Annotated[list[Entry], Field(max_length=1000)]


@dataclass(frozen=True, slots=True)
class Credentials:
    """What goes with a query. ca_file: whom to trust, None for the public authorities."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    basic: tuple[bytes, bytes] | None = field(default=None, repr=False)
    ca_file: str | None = None

    @property
    def any(self) -> bool:
        """Whether it says who asks."""
        return bool(self.headers or self.basic)


def credentials(table: Path | None, url: str) -> Credentials | None:
    """For that URL by the table as it is now; None where it is not in it, and so is not to be asked. Raises
    FileError, which names file and line."""
    if table is None:
        return None
    wanted = normal(url)
    servers = load(table, Table, _checked, list_in="servers").servers
    entry = next((one for one in servers if normal(one.url) == wanted), None)
    if entry is None:
        return None
    headers = dict(entry.headers)
    if entry.bearer_token_file is not None:
        token = read_secret(entry.bearer_token_file, "token", word=True)
        headers["Authorization"] = f"Bearer {token}"
    basic = None
    if entry.basic_auth is not None:
        password = read_password(entry.basic_auth.password_file, "password")
        basic = entry.basic_auth.username.encode(), password
    ca_file = entry.ca_file
    if ca_file is not None and not ca_file.is_file():
        raise FileError(f"{ca_file}: cannot be read: no such file (caFile of {entry.url})")
    return Credentials(tuple(sorted(headers.items())), basic, None if ca_file is None else str(ca_file))


def _checked(table: Table) -> Iterator[tuple[Place, str]]:
    seen: dict[str, int] = {}
    for index, one in enumerate(table.servers):
        place: Place = ("servers", index)
        if (url := normal(one.url)) in seen:
            yield (*place, "url"), f"the url {one.url} is given twice"
        seen[url] = index
        if one.bearer_token_file is not None and one.basic_auth is not None:
            yield place, "bearerTokenFile and basicAuth exclude each other"
        if one.ca_file is not None and not url.startswith("https:"):
            yield (*place, "caFile"), "caFile is for https"
