"""What Prometheus is asked, and what a LeakWatch says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stanch.api.watch import LeakWatch
from stanch.edge.prometheus_query import NAMES, WAYS, Wanted, Way, looked_for, places, query, wanted_of
from stanch.edge.target import Target

pytestmark = pytest.mark.unit
row = pytest.param
ROLES = [{"name": "decode", "selector": {"matchLabels": {"app": "d"}}}]


def watch(**prometheus: Any) -> LeakWatch:
    spec: dict[str, Any] = {"roles": ROLES, "source": "Prometheus"}
    spec["prometheus"] = {"url": "http://prometheus.monitoring:9090", **prometheus}
    return LeakWatch.model_validate({"metadata": {"name": "w", "namespace": "shop"}, "spec": spec})


def asked(*names: str) -> Any:
    return list(places([Target(name, f"http://10.0.0.{i}:8000") for i, name in enumerate(names)]).values())


def test_one_query_asks_for_all_families_of_all_pods() -> None:
    text = query(WAYS[0], Wanted("http://p", "shop"), asked("d0", "d1"))
    assert text.startswith('{__name__=~"vllm:kv_cache_usage_perc|')
    assert text.count('pod=~"d0|d1",namespace="shop"') == 4
    for name in ("up", "process_start_time_seconds", "ray_vllm_num_requests_running"):
        assert name in NAMES
    assert "num_requests_kv_fetch_by_stage" not in text, "what only tells a role is not asked for"
    told = query(
        WAYS[0], Wanted("http://p", "shop"), list(places([Target("d0", "http://d0", True)]).values())
    )
    assert "num_requests_kv_fetch_by_stage" in told
    assert 'namespace="shop",le="1.0"}' in told, "of all buckets the one that counts"


def test_by_the_address_where_no_label_names_the_pod() -> None:
    text = query(WAYS[-1], Wanted("http://p", "shop"), asked("d0"))
    assert r'instance=~"10\\.0\\.0\\.0:8000"' in text
    assert "namespace" not in text


def test_what_people_write_stays_a_value() -> None:
    wanted = Wanted("http://p", "shop", matchers=(("cluster", 'a"} or vector(1) or {x="\\\n'),))
    assert r'cluster="a\"} or vector(1) or {x=\"\\\n"' in query(WAYS[0], wanted, asked("d0.a"))
    assert r'pod=~"d0\\.a"' in query(WAYS[0], wanted, asked("d0.a"))


def test_what_a_watch_says() -> None:
    assert wanted_of(LeakWatch.model_validate({"metadata": {}, "spec": {"roles": ROLES}})) is None
    table = Path("/etc/stanch/prometheus.yaml")
    plain = wanted_of(watch(), table)
    assert plain == Wanted("http://prometheus.monitoring:9090", "shop", table=table)
    labels = {"namespace": "ns", "pod": "pod_name", "engine": "dp_rank"}
    matchers = {"tier": "gpu", "cluster": "eu-1"}
    url = "https://mimir.example/prometheus/"
    assert wanted_of(watch(url=url, labels=labels, matchers=matchers, timeoutSeconds=3)) == Wanted(
        "https://mimir.example/prometheus",
        "shop",
        (Way("ns", "pod_name"),),
        "dp_rank",
        (("cluster", "eu-1"), ("tier", "gpu")),
        3.0,
    )
    assert wanted_of(watch(labels={"pod": "pod_name"})).ways == (Way("namespace", "pod_name"),)  # type: ignore[union-attr]
    assert wanted_of(watch(labels={"engine": "rank"})).ways == WAYS  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wrong",
    [
        row({"url": "http://user:secret@p:9090"}, id="credentials-in-the-url"),
        row({"url": "http://p:9090?x=1"}, id="a-query-in-the-url"),
        row({"url": "http://p:9090/#x"}, id="a-fragment"),
        row({"url": "file:///etc/passwd"}, id="no-http"),
        row({"url": "http://p\\@evil"}, id="backslash"),
        row({"url": "http://p /x"}, id="space"),
        row({"labels": {"pod": 'pod"'}}, id="label-is-no-label"),
        row({"labels": {"pod": ""}}, id="label-is-empty"),
        row({"matchers": {'a"': "b"}}, id="matcher-is-no-label"),
        row({"matchers": {f"a{n}": "b" for n in range(17)}}, id="too-many-matchers"),
        row({"timeoutSeconds": 0}, id="no-time"),
        row({"timeoutSeconds": 121}, id="too-much-time"),
    ],
)
def test_what_a_watch_may_not_say(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        watch(**wrong)


def test_what_was_looked_for_in_words() -> None:
    wanted = Wanted("http://p", "shop", (WAYS[0], WAYS[-1]), matchers=(("cluster", "eu-1"),))
    assert looked_for(wanted) == 'namespace="shop" and pod, then instance and cluster="eu-1"'
