"""Recording rules: one fit reading of each engine, whatever its version calls it, and the role of the engine.

What the alerts are made of. All labels of the target are kept, so an alert names the pod and the engine.

- A reading is fit when usage, running, waiting and a token counter are there, none of them NaN or negative,
  and Prometheus scraped them a moment ago (law 1). All that follows rests on the fit ones.
- The role comes from the target's own label `role`, else from a pod label that tells it (ours, or one of
  those of api/presets.py), else from what the engine counts, by the very rules of `role: auto`
  (docs/adr/0003); else it is `unknown`.
- A window is looked at in what the rules before it have recorded, so it has one point for each evaluation;
  how many readings those rest on, their times tell. Nothing is found from one reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from stanch.api.presets import OWN_LABEL, PRESETS, Known
from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.edge.monitoring.promql import either, fresh, selectors, value
from stanch.edge.monitoring.rules import Record, span
from stanch.edge.reading import DECODE_LEAST_REQUESTS, PREFILL_LEAST_REQUESTS

TOLD = "|".join(role.value for role in Role if role is not Role.UNKNOWN)

GENERATION = "stanch:engine_generation_tokens:total"
PROMPT = "stanch:engine_prompt_tokens:total"
TOKENS = "stanch:engine_tokens:total"
RUNNING = "stanch:engine_running:requests"
WAITING = "stanch:engine_waiting:requests"
DEFERRED = "stanch:engine_deferred:requests"
ITERATIONS = "stanch:engine_iterations:total"
FINISHED = "stanch:engine_finished:total"
FAILED_TRANSFERS = "stanch:engine_failed_transfers:total"
FAILED_NOTIFICATIONS = "stanch:engine_failed_notifications:total"
AWAKE = "stanch:engine_awake:bool"
# Of a fit reading, without and with the role.
READING = "stanch:engine_reading:ratio"
USAGE = "stanch:engine_usage:ratio"
# When it was scraped: as many different values as there were readings. And of those of an idle engine.
READ_AT = "stanch:engine_reading:timestamp_seconds"
IDLE_AT = "stanch:engine_idle_usage:timestamp_seconds"
EXTERNAL_HITS = "stanch:engine_external_hits:total"
EXPIRED_LEASES = "stanch:engine_expired_leases:total"
ASKED = "stanch:engine_asked:total"
MORE_THAN_ONE = "stanch:engine_asked_more_than_one_token:total"
# There for what is a producer and nothing else (vLLM 0.32 and later).
PRODUCER = "stanch:engine_producer:bool"
# The same value, where no token and no block moved of late.
STILL = "stanch:engine_still:ratio"
# And nothing runs or waits.
IDLE = "stanch:engine_idle_usage:ratio"
HELD = "stanch:engine_held:ratio"
KIT_STUCK = "stanch:kit_stuck:requests"

PARKED = "stanch_parked_requests"
ORPHANS = "stanch_orphan_requests"


@dataclass(frozen=True, slots=True)
class Pace:
    """interval_seconds: between two evaluations."""

    interval_seconds: int = 15

    @property
    def scrape_seconds(self) -> int:
        """Engines may be scraped as rarely as this."""
        return 4 * self.interval_seconds

    @property
    def reach_seconds(self) -> int:
        """What has not moved for so long stands still, and a reading older than this is none: two scrapes at
        least are in it, also where one comes late."""
        return 6 * self.interval_seconds

    @property
    def reach_points(self) -> int:
        """Evaluations that must have had a value in that time: there was no gap. (Prometheus 3 leaves out the
        first of them, so that is six there and seven before.)"""
        return 5


def records(policy: Policy, pace: Pace) -> tuple[Record, ...]:
    reach = span(pace.reach_seconds)
    idle = f"{RUNNING} == 0\nand ignoring(role) {WAITING} == 0"
    return (
        Record(GENERATION, value("generation_tokens")),
        Record(PROMPT, value("prompt_tokens")),
        Record(TOKENS, either((f"({GENERATION} + {PROMPT})", GENERATION, PROMPT))),
        Record(RUNNING, value("running")),
        Record(WAITING, value("waiting")),
        Record(DEFERRED, value("waiting_deferred")),
        Record(ITERATIONS, value("iterations")),
        Record(FINISHED, value("finished")),
        Record(FAILED_TRANSFERS, value("failed_transfers")),
        Record(FAILED_NOTIFICATIONS, value("failed_notifications")),
        Record(AWAKE, value("awake")),
        Record(
            READING,
            f"({fresh('usage', pace.reach_seconds, 1.001)})\nand {RUNNING}\nand {WAITING}\nand {TOKENS}",
        ),
        Record(READ_AT, f"({either(f'timestamp({name})' for name in selectors('usage'))})\nand {READING}"),
        Record(EXTERNAL_HITS, value("external_hits")),
        Record(EXPIRED_LEASES, value("expired_leases")),
        Record(ASKED, value("asked")),
        Record(MORE_THAN_ONE, f"{ASKED} - ({value('asked_one_token')})"),
        Record(PRODUCER, f"1 + 0 * ({value('since_032')}\nunless {value('consumer')})"),
        Record(USAGE, _with_role()),
        Record(
            STILL,
            f"{USAGE}\nand ignoring(role) changes({TOKENS}[{reach}]) == 0"
            f"\nand ignoring(role) resets({READING}[{reach}]) == 0"
            f"\nand ignoring(role) count_over_time({READING}[{reach}]) >= {pace.reach_points}"
            f"\nand ignoring(role) changes({READ_AT}[{reach}]) >= 1\nunless ignoring(role) {AWAKE} == 0",
        ),
        Record(IDLE, f"{USAGE}\nand ignoring(role) {idle}\nunless ignoring(role) {AWAKE} == 0"),
        Record(IDLE_AT, f"{READ_AT}\nand ignoring(role) {IDLE}"),
        Record(HELD, f"{STILL} >= {policy.floor_ratio:g}\nand ignoring(role) {idle}"),
        Record(KIT_STUCK, f"({PARKED} + {ORPHANS}) >= 0"),
    )


def _with_role() -> str:
    """The reading with the label role, as it was told or as the counters show."""
    seen = f"{READING}\nand {FAILED_TRANSFERS}"
    asks_for_one = (
        f"({MORE_THAN_ONE} == 0 and {EXTERNAL_HITS} == 0 "
        f"and ({ASKED} >= {PREFILL_LEAST_REQUESTS} or {EXPIRED_LEASES} > 0))"
    )
    return "\nor ignoring(role) ".join(
        (
            f'{READING}{{role=~"{TOLD}"}}',
            *(
                f'label_replace({READING}{{{matchers}}}, "role", "$1", "{label}", "(.*)")'
                for label, matchers in pod_labels()
            ),
            _role(f"{seen}\nand ({PRODUCER} or {asks_for_one})", Role.PREFILL),
            _role(
                f"{seen}\nand {EXTERNAL_HITS} > 0\nand {MORE_THAN_ONE} >= {DECODE_LEAST_REQUESTS}",
                Role.DECODE,
            ),
            _role(READING, Role.UNKNOWN),
        )
    )


def pod_labels() -> Iterator[tuple[str, str]]:
    """(label of a target, matchers) for each label by which pods tell their role, ours first, as a
    PodMonitor's podTargetLabels writes it: what is no letter or digit becomes `_`."""
    seen = set()
    for known in (Known(OWN_LABEL, {}), *PRESETS.values()):
        if known.label in seen:
            continue
        seen.add(known.label)
        beside = "".join(f',{_target_label(one)}!=""' for one in known.beside)
        yield _target_label(known.label), f'{_target_label(known.label)}=~"{TOLD}"{beside}'


def _target_label(pod_label: str) -> str:
    return re.sub(r"\W", "_", pod_label)


def _role(expression: str, role: Role) -> str:
    return f'label_replace({expression}, "role", "{role.value}", "", "")'
