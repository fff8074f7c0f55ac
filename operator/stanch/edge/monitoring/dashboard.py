"""What the dashboard shows: the fleet, one engine, incidents, the operator itself, the engine kit.

It asks for raw families by all their names, so it shows also where the rules are not loaded; only what fires
needs those.
"""

from __future__ import annotations

from stanch.edge.families import BY_FIELD, spellings
from stanch.edge.monitoring.grafana import Panel, Query, Row, Variable, dashboard
from stanch.edge.monitoring.promql import either, selectors

_IN = 'namespace=~"$namespace"'
_ENGINE = f'{_IN},pod=~"$engine"'
_WATCH = f'{_IN},watch=~"$watch"'
_NAME = "{{pod}} {{instance}} {{engine}}"
_LONG = "1h"


def _engines(field: str, matchers: str = _ENGINE) -> str:
    return either(selectors(field, matchers))


def _rate(field: str, matchers: str = _ENGINE) -> str:
    return either(f"rate({one}[$__rate_interval])" for one in selectors(field, matchers))


def _quantile(histogram: str, by: str = "", share: float = 0.95) -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({labels}) (rate({histogram}_bucket[{_LONG}])))"


def _held() -> str:
    """What is held while nothing runs and nothing waits."""
    usage, running, waiting = (f"({_engines(field, _IN)})" for field in ("usage", "running", "waiting"))
    return f"{usage}\nand {running} == 0\nand {waiting} == 0"


FLEET = Row(
    "Fleet",
    (
        Panel(
            "Engines by what the operator says",
            (Query(f"sum by (state) (stanch_engines{{{_WATCH}}})", "{{state}}"),),
            "stat",
            width=9,
            height=4,
            about="suspect: a pattern that has not held long enough. blind: nothing can be said of it.",
        ),
        Panel(
            "Open incidents",
            (Query(f"sum(stanch_incidents_open{{{_WATCH}}})", "open"),),
            "stat",
            width=5,
            height=4,
        ),
        Panel(
            "Open breakers",
            (Query(f"sum(stanch_breaker_open{{{_WATCH}}})", "open"),),
            "stat",
            width=5,
            height=4,
            about="A watch whose breaker is open repairs nothing more.",
        ),
        Panel(
            "Operators that repair",
            (Query("sum(stanch_active)", "active"),),
            "stat",
            width=5,
            height=4,
            about="One of them does; the others stand by.",
        ),
        Panel(
            "KV cache in use",
            (Query(_engines("usage", _IN), _NAME),),
            unit="percentunit",
            width=12,
            about="Blocks that requests refer to. Prefixes that are cached and free do not count.",
        ),
        Panel(
            "KV cache held while nothing runs or waits",
            (Query(_held(), _NAME),),
            unit="percentunit",
            width=12,
            about="On a decode engine zero, or a leak; a prefill engine may hold until its lease ends.",
        ),
        Panel(
            "Alerts that fire",
            (
                Query(
                    'count by (alertname, severity) (ALERTS{alertname=~"Stanch.*",alertstate="firing"})',
                    "{{alertname}} ({{severity}})",
                ),
            ),
            width=12,
            about="Needs the rules of Stanch (docs/monitoring.md).",
        ),
        Panel(
            "Units to which nothing is done now, by why",
            (Query(f"sum by (reason) (stanch_deferred_units{{{_WATCH}}})", "{{reason}}"),),
            width=12,
        ),
    ),
)

ONE_ENGINE = Row(
    "Engine $engine",
    (
        Panel("KV cache in use", (Query(_engines("usage"), _NAME),), unit="percentunit"),
        Panel(
            "Requests",
            (
                Query(_engines("running"), f"running {_NAME}"),
                Query(_engines("waiting"), f"waiting {_NAME}"),
                Query(_engines("waiting_deferred"), f"put off {_NAME}"),
            ),
            about="put off: the part of waiting that waits for KV, a grammar, a LoRA slot or a session.",
        ),
        Panel(
            "Tokens per second",
            (
                Query(_rate("generation_tokens"), f"generated {_NAME}"),
                Query(_rate("prompt_tokens"), f"prompt {_NAME}"),
            ),
        ),
        Panel(
            "Steps and finished requests per second",
            (
                Query(_rate("iterations"), f"steps {_NAME}"),
                Query(f"sum without (finished_reason) ({_rate('finished')})", f"finished {_NAME}"),
            ),
        ),
        Panel(
            "Failed KV transfers and notifications per second",
            (
                Query(_rate("failed_transfers"), f"transfers {_NAME}"),
                Query(_rate("failed_notifications"), f"notifications {_NAME}"),
            ),
        ),
        Panel(
            "Awake",
            (Query(_engines("awake"), _NAME),),
            about="0: asleep or paused, so that standing still means nothing.",
        ),
    ),
)

