"""What Alertmanager sends to a webhook, version 4 (template/template.go and notify/webhook/webhook.go, the
same in 0.25 and in its main branch since)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)
from pydantic.alias_generators import to_camel

from stanch.edge.text import printable
from stanch.edge.yaml_file import explain

# Of one payload: Alertmanager leaves out what is beyond its max_alerts, and says so.
MOST_ALERTS = 1000
_MOST_ERRORS = 10
_FIRST_YEAR, _LAST_YEAR = 1970, 2200


class PayloadError(ValueError):
    """The body is no payload of version 4. errors: one sentence for each field that is wrong."""

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(self.errors))


def _sane(time: datetime) -> datetime:
    """In UTC. Times at the ends of the calendar can neither be moved to another zone nor be written."""
    if not _FIRST_YEAR <= time.year <= _LAST_YEAR:
        raise ValueError(f"must be a time between {_FIRST_YEAR} and {_LAST_YEAR}")
    return time.astimezone(timezone.utc)


class _Part(BaseModel):
    """What is not known is ignored: a newer Alertmanager may have added it."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True, frozen=True)


class Alert(_Part):
    """One alert. ends_at: in the future, or year 1, while it fires."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    annotations: dict[str, str] = {}
    starts_at: Annotated[AwareDatetime, AfterValidator(_sane)]
    ends_at: AwareDatetime | None = None
    generator_url: str = Field("", alias="generatorURL")
    fingerprint: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z]{1,63}$")]

    @property
    def key(self) -> tuple[str, datetime]:
        """One alert from when it fires until it is resolved, however often it is sent."""
        return self.fingerprint, self.starts_at

    @property
    def ended(self) -> datetime | None:
        """When it was resolved, in UTC; None where that is no time that could be written down."""
        if self.ends_at is None or not _FIRST_YEAR <= self.ends_at.year <= _LAST_YEAR:
            return None
        return self.ends_at.astimezone(timezone.utc)

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "")


class Payload(_Part):
    """One notification: a group of alerts, or a part of it."""

    version: Literal["4"]
    group_key: str
    truncated_alerts: Annotated[int, Field(ge=0, lt=2**64)] = 0
    status: Literal["firing", "resolved"]
    receiver: str
    group_labels: dict[str, str] = {}
    common_labels: dict[str, str] = {}
    common_annotations: dict[str, str] = {}
    external_url: str = Field("", alias="externalURL")
    alerts: Annotated[tuple[Alert, ...], Field(max_length=MOST_ALERTS)]


def parse(body: bytes) -> Payload:
    """Raises PayloadError."""
    try:
        return Payload.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
    errors = []
    for one in found[:_MOST_ERRORS]:
        if one["type"] == "json_invalid":
            errors.append(f"the body is not JSON: {one['msg'].removeprefix('Invalid JSON: ')}")
        elif not one["loc"]:
            errors.append("the body must be a JSON object, as Alertmanager sends it")
        else:
            errors.append(printable(explain(one, Payload)).replace(" Input should have ", " must have "))
    if len(found) > _MOST_ERRORS:
        errors.append(f"and {len(found) - _MOST_ERRORS} more")
    raise PayloadError(errors)
