"""Each signature as an alert: right and wrong series, missing ones, NaN, restarts, old names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from stanch.core.policy import Policy
from tests.monitoring.promtool import STALE, Check, Series, needs_promtool
from tests.monitoring.synthetic import (
    DECODE,
    NAMELESS,
    OWN,
    PREFILL,
    Values,
    engine,
    fires,
    points,
    rising,
    steps,
    wrong,
)

pytestmark = [pytest.mark.unit, needs_promtool]
NAN = float("nan")


def leak(minutes: float, usage: float = 0.4) -> list[float | str | None]:
    """Nothing held for two minutes, then this much."""
    return steps((2, 0.0), (minutes - 2, usage))


def every(minutes: float, seconds: int) -> list[float | None]:
    """0.4, scraped once in so many seconds."""
    each = seconds // 15
    return [0.4 if i % each == 0 else None for i in range(points(minutes))]


def kit(minutes: float, parked: float, orphans: float, oldest: float) -> list[Series]:
    labels = {**DECODE, "engine": "0"}
    return [
        Series("stanch_parked_requests", labels, [parked] * points(minutes)),
        Series("stanch_orphan_requests", labels, [orphans] * points(minutes)),
        Series("stanch_oldest_stuck_seconds", labels, [oldest] * points(minutes)),
    ]


def thinned(series: Sequence[Series], seconds: int) -> list[Series]:
    each = seconds // 15
    return [
        Series(s.name, s.labels, [v if i % each == 0 else None for i, v in enumerate(s.values)])
        for s in series
    ]


HELD_IDLE = [
    pytest.param(engine(8, usage=leak(8)), [fires(2.75), fires(6, "StanchHeldIdle")], id="held"),
    pytest.param(engine(8, usage=leak(8, 0.04)), [fires(7)], id="under the floor"),
    pytest.param(engine(8, usage=leak(8), generation=rising(8)), [fires(7)], id="tokens move"),
    pytest.param(engine(8, usage=leak(8), prompt=rising(8)), [fires(7)], id="prompt tokens move"),
    pytest.param(engine(8, usage=leak(8), running=1), [fires(7)], id="something runs"),
    pytest.param(
        engine(8, usage=[0.9 - i / 50 for i in range(points(8))]), [fires(6)], id="blocks are given back"
    ),
    pytest.param(engine(8, usage=leak(8), awake=0), [fires(7)], id="asleep"),
    pytest.param(
        engine(8, usage=leak(8), drop=["deferred", "capacity"]),
        [fires(6, "StanchHeldIdle")],
        id="before 0.20",
    ),
    pytest.param(engine(8, usage=leak(8), drop=["awake"]), [fires(6, "StanchHeldIdle")], id="no sleep state"),
    pytest.param(
        engine(8, usage=leak(8), drop=["prompt"]), [fires(6, "StanchHeldIdle")], id="one token counter"
    ),
    pytest.param(
        engine(8, usage=steps((2, 0.0), (4, 0.4), (2, STALE))),
        [fires(5.5, "StanchHeldIdle"), fires(7)],
        id="gone",
    ),
    pytest.param(
        engine(8, usage=leak(8), generation=steps((5, 1000), (3, 0)), prompt=steps((5, 1000), (3, 0))),
        [fires(4.9, "StanchHeldIdle"), fires(5.75), fires(7.75, "StanchHeldIdle")],
        id="a restart starts the hold anew",
    ),
    pytest.param(
        engine(16, {**DECODE, "bidirectional": "true"}, usage=leak(16)),
        [fires(9), fires(13, "StanchHeldIdle/may-be-pinned")],
        id="bidirectional: beyond the pin only",
    ),
    pytest.param(
        [*engine(16, usage=leak(16)), *kit(16, 0, 0, 0)],
        [fires(9), fires(13, "StanchHeldIdle/may-be-pinned")],
        id="the kit lists nobody: beyond a pin only",
    ),
    pytest.param(
        [*engine(8, usage=leak(8)), *kit(8, 0, 2, 30)],
        [fires(6, "StanchHeldIdle")],
        id="the kit lists orphans",
    ),
    pytest.param(
        [*engine(8, usage=leak(8)), *kit(8, NAN, NAN, NAN)],
        [fires(4.9, "StanchHeldIdle"), fires(7, "StanchHeldIdle", "StanchKitSilent")],
        id="the kit is silent",
    ),
    pytest.param(
        engine(25, PREFILL, usage=leak(25)), [fires(15), fires(23, "StanchProducerStranded")], id="a prefill"
    ),
    pytest.param(
        engine(25, {**DECODE, "role": "both"}, usage=leak(25)),
        [fires(15), fires(23, "StanchProducerStranded")],
        id="both roles",
    ),
    pytest.param(
        [*engine(25, PREFILL, usage=leak(25)), *engine(25, waiting=1, running=1, generation=rising(25))],
        [fires(23)],
        id="a prefill whose decodes wait",
    ),
    pytest.param(
        engine(25, NAMELESS, usage=leak(25)), [fires(15), fires(23, "StanchRoleUnknown")], id="no role told"
    ),
    pytest.param(
        engine(8, {**NAMELESS, "stanch_dev_role": "decode"}, usage=leak(8)),
        [fires(6, "StanchHeldIdle")],
        id="the role by the label of a DisaggDeployment",
    ),
    pytest.param(
        engine(25, {**NAMELESS, "stanch_dev_role": "prefill"}, usage=leak(25)),
        [fires(15), fires(23, "StanchProducerStranded")],
        id="the role by the label of a DisaggDeployment, prefill",
    ),
    pytest.param(
        engine(8, {**NAMELESS, "llm_d_ai_role": "decode"}, usage=leak(8)),
        [fires(6, "StanchHeldIdle")],
        id="the role by llm-d's label",
    ),
    pytest.param(
        engine(25, {**NAMELESS, "role_name": "decode"}, usage=leak(25)),
        [fires(6), fires(23, "StanchRoleUnknown")],
        id="a common word without what stands beside it",
    ),
    pytest.param(
        engine(25, {**NAMELESS, "role": "worker"}, usage=leak(25)),
        [fires(15), fires(23, "StanchRoleUnknown")],
        id="a label role that means something else",
    ),
    pytest.param(
        thinned(engine(10, usage=leak(10)), 60), [fires(8, "StanchHeldIdle")], id="scraped once a minute"
    ),
    pytest.param(
        thinned(engine(40, usage=leak(40)), 120),
        [fires(m / 4, "StanchScrapedTooRarely") for m in range(120, 156)],
        id="scraped too rarely",
    ),
]


@pytest.mark.parametrize(("series", "checks"), HELD_IDLE)
def test_held_idle(series: list[Series], checks: list[Check], tmp_path: Path) -> None:
    assert wrong(series, checks, tmp_path) == ""


NAMES = [
    pytest.param({"vllm:gpu_cache_usage_perc": leak(8)}, ["usage"], id="before 0.9.2"),
    pytest.param(
        {"vllm:kv_cache_usage_perc": leak(8), "vllm:gpu_cache_usage_perc": leak(8)},
        [],
        id="both names, 0.9.2 to 0.11",
    ),
    pytest.param(
        {
            "ray_vllm_kv_cache_usage_perc": leak(8),
            "ray_vllm_num_requests_running": 0.0,
            "ray_vllm_num_requests_waiting": 0.0,
            "ray_vllm_generation_tokens": 100.0,
            "ray_vllm_prompt_tokens": 100.0,
        },
        ["usage", "running", "waiting", "generation", "prompt"],
        id="Ray, counters without _total",
    ),
    pytest.param(
        {
            "ray_vllm:kv_cache_usage_perc": leak(8),
            "ray_vllm:num_requests_running": 0.0,
            "ray_vllm:num_requests_waiting": 0.0,
            "ray_vllm:generation_tokens_total": 100.0,
            "ray_vllm:generation_tokens": 100.0,
        },
        ["usage", "running", "waiting", "generation", "prompt"],
        id="Ray with a colon, counters twice",
    ),
]


@pytest.mark.parametrize(("page", "drop"), NAMES)
def test_the_names_of_every_version(page: dict[str, Values], drop: list[str], tmp_path: Path) -> None:
    series = engine(8, DECODE, page, drop=drop)
    assert wrong(series, [fires(2.75), fires(6, "StanchHeldIdle")], tmp_path) == ""


BLIND = [
    pytest.param(engine(12, usage=leak(12), drop=["waiting"]), id="waiting is missing"),
    pytest.param(engine(12, usage=leak(12), drop=["running"]), id="running is missing"),
    pytest.param(engine(12, drop=["usage"]), id="usage is missing"),
    pytest.param(
        engine(12, usage=leak(12), drop=["generation", "prompt"]), id="both token counters are missing"
    ),
    pytest.param(engine(12, usage=NAN), id="usage is NaN"),
    pytest.param(engine(12, usage=leak(12), waiting=NAN), id="waiting is NaN"),
    pytest.param(engine(12, usage=leak(12), generation=NAN, drop=["prompt"]), id="the token counter is NaN"),
    pytest.param(engine(12, usage=-1.0), id="usage is negative"),
    pytest.param(engine(12, usage=40.0), id="usage is no share"),
    pytest.param([Series("up", DECODE, [1.0] * points(12))], id="a target with a role and no family at all"),
    pytest.param(
        [
            Series(s.name, s.labels, s.values if s.name == "up" else [*s.values[: points(2)], STALE])
            for s in engine(12, NAMELESS)
        ],
        id="a target whose families have gone",
    ),
]


@pytest.mark.parametrize("series", BLIND)
def test_what_cannot_be_judged_is_blind_and_nothing_else(series: list[Series], tmp_path: Path) -> None:
    assert wrong(series, [fires(4), fires(11, "StanchBlind")], tmp_path) == ""


def test_what_is_senseless_for_long_is_blind_and_not_scraped_too_rarely(tmp_path: Path) -> None:
    seen = engine(60, usage=steps((30, 0.0), (30, NAN)))
    checks = [fires(29), *(fires(m) for m in (31, 33, 34)), *(fires(m, "StanchBlind") for m in range(37, 60))]
    assert wrong(seen, checks, tmp_path) == ""


def test_a_pod_that_is_replaced_is_missed_by_nothing(tmp_path: Path) -> None:
    """Its target is gone with it, and another one comes; the same address may come back as another pod."""
    gone = [Series(s.name, s.labels, [*s.values[: points(30)], STALE]) for s in engine(60)]
    fresh = [
        Series(s.name, s.labels, [*[None] * points(31), *s.values[: points(29)]])
        for s in engine(60, {**DECODE, "instance": "10.0.0.20:8000", "pod": "decode-0-new"})
    ]
    assert wrong([*gone, *fresh], [fires(m) for m in range(25, 60)], tmp_path) == ""


def test_what_was_down_for_a_while_is_not_scraped_too_rarely(tmp_path: Path) -> None:
    down = range(points(30), points(36))
    seen = [
        Series(
            s.name,
            s.labels,
            [
                (0.0 if s.name == "up" else STALE if i == down[0] else None) if i in down else v
                for i, v in enumerate(s.values)
            ],
        )
        for s in engine(60)
    ]
    assert wrong(seen, [fires(m) for m in range(25, 60)], tmp_path) == ""


def test_what_is_down_or_another_program_is_not_blind(tmp_path: Path) -> None:
    down = [
        Series(s.name, s.labels, [0.0] * points(12) if s.name == "up" else [*s.values[: points(2)], STALE])
        for s in engine(12)
    ]
    other = Series("up", {"job": "node", "instance": "10.0.0.9:9100"}, [1.0] * points(12))
    assert wrong([*down, other], [fires(m) for m in (3, 8, 11)], tmp_path) == ""


def test_nothing_fires_without_series(tmp_path: Path) -> None:
    other = Series("up", {"job": "node", "instance": "10.0.0.9:9100"}, [1.0] * points(60))
    assert wrong([other], [fires(m) for m in (0, 10, 30, 59)], tmp_path) == ""


QUEUES = [
    pytest.param(
        engine(8, usage=leak(8), waiting=steps((2, 0), (6, 2)), deferred=steps((2, 0), (6, 2))),
        [fires(3.75), fires(7, "StanchDeferredStall")],
        id="all put off",
    ),
    pytest.param(
        engine(8, waiting=2, deferred=2),
        [fires(1.5), fires(7, "StanchDeferredStall")],
        id="put off, nothing held",
    ),
    pytest.param(
        engine(8, waiting=2, deferred=1, capacity=1),
        [fires(1.5), fires(7, "StanchQueueDeadlock")],
        id="one is not",
    ),
    pytest.param(
        engine(8, usage=0.9, waiting=2, capacity=2), [fires(7, "StanchQueueDeadlock")], id="no room for them"
    ),
    pytest.param(
        engine(8, usage=0.4, waiting=2, drop=["deferred", "capacity"]),
        [fires(7, "StanchDeferredStall")],
        id="before 0.20, blocks held",
    ),
    pytest.param(
        engine(8, waiting=2, drop=["deferred", "capacity"]),
        [fires(7, "StanchQueueDeadlock")],
        id="before 0.20, nothing held",
    ),
    pytest.param(engine(8, waiting=2, deferred=2, generation=rising(8)), [fires(7)], id="tokens move"),
    pytest.param(
        engine(8, waiting=2, deferred=2, running=1, iterations=rising(8)), [fires(7)], id="something runs"
    ),
    pytest.param(engine(25, PREFILL, waiting=2, deferred=2), [fires(24)], id="put off on a prefill"),
    pytest.param(
        engine(25, PREFILL, waiting=2, capacity=2),
        [fires(15), fires(23, "StanchQueueDeadlock/not-decode")],
        id="a queue on a prefill",
    ),
    pytest.param(
        engine(16, {**DECODE, "bidirectional": "true"}, usage=0.9, waiting=2, capacity=2),
        [fires(8), fires(13, "StanchQueueDeadlock/may-be-pinned")],
        id="a queue beside pinned turns",
    ),
    pytest.param(
        engine(8, {**DECODE, "bidirectional": "true"}, waiting=2, capacity=2),
        [fires(7, "StanchQueueDeadlock")],
        id="bidirectional, nothing pinned",
    ),
    *(
        pytest.param(
            engine(25, target, usage=usage, waiting=2, capacity=2, running=1, iterations=rising(25)),
            [fires(m) for m in (7, 13, 23)],
            id=f"a queue behind what runs: {name}",
        )
        for name, target, usage in (
            ("decode", DECODE, 0.9),
            ("bidirectional", {**DECODE, "bidirectional": "true"}, 0.9),
            ("prefill", PREFILL, 0.9),
        )
    ),
    pytest.param(
        engine(16, {**DECODE, "bidirectional": "true"}, usage=0.9, waiting=2, deferred=2),
        [fires(13, "StanchDeferredStall")],
        id="bidirectional, all put off",
    ),
    pytest.param(
        [
            *engine(25, PREFILL, waiting=2, capacity=2),
            *engine(25, waiting=1, running=1, generation=rising(25)),
        ],
        [fires(23)],
        id="a queue on a prefill whose decodes wait",
    ),
]


@pytest.mark.parametrize(("series", "checks"), QUEUES)
def test_queues(series: list[Series], checks: list[Check], tmp_path: Path) -> None:
    assert wrong(series, checks, tmp_path) == ""


NO_PROGRESS = [
    pytest.param(
        engine(22, usage=0.3, running=3),
        [fires(4.5), fires(8, "StanchNoProgress"), fires(20, "StanchNoProgress")],
        id="no step",
    ),
    pytest.param(
        engine(22, usage=0.3, running=1, generation=0, iterations=rising(22)),
        [fires(20)],
        id="before its first token, steps are made",
    ),
    pytest.param(
        engine(22, usage=[0.3 + i / 1000 for i in range(points(22))], running=1, generation=0),
        [fires(20)],
        id="before its first token, a chunked prefill",
    ),
    pytest.param(
        engine(10, PREFILL, usage=0.3, running=3), [fires(8, "StanchNoProgress")], id="on a prefill"
    ),
    pytest.param(
        engine(20, usage=[0.3 + i / 1000 for i in range(points(20))], running=1),
        [fires(19)],
        id="a chunked prefill",
    ),
    pytest.param(engine(20, usage=0.3, running=1, iterations=rising(20)), [fires(19)], id="steps are made"),
    pytest.param(engine(20, usage=0.3, running=1, drop=["iterations"]), [fires(19)], id="steps are not told"),
    pytest.param(
        engine(22, usage=0.3, running=1, generation=0),
        [fires(14), fires(20, "StanchNoProgress/warming-up")],
        id="before its first token",
    ),
]


@pytest.mark.parametrize(("series", "checks"), NO_PROGRESS)
def test_no_progress(series: list[Series], checks: list[Check], tmp_path: Path) -> None:
    assert wrong(series, checks, tmp_path) == ""


def busy(minutes: float, low: float, dip: int | None = None, **values: object) -> list[Series]:
    """An engine that serves: idle at every second look, with `low` held then; at point `dip` with nothing."""
    count = points(minutes)
    usage = [low if i % 2 else low + 0.2 for i in range(count)]
    if dip is not None:
        usage[dip] = 0.01
    running = [float(i % 2 == 0) for i in range(count)]
    more = {"generation": rising(minutes), "iterations": rising(minutes), **values}
    return engine(minutes, usage=usage, running=running, **more)  # type: ignore[arg-type]


HELD_FLOOR = [
    pytest.param(busy(40, 0.3), [fires(25), fires(35, "StanchHeldFloor")], id="never under the floor"),
    pytest.param(busy(40, 0.3, dip=81), [fires(39)], id="once under it"),
    pytest.param(busy(40, 0.02), [fires(39)], id="healthy traffic"),
    pytest.param(
        engine(40, usage=0.5, running=[float(i % 12 > 0) for i in range(points(40))], generation=rising(40)),
        [fires(39)],
        id="too few idle moments",
    ),
    pytest.param(
        busy(50, 0.3, generation=[*rising(25), *rising(25, 0)]), [fires(45)], id="a restart within the window"
    ),
    pytest.param(thinned(busy(40, 0.3), 45), [fires(35, "StanchHeldFloor")], id="scraped every 45 s"),
    pytest.param(
        [Series(s.name, s.labels, [*s.values[: points(36)], STALE]) for s in busy(40, 0.3)],
        [fires(35.75, "StanchHeldFloor"), fires(36.25), fires(39)],
        id="it goes with the engine",
    ),
    pytest.param([*busy(40, 0.3), *kit(40, 0, 0, 0)], [fires(39)], id="the kit lists nobody"),
    pytest.param(
        [*busy(40, 0.3), *kit(40, 0, 3, 20)], [fires(35, "StanchHeldFloor")], id="the kit lists orphans"
    ),
    pytest.param(busy(40, 0.3, waiting=1.0), [fires(39)], id="something waits in every idle moment"),
    pytest.param(busy(40, 0.3, awake=0.0), [fires(39)], id="asleep"),
]


@pytest.mark.parametrize(("series", "checks"), HELD_FLOOR)
def test_held_floor(series: list[Series], checks: list[Check], tmp_path: Path) -> None:
    assert wrong(series, checks, tmp_path) == ""


def test_no_held_floor_where_turns_are_pinned(tmp_path: Path) -> None:
    series = [Series(s.name, {**s.labels, "bidirectional": "true"}, s.values) for s in busy(40, 0.3)]
    assert wrong(series, [fires(39)], tmp_path) == ""


def test_collapse(tmp_path: Path) -> None:
    """Of several whose tokens become few: one still finishes requests, the queue of one stands, one restarts,
    one is asked again only now, one goes."""
    few = [*rising(80, 0, 100), *rising(20, 32_000, 1)]
    grows = [*[1.0] * points(80), *[float(i) for i in range(points(20))]]

    def slow(pod: str, **values: Values) -> list[Series]:
        target = {**DECODE, "pod": pod, "instance": pod}
        seen = {"usage": 0.4, "running": 2, "generation": few, "iterations": rising(100), "waiting": grows}
        return engine(100, target, **{**seen, **values})  # type: ignore[arg-type]

    series = [
        *slow("collapses"),
        *slow("finishes", stopped=rising(100)),
        *slow("stands", waiting=3),
        *slow("restarts", generation=[*rising(80, 0, 100), *rising(20, 0, 1)]),
        # Nobody asks it for anything until now.
        *slow("begins", waiting=[*[0.0] * points(90), *[float(i) for i in range(points(10))]]),
        *(Series(s.name, s.labels, [*s.values[: points(94)], STALE]) for s in slow("goes")),
    ]
    firing = 'group by (alertname, pod) (ALERTS{alertstate="firing"})'
    checks = [
        Check(79 * 60, firing),
        Check(95 * 60, firing, [{"alertname": "StanchCollapse", "pod": "collapses"}]),
    ]
    assert wrong(series, checks, tmp_path) == ""


def test_creep(tmp_path: Path) -> None:
    """By the quarter of an hour, as a policy may say: the others stay, fall once, restart, or go."""
    minutes = 72

    def by_quarter(*lows: float) -> list[float]:
        return [lows[i // points(15)] for i in range(points(minutes))]

    lows = by_quarter(0.001, 0.011, 0.021, 0.031, 0.041)

    def slow(pod: str, usage: Values, generation: Values) -> list[Series]:
        return engine(minutes, {**DECODE, "pod": pod, "instance": pod}, usage=usage, generation=generation)

    series = [
        *slow("creeps", lows, rising(minutes)),
        *slow("stays", 0.04, rising(minutes)),
        *slow("falls first", by_quarter(0.011, 0.001, 0.021, 0.045, 0.045), rising(minutes)),
        *slow("falls then", by_quarter(0.001, 0.021, 0.011, 0.045, 0.045), rising(minutes)),
        *slow("falls last", by_quarter(0.001, 0.021, 0.045, 0.035, 0.035), rising(minutes)),
        *slow("restarts", lows, [*rising(40), *rising(32, 0)]),
        *(
            Series(s.name, s.labels, [*s.values[: points(60)], STALE])
            for s in slow("goes", lows, rising(minutes))
        ),
    ]
    firing = 'group by (alertname, pod) (ALERTS{alertstate="firing"})'
    checks = [
        Check(40 * 60, firing),
        Check(61 * 60, firing, [{"alertname": "StanchCreep", "pod": "creeps"}]),
    ]
    assert wrong(series, checks, tmp_path, Policy(creep_bucket_seconds=900)) == ""


def test_transfer_fault(tmp_path: Path) -> None:
    three = steps((5, 0), (25, 3))
    for seen in (engine(30, transfers=three), engine(30, notifications=three)):
        assert wrong(seen, [fires(4), fires(8, "StanchTransferFault"), fires(20)], tmp_path) == ""
    gone = [Series(s.name, s.labels, [*s.values[: points(8)], STALE]) for s in engine(30, transfers=three)]
    assert wrong(gone, [fires(7, "StanchTransferFault"), fires(9)], tmp_path) == ""
    restarted = engine(30, transfers=steps((5, 7), (25, 0)))
    assert wrong(restarted, [fires(8), fires(20)], tmp_path) == ""


def test_the_kits_list(tmp_path: Path) -> None:
    assert wrong([*engine(8), *kit(8, 1, 0, 130)], [fires(1, "StanchParkedRemoteKV")], tmp_path) == ""
    assert wrong([*engine(8), *kit(8, 1, 0, 110)], [fires(7)], tmp_path) == ""
    assert wrong([*engine(8), *kit(8, 0, 0, 0)], [fires(7)], tmp_path) == ""


def test_the_kit_itself(tmp_path: Path) -> None:
    labels = {**DECODE, "engine": "0"}
    errors = Series("stanch_kit_errors", labels, steps((5, 0), (25, 2)))
    assert wrong([errors], [fires(4), fires(7, "StanchKitErrors"), fires(25)], tmp_path) == ""
    server = Series("stanch_kit_server_errors", DECODE, steps((5, 0), (25, 2)))
    assert wrong([server], [fires(4), fires(7, "StanchKitErrors"), fires(25)], tmp_path) == ""
    fix = [
        Series("stanch_fix", {**labels, "fix": of}, [float(of == "unpatched")] * points(30))
        for of in ("active", "not-needed", "unpatched", "off")
    ]
    assert wrong(fix, [fires(10), fires(20, "StanchUnpatched")], tmp_path) == ""
    prefill = [Series(s.name, {**s.labels, **PREFILL}, s.values) for s in fix]
    assert wrong([*engine(30, PREFILL), *prefill], [fires(20)], tmp_path) == ""
    active = [Series(s.name, s.labels, [float(s.labels["fix"] == "active")] * points(30)) for s in fix]
    assert wrong(active, [fires(20)], tmp_path) == ""


EVIDENCE = [
    pytest.param(
        {
            "vllm:external_prefix_cache_hits_total": 960.0,
            "vllm:request_params_max_tokens_count": 15.0,
            'vllm:request_params_max_tokens_bucket{le="1.0"}': 0.0,
        },
        [fires(6, "StanchHeldIdle"), fires(23, "StanchHeldIdle")],
        id="a decode: it has loaded from elsewhere",
    ),
    pytest.param(
        {
            "vllm:external_prefix_cache_hits_total": 0.0,
            "vllm:request_params_max_tokens_count": 28.0,
            'vllm:request_params_max_tokens_bucket{le="1.0"}': 28.0,
        },
        [fires(6), fires(15), fires(23, "StanchProducerStranded")],
        id="a prefill: asked for one token each",
    ),
    pytest.param(
        {"vllm:nixl_num_notifications_after_expiry_total": 0.0},
        [fires(6), fires(23, "StanchProducerStranded")],
        id="a producer of 0.32",
    ),
    pytest.param(
        {
            "vllm:external_prefix_cache_hits_total": 960.0,
            "vllm:request_params_max_tokens_count": 15.0,
            'vllm:request_params_max_tokens_bucket{le="1.0"}': 15.0,
        },
        [fires(6), fires(23, "StanchRoleUnknown")],
        id="signs of both",
    ),
    pytest.param(
        {
            "vllm:external_prefix_cache_hits_total": 96.0,
            "vllm:request_params_max_tokens_count": 3.0,
            'vllm:request_params_max_tokens_bucket{le="1.0"}': 0.0,
        },
        [fires(6), fires(23, "StanchRoleUnknown")],
        id="too few requests to tell",
    ),
    pytest.param(
        {
            "vllm:external_prefix_cache_hits_total": 0.0,
            "vllm:request_params_max_tokens_count": 15.0,
            'vllm:request_params_max_tokens_bucket{le="1.0"}': 0.0,
        },
        [fires(6), fires(23, "StanchRoleUnknown")],
        id="it has loaded nothing from elsewhere",
    ),
]


@pytest.mark.parametrize(("page", "checks"), EVIDENCE)
def test_the_role_by_what_the_engine_counts(
    page: dict[str, Values], checks: list[Check], tmp_path: Path
) -> None:
    assert wrong(engine(25, NAMELESS, page, usage=leak(25)), checks, tmp_path) == ""


@pytest.mark.parametrize("asked_one", [0.0, 28.0], ids=["as a decode's", "as a prefill's"])
def test_without_nixl_the_counters_tell_no_role(asked_one: float, tmp_path: Path) -> None:
    page: dict[str, Values] = {
        "vllm:external_prefix_cache_hits_total": 0.0 if asked_one else 960.0,
        "vllm:request_params_max_tokens_count": 28.0,
        'vllm:request_params_max_tokens_bucket{le="1.0"}': asked_one,
    }
    seen = engine(25, NAMELESS, page, usage=leak(25), drop=["transfers", "notifications"])
    assert wrong(seen, [fires(6), fires(23, "StanchRoleUnknown")], tmp_path) == ""


def test_the_ranks_of_a_server_are_judged_by_themselves(tmp_path: Path) -> None:
    second = [Series(s.name, {**s.labels, "engine": "1"}, s.values) for s in engine(8) if s.name != "up"]
    both = [*engine(8, usage=leak(8)), *second]
    check = Check(6 * 60, 'group by (engine) (ALERTS{alertstate="firing"})', [{"engine": OWN["engine"]}])
    assert wrong(both, [check], tmp_path) == ""
