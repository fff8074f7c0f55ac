"""From an answer's series to pages: whose they are, of which scrape, and that they say what the page said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stanch.edge.exposition import Labels, Page
from stanch.edge.exposition import read as read_page
from stanch.edge.families import FAMILIES
from stanch.edge.prometheus_answer import Found, MalformedError, read
from stanch.edge.prometheus_query import WAYS, Place, Way, places
from stanch.edge.target import Target
from tests.edge.fake_vllm import Rank
from tests.edge.pages import recorded as page_of_recording
from tests.edge.prometheus_server import Series, scraped

pytestmark = pytest.mark.unit
row = pytest.param

NOW, T = 1_800_000_100.0, 1_800_000_093.25
KUBE = {
    "namespace": "shop",
    "pod": "d0",
    "container": "vllm",
    "endpoint": "http",
    "instance": "10.0.0.7:8000",
    "job": "shop/decode",
}
RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"


def page(*ranks: Rank, start: float = 1_700_000_000.0, extra: str = "") -> str:
    lines = [line for rank in ranks or (Rank(usage=0.3),) for line in rank.lines()]
    return "".join(f"{line}\n" for line in (f"process_start_time_seconds {start}", *lines)) + extra


def asked(*names: str, host: str = "10.0.0.7") -> dict[str, Place]:
    found = [Target(n, f"http://{host}:{n.partition('/')[2] or 8000}") for n in names or ("d0",)]
    return places(found)


def found(
    series: list[Series],
    way: Way = WAYS[0],
    places_: dict[str, Place] | None = None,
    before: dict[str, Labels] | None = None,
    engine: str = "",
) -> dict[str, Found]:
    of = places_ or asked()
    got, _ = read(series, way, of, before or {}, dict.fromkeys(of, 10.0), engine)
    return got


def plain(got: Page) -> Page:
    """Without what is never asked of Prometheus: what tells a role."""
    extra = {family.field: None for family in FAMILIES if family.evidence}
    return replace(got, engines=tuple(replace(one, **extra) for one in got.engines))  # type: ignore[arg-type]


def recorded() -> list[Any]:
    """Some pages of each recording."""
    return [
        row(text.decode(), id=f"{folder.name}-{role}-{number}")
        for folder in sorted(RECORDINGS.iterdir())
        for role in ("decode", "prefill")
        if (folder / f"{role}.jsonl.gz").exists()
        for number, text in enumerate(page_of_recording(role, folder.name)[::60])
    ]


@pytest.mark.parametrize("text", recorded())
def test_an_answer_says_what_the_page_said(text: str) -> None:
    said = found(scraped(text, KUBE, T, NOW))["d0"]
    assert said.t == T
    assert said.page == plain(read_page(text.encode()))
    assert said.page.engines


@pytest.mark.parametrize(
    ("way", "target"),
    [
        row(WAYS[0], KUBE, id="PodMonitor"),
        row(
            WAYS[1],
            {"kubernetes_namespace": "shop", "kubernetes_pod_name": "d0", "instance": "10.0.0.7:8000"},
            id="annotations",
        ),
        row(
            WAYS[2],
            {"k8s_namespace_name": "shop", "k8s_pod_name": "d0", "instance": "10.0.0.7:8000", "job": "x"},
            id="OpenTelemetry",
        ),
        row(WAYS[3], {"instance": "10.0.0.7:8000", "job": "static"}, id="instance"),
        row(Way("ns", "pod_name"), {"ns": "shop", "pod_name": "d0", "instance": "gpu-3"}, id="own-labels"),
        row(WAYS[0], {**KUBE, "instance": "d0:http"}, id="instance-is-pod-and-port-name"),
        row(WAYS[0], {k: v for k, v in KUBE.items() if k != "instance"}, id="no-instance"),
        row(WAYS[0], {**KUBE, "instance": "10.0.0.7:8443"}, id="through-a-proxy"),
        row(WAYS[0], {**KUBE, "engine": "vllm", "model_name": "its-label"}, id="labels-of-vllm-are-taken"),
    ],
)
def test_the_common_setups(way: Way, target: dict[str, str]) -> None:
    other = {**target, way.key: "other" if way.pod else "10.0.0.8:8000"}
    series = [*scraped(page(Rank(usage=0.9)), other, T, NOW), *scraped(page(), target, T, NOW)]
    said = found(series, way)
    assert list(said) == ["d0"]
    (engine,) = said["d0"].page.engines
    assert (engine.model, engine.engine, engine.usage, engine.problem) == ("tiny", "0", 0.3, None)
    assert (said["d0"].page.process_start, engine.finished) == (1_700_000_000.0, 10)


def test_the_label_of_the_rank_may_be_another() -> None:
    text = page(Rank("0"), Rank("1", usage=0.5)).replace("engine=", "dp_rank=")
    engines = found(scraped(text, KUBE, T, NOW), engine="dp_rank")["d0"].page.engines
    assert [(one.engine, one.usage) for one in engines] == [("0", 0.0), ("1", 0.5)]


def test_two_servers_of_a_pod_are_told_apart_by_their_port() -> None:
    both = asked("d0/8000", "d0/8001")
    series = [
        *scraped(page(Rank(usage=0.1)), KUBE, T, NOW),
        *scraped(page(Rank(usage=0.2)), {**KUBE, "instance": "10.0.0.7:8001"}, T, NOW),
    ]
    said = found(series, places_=both)
    assert {name: one.page.engines[0].usage for name, one in said.items()} == {"d0/8000": 0.1, "d0/8001": 0.2}
    lost = found(scraped(page(), {**KUBE, "instance": "d0:http"}, T, NOW), places_=both)
    assert lost == {}, "nothing tells which of both it is"


def test_the_engine_is_preferred_to_a_side_car_that_passes_its_page_on() -> None:
    proxy = scraped(page(Rank(usage=0.9)), {**KUBE, "instance": "10.0.0.7:7999"}, T + 1, NOW)
    both = [*proxy, *scraped(page(), KUBE, T, NOW)]
    assert found(both)["d0"].page.engines[0].usage == 0.3


def replica(name: str, usage: float, t: float) -> list[Series]:
    return scraped(page(Rank(usage=usage)), {**KUBE, "prometheus_replica": name}, t, NOW)


def test_of_two_replicas_one_is_chosen_and_stays_chosen() -> None:
    def usage(series: list[Series], before: Labels | None = None) -> float | None:
        known = {} if before is None else {"d0": before}
        return found(series, before=known)["d0"].page.engines[0].usage

    a, b = replica("a", 0.1, T), replica("b", 0.2, T + 3)
    assert usage([*a, *b]) == usage([*b, *a]) == 0.1, "by its labels, whatever their order"
    group = found(b)["d0"].group
    assert ("prometheus_replica", "b") in group
    assert usage([*a, *b], group) == 0.2
    assert usage([*a, *replica("b", 0.2, T - 9)], group) == 0.2, "a little behind"
    assert usage([*a, *replica("b", 0.2, T - 11)], group) == 0.1, "it has ended"
    assert usage([*replica("a", 0.1, T - 60), *b]) == 0.2


def test_counters_of_two_replicas_are_never_added() -> None:
    (engine,) = found([*replica("a", 0.1, T), *replica("b", 0.1, T)])["d0"].page.engines
    assert (engine.generation_tokens, engine.finished) == (1000, 10)


def test_counters_of_one_page_are_added_over_its_own_labels() -> None:
    extra = 'vllm:request_success_total{engine="0",model_name="tiny",finished_reason="abort"} 5\n'
    assert found(scraped(page(extra=extra), KUBE, T, NOW))["d0"].page.engines[0].finished == 15


def test_another_container_of_the_pod_is_not_the_engine() -> None:
    exporter = scraped("process_start_time_seconds 5\n", {**KUBE, "instance": "10.0.0.7:9400"}, T, NOW)
    said = found([*exporter, *scraped(page(), KUBE, T, NOW)])["d0"]
    assert said.page.process_start == 1_700_000_000.0


@pytest.mark.parametrize(
    ("family", "value", "field", "seen"),
    [
        row("vllm:kv_cache_usage_perc", "NaN", "usage", "nan", id="NaN-is-handed-on"),
        row("vllm:kv_cache_usage_perc", "-0.5", "usage", "-0.5", id="negative-is-handed-on"),
        row("vllm:num_requests_waiting", "+Inf", "waiting", "inf", id="infinite"),
    ],
)
def test_values_are_handed_on_as_they_are(family: str, value: str, field: str, seen: str) -> None:
    series = scraped(page(), KUBE, T, NOW)
    for one in series:
        if one["metric"].get("__name__") == family:
            one["value"][1] = value
    (engine,) = found(series)["d0"].page.engines
    assert str(getattr(engine, field)) == seen


@pytest.mark.parametrize(
    "family", ["vllm:kv_cache_usage_perc", "vllm:num_requests_waiting", "vllm:generation_tokens_total"]
)
def test_a_family_that_is_absent_is_not_zero(family: str) -> None:
    series = [one for one in scraped(page(), KUBE, T, NOW) if one["metric"].get("__name__") != family]
    if family == "vllm:generation_tokens_total":
        series = [o for o in series if o["metric"].get("__name__") != "vllm:prompt_tokens_total"]
    (engine,) = found(series)["d0"].page.engines
    assert engine.problem is not None
    assert engine.problem.startswith(f"{family} is missing in Prometheus")


def test_two_api_servers_that_contradict_each_other_are_blind() -> None:
    text = page() + page(Rank(usage=0.7)).partition("\n")[2]
    head, tail = text[: len(text) // 2], text[len(text) // 2 :]
    text = head.replace("{engine", '{pid="1",engine') + tail.replace("{engine", '{pid="2",engine')
    (engine,) = found(scraped(text, KUBE, T, NOW))["d0"].page.engines
    assert engine.problem == "the page gives vllm:kv_cache_usage_perc of one engine twice (0.3 and 0.7)"


def test_a_rank_that_is_not_of_the_newest_scrape_is_not_believed() -> None:
    series = scraped(page(Rank("0"), Rank("1")), KUBE, T, NOW)
    for one in series:
        if one["metric"].get("stanch_scraped_at") and one["metric"]["engine"] == "1":
            one["value"][1] = str(T - 15)
    assert [one.engine for one in found(series)["d0"].page.engines] == ["0"]


def test_what_cannot_be_scraped_says_so() -> None:
    down = found(scraped("", KUBE, T, NOW, up=0))["d0"]
    assert (down.t, down.page.engines) == (None, ())
    assert "up is 0" in (down.page.problem or "")
    wrong = found(scraped("process_start_time_seconds 5\n", KUBE, T, NOW))["d0"]
    assert "no metric of an engine" in (wrong.page.problem or "")
    assert found([]) == {}


@pytest.mark.parametrize(
    "broken",
    [
        row(5, id="a-number"),
        row({}, id="nothing"),
        row({"metric": {"pod": "d0", "__name__": "up"}}, id="no-value"),
        row({"metric": {"pod": "d0", "__name__": "up"}, "value": [1, "x"]}, id="no-number"),
        row({"metric": {"pod": "d0", "__name__": "up"}, "value": ["x", "1"]}, id="no-time"),
        row({"metric": {"pod": "d0"}, "value": [1, "1"]}, id="no-name"),
        row({"metric": ["pod"], "value": [1, "1"]}, id="labels-are-a-list"),
        row({"metric": {"pod": ["d0"]}, "value": [1, "1"]}, id="a-label-is-a-list"),
        row(
            {"metric": {"pod": "d0", "stanch_scraped_at": "yes"}, "value": [1, "NaN"]}, id="no-time-of-scrape"
        ),
        row({"metric": {"pod": "d0", "__name__": "up"}, "value": [1, "1", "2"]}, id="three-values"),
        row({"metric": {"pod": "d0", "__name__": "up"}, "value": [1, None]}, id="null"),
        row({"metric": {"pod": "d0", "__name__": 7}, "value": [1, "1"]}, id="name-is-a-number"),
        row({"metric": dict(KUBE, __name__="x", x=[]), "value": [1, "1"]}, id="a-list-as-label"),
        row({"metric": dict(KUBE, stanch_scraped_at="", x=[]), "value": [1, "1"]}, id="a-list-of-a-time"),
    ],
)
def test_garbage_is_refused_as_a_whole(broken: Any) -> None:
    series = scraped(page(), KUBE, T, NOW)
    for at in (0, len(series)):
        with pytest.raises(MalformedError):
            found([*series[:at], broken, *series[at:]])