INCIDENTS = Row(
    "Incidents",
    (
        Panel(
            "Opened, by signature",
            (Query(f"sum by (signature) (stanch_incidents_opened_total{{{_WATCH}}})", "{{signature}}"),),
            about="Since the operator's start.",
        ),
        Panel(
            "Ended, by how",
            (Query(f"sum by (ending) (stanch_incidents_ended_total{{{_WATCH}}})", "{{ending}}"),),
            about="Since the operator's start. Escalated and Failed want a person.",
        ),
        Panel(
            "Stuck requests found",
            (
                Query(
                    f"sum by (namespace, watch) (stanch_stuck_requests_found_total{{{_WATCH}}})",
                    "{{namespace}}/{{watch}}",
                ),
            ),
        ),
        Panel(
            "How long the steps take (95 % within)",
            (Query(_quantile("stanch_step_seconds", "step"), "{{step}}"),),
            unit="s",
            width=12,
        ),
        Panel(
            "From a fault to its cordon",
            (
                Query(_quantile("stanch_detect_to_cordon_seconds", "waited", 0.5), "half, waited {{waited}}"),
                Query(_quantile("stanch_detect_to_cordon_seconds", "waited"), "95 %, waited {{waited}}"),
            ),
            unit="s",
            width=12,
            about="waited: a limit or a person kept it back.",
        ),
    ),
)

OPERATOR = Row(
    "Operator",
    (
        Panel(
            "Turns (95 % within)",
            (
                Query(_quantile("stanch_turn_seconds"), "takes"),
                Query(_quantile("stanch_turn_lag_seconds"), "late by"),
                Query(_quantile("stanch_event_loop_lag_seconds"), "event loop late by"),
            ),
            unit="s",
        ),
        Panel(
            "Turns that failed per second",
            (
                Query(
                    f"sum by (namespace, watch, reason) (rate(stanch_turns_failed_total{{{_WATCH}}}"
                    "[$__rate_interval]))",
                    "{{namespace}}/{{watch}} {{reason}}",
                ),
            ),
        ),
        Panel(
            "Since the last sign of life, as a share of what is allowed",
            (Query("stanch_sign_age_seconds / stanch_sign_limit_seconds", "{{pod}} {{part}}"),),
            unit="percentunit",
        ),
        Panel(
            "Requests to the API server per second, by answer",
            (Query("sum by (code) (rate(stanch_api_requests_total[$__rate_interval]))", "{{code}}"),),
        ),
        Panel(
            "Alerts received and pods reviewed",
            (
                Query("sum by (result) (stanch_alerts_received_total)", "alert {{result}}"),
                Query("sum(stanch_alerts_waiting)", "alerts waiting"),
                Query("sum(stanch_alerts_truncated_total)", "alerts left out"),
                Query("sum by (outcome) (stanch_webhook_reviews_total)", "pod {{outcome}}"),
            ),
            about="Since the operator's start.",
        ),
        Panel(
            "Log lines that were lost",
            (Query("sum(stanch_log_lines_lost_total)", "lost"),),
        ),
    ),
)

KIT = Row(
    "Engine kit",
    (
        Panel(
            "Requests that wait for KV, and orphans",
            (
                Query(f"stanch_parked_requests{{{_ENGINE}}}", f"parked {_NAME}"),
                Query(f"stanch_orphan_requests{{{_ENGINE}}}", f"orphans {_NAME}"),
            ),
            about="Orphans have ended, hold blocks all the same, and nobody will read them.",
        ),
        Panel(
            "KV blocks that these hold",
            (
                Query(f"stanch_parked_blocks{{{_ENGINE}}}", f"parked {_NAME}"),
                Query(f"stanch_orphan_blocks{{{_ENGINE}}}", f"orphans {_NAME}"),
            ),
        ),
        Panel(
            "Age of the oldest of them",
            (Query(f"stanch_oldest_stuck_seconds{{{_ENGINE}}}", _NAME),),
            unit="s",
        ),
        Panel(
            "Released and refused requests",
            (
                Query(f"sum by (way) (stanch_releases{{{_ENGINE}}})", "{{way}}"),
                Query(f"sum by (reason) (stanch_release_refusals{{{_ENGINE}}} > 0)", "refused: {{reason}}"),
            ),
            about="Since the engines' start.",
        ),
        Panel(
            "The known defect",
            (
                Query(f"sum by (fix) (stanch_fix{{{_ENGINE}}})", "{{fix}}"),
                Query(f"sum(stanch_fix_hits{{{_ENGINE}}})", "requests that the fix has saved"),
            ),
            about="unpatched: this engine can lose requests.",
        ),
        Panel(
            "Errors that the kit caught in itself",
            (
                Query(f"stanch_kit_errors{{{_ENGINE}}}", f"engine {_NAME}"),
                Query(f"stanch_kit_server_errors{{{_ENGINE}}}", "server {{pod}} {{instance}}"),
            ),
        ),
    ),
)

ROWS = (FLEET, ONE_ENGINE, INCIDENTS, OPERATOR, KIT)
_RUNNING = "|".join(spellings(BY_FIELD["running"]))
_SHOWN = f'{{__name__=~"{_RUNNING}"'
VARIABLES = (
    Variable("namespace", "Namespace", f"{_SHOWN}}}", "namespace"),
    Variable("watch", "LeakWatch", f"stanch_engines{{{_IN}}}", "watch"),
    Variable("engine", "Engine (pod)", f"{_SHOWN},{_IN}}}", "pod"),
)


def text() -> str:
    return dashboard(
        "stanch", "Stanch", "KV cache that nobody uses, and what is done about it.", VARIABLES, ROWS
    )
