"""The signatures as alerts, from what the engines themselves tell Prometheus.

For people without the operator's own scraping, and for whom an alert starts a repair. The holds are the
detector's (core.signatures.limit); an alert comes up to Pace.reach_seconds later than the operator's verdict,
since Prometheus sees an engine more rarely. What is a fault for the detector is critical here; what stays
suspect without the whole deployment in view is a warning.
"""

from __future__ import annotations

from itertools import pairwise

from stanch.core.policy import PIN_MARGIN_SECONDS, Policy
from stanch.core.sample import Role, Sample
from stanch.core.signatures import floor_window, limit
from stanch.core.verdict import Signature, Warn
from stanch.edge.monitoring import readings as r
from stanch.edge.monitoring.readings import Pace
from stanch.edge.monitoring.rules import Alert, Severity, span
from stanch.edge.units_args import PIN_SECONDS

# A target label: "true" says that a decode is bidirectional, and pins finished turns.
PINS = "bidirectional"

# The throughput of the hour before is what a collapse is measured against.
_BASELINE_SECONDS = 3600

_BY_ROLE = f'role="{Role.DECODE.value}"'
_PRODUCERS = f'role=~"{Role.PREFILL.value}|{Role.BOTH.value}"'
_NOT_DECODE = f'role!="{Role.DECODE.value}"'


def alerts(policy: Policy, pace: Pace) -> tuple[Alert, ...]:
    return (
        *_held(policy),
        _held_floor(policy, pace),
        *_queues(policy),
        *_no_progress(policy, pace),
        _producer_stranded(policy),
        _role_unknown(policy),
        _collapse(policy),
        _creep(policy),
        _transfer_fault(policy),
    )


def _limit(signature: Signature, policy: Policy, role: Role, *, warm: bool = True) -> float:
    """The detector's own; warm: the engine has made tokens."""
    sample = Sample(0.0, "", usage=0.0, generation_tokens=1.0 if warm else 0.0)
    return limit(signature, policy, role, sample)


def _pin(policy: Policy) -> float:
    return (policy.kv_pin_seconds or PIN_SECONDS) + PIN_MARGIN_SECONDS


# The kit lists nobody who is stuck: then what is held may be pinned for a reader.
_KIT_DENIES = f"unless ignoring(role, model_name) {r.KIT_STUCK} == 0"
_UNPINNED = f'{_BY_ROLE},{PINS}!="true"'


def _held(policy: Policy) -> tuple[Alert, ...]:
    soon = f"{r.HELD}{{{_UNPINNED}}}\n{_KIT_DENIES}"
    late = f"{r.HELD}{{{_BY_ROLE}}}\nunless ({soon})"
    hold = _limit(Signature.HELD_IDLE, policy, Role.DECODE)
    return tuple(
        Alert(
            "StanchHeldIdle",
            expr,
            seconds,
            Severity.CRITICAL,
            Signature.HELD_IDLE.value,
            case,
        )
        for expr, seconds, case in ((soon, hold, ""), (late, max(hold, _pin(policy)), "may-be-pinned"))
    )


def _held_floor(policy: Policy, pace: Pace) -> Alert:
    # The slowest scrape that is allowed stands for the interval: the window must have room for its readings.
    slowest = Policy(
        interval_seconds=pace.scrape_seconds,
        held_floor_window_seconds=policy.held_floor_window_seconds,
        held_floor_window_intervals=policy.held_floor_window_intervals,
        held_floor_readings=policy.held_floor_readings,
    )
    seconds = floor_window(slowest)
    window, covered = span(seconds), seconds / pace.interval_seconds - 3
    return Alert(
        "StanchHeldFloor",
        f"min_over_time({r.IDLE}{{{_UNPINNED}}}[{window}]) >= {policy.floor_ratio:g}"
        f"\nand ignoring(role) changes({r.IDLE_AT}[{window}]) >= {policy.held_floor_readings - 1}"
        f"\nand count_over_time({r.USAGE}[{window}]) >= {covered:g}"
        f"\nand ignoring(role) resets({r.TOKENS}[{window}]) == 0"
        f"\nand {r.USAGE}"
        f"\n{_KIT_DENIES}",
        0,
        Severity.CRITICAL,
        Signature.HELD_FLOOR.value,
    )


