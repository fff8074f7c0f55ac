"""Parts of both kinds: names, times, conditions, label selectors."""

from __future__ import annotations

from datetime import datetime, timezone
from enum import Enum
from typing import Annotated

from pydantic import Field, PlainSerializer, StringConstraints, WithJsonSchema

from stanch.api.base import ATOMIC, Model

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

Name = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DNS_NAME)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=DNS_LABEL)]
Word = Annotated[str, StringConstraints(max_length=64)]
Text = Annotated[str, StringConstraints(max_length=1024)]
Id = Annotated[str, StringConstraints(max_length=253)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=10**9)]


def _written(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


Time = Annotated[
    datetime,
    PlainSerializer(_written, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


class ConditionStatus(str, Enum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model):
    """One aspect of the state of the object, as in every Kubernetes API."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=316)]
    """Name of the condition, in CamelCase."""
    status: ConditionStatus
    """True, False or Unknown."""
    last_transition_time: Time
    """When the status last changed."""
    reason: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    """Why, as one word in CamelCase."""
    message: Annotated[str, StringConstraints(max_length=32768)] = ""
    """Why, as a sentence."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The generation of the spec that this was said of."""


class Operator(str, Enum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=317)]
LabelValue = Annotated[str, StringConstraints(max_length=63)]


class Requirement(Model):
    """One requirement of a label selector."""

    key: LabelKey
    """The label."""
    operator: Operator
    """How its value relates to the values: In, NotIn, Exists or DoesNotExist."""
    values: Annotated[list[LabelValue], Field(max_length=32, json_schema_extra=ATOMIC)] = []
    """For In and NotIn; empty for the others."""


class Selector(Model):
    """A label selector, as everywhere in Kubernetes; both parts must match."""

    match_labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = {}
    """Labels with these very values."""
    match_expressions: Annotated[list[Requirement], Field(max_length=32, json_schema_extra=ATOMIC)] = []
    """Requirements on labels."""


class Metadata(Model):
    """The part of an object's metadata that is used here."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


def unix(moment: datetime) -> float:
    return moment.timestamp()


def moment(seconds: float) -> datetime:
    """To the microsecond, which is what the API keeps."""
    return datetime.fromtimestamp(seconds, timezone.utc)
