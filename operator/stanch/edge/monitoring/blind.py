"""Engines of which nothing can be said: silence about them must not look like health (law 1)."""

from __future__ import annotations

from stanch.core.verdict import Signature
from stanch.edge.monitoring import readings as r
from stanch.edge.monitoring.promql import either, selectors
from stanch.edge.monitoring.readings import Pace
from stanch.edge.monitoring.rules import Alert, Severity, span

# Time enough for a scrape or two that went wrong; a page that stays senseless is no accident.
_BLIND_SECONDS = 300
# For so long an engine that was seen is missed, while its target still answers.
_MISSED_SECONDS = 1800
_SETTLED_SECONDS = 900


def alerts(pace: Pace) -> tuple[Alert, ...]:
    return (_no_reading(), _too_rarely(pace))


def _no_reading() -> Alert:
    shown = either(f"({one})" for field in ("usage", "running", "waiting") for one in selectors(field))
    missed = f"last_over_time({r.READING}[{span(_MISSED_SECONDS)}])"
    told = " or ".join(f"up{{{one}}}" for one in (f'role=~"{r.TOLD}"', *(m for _, m in r.pod_labels())))
    labelled = f"({told}) == 1 unless on (job, instance) {r.READING}"
    return Alert(
        "StanchBlind",
        f"(\n  (({shown}) or {missed})\n  unless {r.READING}\n  and on (job, instance) up == 1\n)"
        f"\nor on (job, instance) ({labelled})",
        _BLIND_SECONDS,
        Severity.WARNING,
        Signature.BLIND.value,
    )


def _too_rarely(pace: Pace) -> Alert:
    """By how often usage was scraped, whatever it said: a senseless page is blind, not scraped too rarely."""
    window = span(_SETTLED_SECONDS)
    # Two scrapes may have failed.
    least = _SETTLED_SECONDS // pace.scrape_seconds - 2
    names = selectors("usage")
    return Alert(
        "StanchScrapedTooRarely",
        f"({either(f'count_over_time({name}[{window}])' for name in names)}) < {least}"
        f"\nand ({either(names)})"
        f"\nand ({either(f'present_over_time({name}[5m] offset {window})' for name in names)})"
        f"\nand on (job, instance) (min_over_time(up[{window}]) == 1)",
        0,
        Severity.WARNING,
    )
