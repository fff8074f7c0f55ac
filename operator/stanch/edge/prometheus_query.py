"""What Prometheus is asked about a watch's engines, as PromQL, and by which labels series are theirs. Pure.

One query asks for everything of so many pods at once: each family under every name that it may have
(families.py), `up`, and when the engines were scraped. All of it is one evaluation, so values and times are
of the same scrape. Which labels hold namespace and pod depends on who set Prometheus up: docs/prometheus.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stanch.api.watch import LeakWatch
from stanch.edge.families import BY_FIELD, FAMILIES, PROCESS_START, spellings
from stanch.edge.target import Target

UP = "up"
# On the series that say when an engine was scraped: their values are times. No metric of vLLM has it.
MARK = "stanch_scraped_at"
# So many pods in one query: an answer of some 4 MB.
PODS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Way:
    """By which labels a series tells its pod. pod "": by `instance`, the address that was scraped."""

    namespace: str
    pod: str

    @property
    def key(self) -> str:
        return self.pod or "instance"


WAYS: Final = (
    Way("namespace", "pod"),
    Way("kubernetes_namespace", "kubernetes_pod_name"),
    Way("k8s_namespace_name", "k8s_pod_name"),
    Way("", ""),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a LeakWatch wants of a Prometheus. ways: the labels to try, in order. engine: the label of the
    rank where it is not vLLM's own, else "". table: the admin's (prometheus_table.py)."""

    url: str
    namespace: str
    ways: tuple[Way, ...] = WAYS
    engine: str = ""
    matchers: tuple[tuple[str, str], ...] = ()
    timeout_seconds: float = 10.0
    table: Path | None = None


def wanted_of(watch: LeakWatch, table: Path | None = None) -> Wanted | None:
    """None where the engines themselves are read."""
    given = watch.spec.prometheus
    if given is None:
        return None
    labels = given.labels
    ways: tuple[Way, ...] = WAYS
    if labels.namespace is not None or labels.pod is not None:
        ways = (Way(labels.namespace or WAYS[0].namespace, labels.pod or WAYS[0].pod),)
    return Wanted(
        given.url.rstrip("/"),
        watch.metadata.namespace,
        ways,
        labels.engine or "",
        tuple(sorted(given.matchers.items())),
        float(given.timeout_seconds),
        table,
    )


@dataclass(frozen=True, slots=True)
class Place:
    """One target as the labels of its series tell it. name: the target's. address: host and port. alone:
    whether its pod has no other target. evidence: whether it is also asked what tells a role."""

    name: str
    pod: str
    address: str
    port: str
    alone: bool
    evidence: bool = False


def places(targets: Iterable[Target]) -> dict[str, Place]:
    """By the target's name, which is that of its pod, with /PORT where the pod has several."""
    return {
        one.name: Place(
            one.name,
            one.name.partition("/")[0],
            one.page.host_port_subcomponent or "",
            str(one.page.port),
            "/" not in one.name,
            one.evidence,
        )
        for one in targets
    }


def _names() -> tuple[str, ...]:
    names = [name for family in FAMILIES if not family.evidence for name in spellings(family)]
    return (*dict.fromkeys(names), PROCESS_START, UP)


def _evidence() -> dict[tuple[str, str] | None, list[str]]:
    """Names by the one label and value that count: of a histogram's many buckets one."""
    found: dict[tuple[str, str] | None, list[str]] = {}
    for family in FAMILIES:
        if family.evidence:
            found.setdefault(family.only, []).extend(spellings(family))
    return found


NAMES = _names()
_EVIDENCE = _evidence()
_SCRAPED = spellings(BY_FIELD["running"])


def query(way: Way, wanted: Wanted, asked: Sequence[Place]) -> str:
    """What is to be known of these, in one expression."""
    where = _where(way, wanted, asked)
    evidence = _EVIDENCE if any(one.evidence for one in asked) else {}
    names = "|".join((*NAMES, *evidence.get(None, ())))
    # What is joined by `or` must have labels of its own: of two series that differ in their names only, `or`
    # gives the first.
    series = [f'{{__name__=~"{names}",{where}}}']
    for only, few in evidence.items():
        if only is not None:
            series.append(f'{{__name__=~"{"|".join(few)}",{where},{only[0]}="{_quoted(only[1])}"}}')
    # One selector for each name: timestamp() drops it, and two series that then are alike are an error.
    times = (
        f'label_replace(timestamp({{__name__="{name}",{where}}}),"{MARK}","yes","","")' for name in _SCRAPED
    )
    return " or ".join([*series, *times])


def _where(way: Way, wanted: Wanted, asked: Sequence[Place]) -> str:
    keys = dict.fromkeys(one.pod if way.pod else one.address for one in asked)
    parts = [f'{way.key}=~"{"|".join(map(_literal, keys))}"']
    if way.namespace:
        parts.append(f'{way.namespace}="{_quoted(wanted.namespace)}"')
    parts += [f'{name}="{_quoted(value)}"' for name, value in wanted.matchers]
    return ",".join(parts)


def _literal(text: str) -> str:
    """A regular expression (RE2) that means this very text, inside quotes."""
    return _quoted("".join(f"\\{c}" if c in r"\.+*?()|[]{}^$" else c for c in text))


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def looked_for(wanted: Wanted) -> str:
    """By which labels, as words."""
    found = []
    for way in wanted.ways:
        space = f'{way.namespace}="{wanted.namespace}" and ' if way.namespace else ""
        found.append(f"{space}{way.key}")
    more = "".join(f' and {name}="{value}"' for name, value in wanted.matchers)
    return f"{', then '.join(found)}{more}"


def rows_of(way: Way, asked: Mapping[str, Place]) -> dict[str, list[Place]]:
    """The places by what their series have in the label that tells them."""
    found: dict[str, list[Place]] = {}
    for one in asked.values():
        found.setdefault(one.pod if way.pod else one.address, []).append(one)
    return found
