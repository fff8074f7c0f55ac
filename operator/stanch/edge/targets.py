"""Which engines to look at: from the command line (URL or URL=ROLE) or from a YAML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from yarl import URL

from stanch.core.policy import DAY, Policy
from stanch.core.sample import Role
from stanch.edge.target import Target
from stanch.edge.yaml_file import Place, load

ROLES = ("decode", "prefill", "both", "auto")


@dataclass(frozen=True, slots=True)
class Watched:
    """One target with what is known of it. role None: its metrics must tell. policy: its own thresholds."""

    target: Target
    role: Role | None
    policy: Policy
    deployment: str = ""

    @property
    def base(self) -> str:
        """The server's URL without /metrics, for everything that is not a page of metrics."""
        return str(self.target.page.with_query(None)).removesuffix("/").removesuffix("/metrics")


class TargetError(ValueError):
    """A target cannot be used; the text says which and why."""


def _url(value: str) -> str:
    Target(value or "?", value)  # raises ValueError with a sentence
    return value


class _Entry(BaseModel):
    """One engine server; several data-parallel ranks behind one address are one entry."""

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, AfterValidator(_url)]
    role: Literal["decode", "prefill", "both", "auto"] = "auto"
    name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    deployment: Annotated[str, Field(max_length=253)] = ""
    kv_pin_seconds: float | None = Field(
        None,
        alias="kvPinSeconds",
        ge=0,
        le=DAY,
        strict=True,
        json_schema_extra={"allowed": "allowed: 0 to 86400"},
    )
    lease_seconds: float | None = Field(
        None,
        alias="leaseSeconds",
        ge=1,
        le=DAY,
        strict=True,
        json_schema_extra={"allowed": "allowed: 1 to 86400"},
    )


class TargetsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    targets: Annotated[list[_Entry], Field(min_length=1, max_length=20_000)]


def role_of(word: str) -> Role | None:
    """The role that a word names; None for auto. Raises TargetError."""
    if word not in ROLES:
        raise TargetError(f"{word!r} is not a role: say one of {', '.join(ROLES)}")
    return None if word == "auto" else Role(word)


def from_url(url: str, role: Role | None, policy: Policy) -> Watched:
    """One target by its address; it is named by host and port (and path, if any)."""
    try:
        return Watched(Target(_name(url), url, role is None), role, policy)
    except ValueError as error:
        raise TargetError(str(error)) from None


def from_pair(pair: str, policy: Policy) -> Watched:
    """URL=ROLE as `stanch watch --target` takes it."""
    url, equals, word = pair.rpartition("=")
    if not equals or word not in ROLES:
        raise TargetError(
            f"{pair!r} is not URL=ROLE, such as http://10.0.0.7:8000=decode; roles are {', '.join(ROLES)}"
        )
    return from_url(url, role_of(word), policy)


def from_file(path: Path, policy: Policy) -> list[Watched]:
    """The targets of a YAML file. Raises FileError."""
    return [_watched(entry, policy) for entry in load(path, TargetsFile, _twice).targets]


def _watched(entry: _Entry, policy: Policy) -> Watched:
    if entry.kv_pin_seconds is not None:
        policy = replace(policy, kv_pin_seconds=entry.kv_pin_seconds)
    if entry.lease_seconds is not None:
        policy = replace(policy, lease_seconds=entry.lease_seconds)
    role = role_of(entry.role)
    target = Target(entry.name or _name(entry.url), entry.url, role is None)
    return Watched(target, role, policy, entry.deployment)


def _twice(file: TargetsFile) -> Iterator[tuple[Place, str]]:
    for index, text in _repeated([_watched(entry, Policy()).target for entry in file.targets]):
        yield ("targets", index), text


def distinct(watched: Sequence[Watched]) -> list[Watched]:
    """The same, if no name and no address comes twice. Raises TargetError."""
    for _, text in _repeated([one.target for one in watched]):
        raise TargetError(text)
    return list(watched)


def _repeated(targets: Sequence[Target]) -> Iterator[tuple[int, str]]:
    """The targets whose page or name an earlier one has, by their place."""
    pages: set[URL] = set()
    names: set[str] = set()
    for index, target in enumerate(targets):
        if target.page in pages:
            yield index, f"the url {target.shown} is given twice"
        elif target.name in names:
            yield index, f"the name {target.name} is given twice"
        pages.add(target.page)
        names.add(target.name)


def _name(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return url  # Target says what is wrong with it
    path = parts.path.removesuffix("/").removesuffix("/metrics")
    return f"{parts.netloc.rpartition('@')[2]}{path}" or url or "?"