def _queues(policy: Policy) -> tuple[Alert, ...]:
    waits = f"\nand ignoring(role) {r.RUNNING} == 0\nand ignoring(role) {r.WAITING} > 0"
    all_deferred = f"(({r.DEFERRED} >= {r.WAITING}) > 0)"
    # Parked requests hold blocks: without the reasons the usage tells the two apart.
    guessed = f"({r.READING} >= {policy.floor_ratio:g} unless {r.DEFERRED})"
    deferred = f"({all_deferred} or {guessed})"
    stall = f"{r.STILL}{{{_BY_ROLE}}}{waits}\nand ignoring(role) {deferred}"
    queue = f"{waits}\nunless ignoring(role) {deferred}"
    hold = _limit(Signature.QUEUE_DEADLOCK, policy, Role.DECODE)
    soon = (
        f'({r.STILL}{{{_UNPINNED}}} or {r.STILL}{{{_BY_ROLE},{PINS}="true"}} < {policy.floor_ratio:g}){queue}'
    )
    late = f'{r.STILL}{{{_BY_ROLE},{PINS}="true"}} >= {policy.floor_ratio:g}{queue}'
    elsewhere = f"{r.STILL}{{{_NOT_DECODE}}}{queue}\n{_unless_decodes_wait()}"
    variants = (
        (soon, hold, Severity.CRITICAL, ""),
        (late, max(hold, _pin(policy)), Severity.CRITICAL, "may-be-pinned"),
        (elsewhere, _limit(Signature.QUEUE_DEADLOCK, policy, Role.PREFILL), Severity.WARNING, "not-decode"),
    )
    return (
        Alert(
            "StanchDeferredStall",
            stall,
            _limit(Signature.DEFERRED_STALL, policy, Role.DECODE),
            Severity.CRITICAL,
            Signature.DEFERRED_STALL.value,
        ),
        *(
            Alert(
                "StanchQueueDeadlock",
                expr,
                seconds,
                severity,
                Signature.QUEUE_DEADLOCK.value,
                case,
            )
            for expr, seconds, severity, case in variants
        ),
    )


def _no_progress(policy: Policy, pace: Pace) -> tuple[Alert, ...]:
    reach = span(pace.reach_seconds)
    stuck = (
        f"{r.STILL}\nand ignoring(role) {r.RUNNING} > 0"
        f"\nand ignoring(role) changes({r.ITERATIONS}[{reach}]) == 0"
        f"\nand ignoring(role) changes({r.READING}[{reach}]) == 0"
    )
    cold = f"{stuck}\nand ignoring(role) {r.GENERATION} == 0"
    warm = f"{stuck}\nunless ignoring(role) {r.GENERATION} == 0"
    return tuple(
        Alert(
            "StanchNoProgress",
            expr,
            _limit(Signature.NO_PROGRESS, policy, Role.DECODE, warm=of_warm),
            Severity.CRITICAL,
            Signature.NO_PROGRESS.value,
            case,
        )
        for expr, of_warm, case in ((warm, True, ""), (cold, False, "warming-up"))
    )


def _unless_decodes_wait() -> str:
    """A prefill keeps blocks for its decodes: as long as one of them waits, nothing is said of it."""
    return f"unless on (namespace) ({r.WAITING} > 0 and ignoring(role) {r.USAGE}{{{_BY_ROLE}}})"


def _producer_stranded(policy: Policy) -> Alert:
    seconds = _limit(Signature.PRODUCER_STRANDED, policy, Role.PREFILL)
    return Alert(
        "StanchProducerStranded",
        f"{r.HELD}{{{_PRODUCERS}}}\n{_unless_decodes_wait()}",
        seconds,
        Severity.WARNING,
        Signature.PRODUCER_STRANDED.value,
    )


def _role_unknown(policy: Policy) -> Alert:
    # A prefill may be idle like this for its lease, so nothing is said before that is surely over.
    return Alert(
        "StanchRoleUnknown",
        f'{r.HELD}{{role="{Role.UNKNOWN.value}"}}',
        _limit(Signature.PRODUCER_STRANDED, policy, Role.PREFILL),
        Severity.WARNING,
    )


def _collapse(policy: Policy) -> Alert:
    seconds = policy.collapse_seconds
    window, before = span(seconds), span(_BASELINE_SECONDS)
    whole = span(seconds + _BASELINE_SECONDS)
    return Alert(
        "StanchCollapse",
        f"rate({r.TOKENS}[{window}]) < {policy.collapse_ratio:g} * rate({r.TOKENS}[{before}] offset {window})"
        f"\nand delta({r.WAITING}[{window}]) > 0\nand min_over_time({r.WAITING}[{window}]) > 0"
        f"\nand changes({r.FINISHED}[{window}]) == 0\nand resets({r.TOKENS}[{whole}]) == 0\nand {r.READING}",
        0,
        Severity.WARNING,
        Warn.COLLAPSE.value,
    )


def _creep(policy: Policy) -> Alert:
    bucket = policy.creep_bucket_seconds
    lows = [
        f"min_over_time({r.IDLE}[{span(bucket)}]{f' offset {span(i * bucket)}' if i else ''})"
        for i in range(policy.creep_buckets)
    ]
    rising = "\nand ".join(f"{newer} > {older}" for newer, older in pairwise(lows))
    whole = span(bucket * policy.creep_buckets)
    return Alert(
        "StanchCreep",
        f"{lows[0]} - {lows[-1]} >= {policy.creep_rise_ratio:g}\nand {rising}"
        f"\nand ignoring(role) resets({r.TOKENS}[{whole}]) == 0\nand {r.USAGE}",
        0,
        Severity.WARNING,
        Warn.CREEP.value,
    )


def _transfer_fault(policy: Policy) -> Alert:
    window = span(policy.transfer_fault_seconds)
    return Alert(
        "StanchTransferFault",
        f"(increase({r.FAILED_TRANSFERS}[{window}]) > 0 or increase({r.FAILED_NOTIFICATIONS}[{window}]) > 0)"
        f"\nand {r.READING}",
        0,
        Severity.WARNING,
        Warn.TRANSFER_FAULT.value,
    )
