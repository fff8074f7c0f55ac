"""From a payload to LeakIncidents: which are made, which are not, and what the answer says."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stanch.api.incident import LeakIncident
from stanch.core.history import Trigger
from stanch.edge.alerts_incidents import incident_name
from stanch.edge.alerts_listener import Bounds
from stanch.edge.alerts_payload import Alert
from tests.edge.alerts_world import SMALL, START, World, alert, payload, play, world
from tests.edge.fake_api import refusal
from tests.edge.fake_vllm import until

pytestmark = pytest.mark.unit
row = pytest.param

RESOLVED = {"status": "resolved", "endsAt": "2026-11-30T05:00:00Z"}


def test_an_alert_becomes_an_incident(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        w.pod()
        answer = await w.send(payload(alert()))
        assert (answer.code, answer.data) == (
            200,
            {
                "schema": "stanch.alerts/1",
                "accepted": 1,
                "duplicate": 0,
                "resolved": 0,
                "unmapped": 0,
                "truncated": 0,
                "reasons": [],
            },
        )
        await w.worked(created=1)
        (made,) = w.api.incidents
        assert made["metadata"]["name"].startswith("d0-alert-")
        assert made["metadata"]["labels"] == {"stanch.dev/alert": "6d5b3a4c0e1f2a3b"}
        assert made["spec"] == {
            "podRef": {"name": "d0", "uid": "uid-d0"},
            "trigger": {
                "type": "Alert",
                "by": "stanch",
                "reason": "d0 holds its cache for nobody",
                "alert": {
                    "name": "EngineHoldsCache",
                    "fingerprint": "6d5b3a4c0e1f2a3b",
                    "startsAt": "2026-11-30T04:42:21.123000Z",
                    "engine": "0",
                },
            },
        }
        assert LeakIncident.model_validate(made).spec.trigger.type is Trigger.ALERT
        (line,) = w.lines("alert-incident")
        assert line["incident"] == f"shop/{made['metadata']['name']}"

    play(script, tmp_path)


def test_repeats_and_other_replicas_make_no_second_one(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        w.pod()
        again = payload(alert(), alert())
        assert (await w.send(again)).data["duplicate"] == 1
        await w.worked(created=1)
        answer = await w.send(again)
        assert (answer.code, answer.data["accepted"], answer.data["duplicate"]) == (200, 0, 2)

        # Another replica remembers nothing: the API server does.
        async def other(of: World) -> None:
            of.pod()
            name = w.api.incidents[0]["metadata"]["name"]
            of.api.put("leakincidents", name, {"spec": {}, "status": {}})
            await of.send(payload(alert()))
            await of.worked(exists=1)
            assert len(of.api.incidents) == 1
            assert "alert-failed" not in [line["event"] for line in of.lines()]

        (tmp_path / "other").mkdir()
        async with world(tmp_path / "other") as of:
            await other(of)

    play(script, tmp_path)


@pytest.mark.parametrize(
    "differs",
    [
        row({"startsAt": "2026-11-30T06:00:00Z"}, id="it-fires-again"),
        row({"fingerprint": "ffff000011112222"}, id="another-alert"),
    ],
)
def test_what_is_another_alert_is_another_incident(tmp_path: Path, differs: dict[str, str]) -> None:
    async def script(w: World) -> None:
        w.pod()
        await w.send(payload(alert(), alert(**differs)))
        await w.worked(created=2)
        assert len({one["metadata"]["name"] for one in w.api.incidents}) == 2

    play(script, tmp_path)


def test_the_same_moment_in_another_zone_is_the_same_alert(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        w.pod()
        elsewhere = alert(startsAt="2026-11-30T06:42:21.123000001+02:00")
        assert (await w.send(payload(alert(), elsewhere))).data["duplicate"] == 1

    play(script, tmp_path)


def test_a_name_is_the_same_everywhere_and_for_nothing_else() -> None:
    given = Alert.model_validate_json(json.dumps(alert()))
    elsewhere = Alert.model_validate_json(json.dumps(alert(startsAt="2026-11-30T06:42:21.123+02:00")))
    later = Alert.model_validate_json(json.dumps(alert(startsAt="2026-11-30T06:42:21.123Z")))
    other = Alert.model_validate_json(json.dumps(alert(fingerprint="aa")))
    name = incident_name("d0", "u1", given)
    assert name == incident_name("d0", "u1", elsewhere) == "d0-alert-ee096d1819e2"
    assert (
        len({name, *(incident_name("d0", *of) for of in (("u2", given), ("u1", later), ("u1", other)))}) == 4
    )
    long = incident_name(f"{'a' * 39}-{'b' * 200}", "u1", given)
    assert (len(long), long[:46]) == (58, f"{'a' * 39}-alert-")


def test_resolved_is_written_down_and_nothing_else(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        w.pod()
        await w.send(payload(alert()))
        await w.worked(created=1)
        (made,) = w.api.incidents
        made["status"] = {"phase": "Drain", "unit": "shop/d0", "steps": [{"name": "Drain", "start": START}]}
        answer = await w.send(payload(alert(**RESOLVED)))
        assert (answer.code, answer.data["resolved"], answer.data["accepted"]) == (200, 1, 0)
        await w.worked(resolved=1)
        status = made["status"]
        assert status["alertResolved"] == "2026-11-30T05:00:00.000000Z"
        assert (status["phase"], status["unit"], "ending" in status) == ("Drain", "shop/d0", False)
        assert [step["name"] for step in status["steps"]] == ["Drain"]
        assert w.api.writes() == [
            "POST leakincidents",
            f"PUT leakincidents/{made['metadata']['name']}/status",
        ]
        await until(lambda: "POST events" in w.api.seen, 10)

    play(script, tmp_path)


def test_resolved_before_it_was_worked_off_still_finds_its_incident(tmp_path: Path) -> None:
    """In one notification: first it is made, then it is resolved."""

    async def script(w: World) -> None:
        w.pod()
        await w.send(payload(alert(), alert(**RESOLVED)))
        await w.worked(created=1, resolved=1)
        assert w.api.incidents[0]["status"]["alertResolved"]

    play(script, tmp_path)


@pytest.mark.parametrize(
    "differs", [{}, {"startsAt": "2026-11-30T03:00:00Z"}, {"fingerprint": "ffff"}], ids=str
)
def test_resolved_of_another_alert_changes_nothing(tmp_path: Path, differs: dict[str, str]) -> None:
    async def script(w: World) -> None:
        w.pod()
        if differs:
            await w.send(payload(alert()))
            await w.worked(created=1)
        await w.send(payload(alert(**{**RESOLVED, **differs})))
        await w.worked(unknown=1)
        assert not any("alertResolved" in one["status"] for one in w.api.incidents)

    play(script, tmp_path)


def test_resolved_meets_the_watchdog_s_own_write(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        w.pod()
        await w.send(payload(alert()))
        await w.worked(created=1)
        (made,) = w.api.incidents
        meant = [True, True]

        async def refuse(request: web.Request) -> tuple[int, dict[str, Any]] | None:
            if request.method == "PUT" and meant:
                meant.pop()
                w.api._touched(made)
                made["status"] = {"phase": f"step {len(meant)}"}
            return None

        w.api.refuse = refuse
        await w.send(payload(alert(**RESOLVED)))
        await w.worked(resolved=1)
        assert (made["status"]["phase"], bool(made["status"]["alertResolved"])) == ("step 0", True)

    play(script, tmp_path)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        row({"alertname": "x"}, "none of the labels that would name its pod: exported_namespace", id="none"),
        row({"namespace": "shop", "pod": "D 0"}, "label pod is no name of a pod: 'D 0'", id="no-name"),
        row(
            {"namespace": "../x", "pod": "d0"}, "label namespace is no name of a namespace", id="no-namespace"
        ),
        row({"namespace": "", "pod": "d0"}, "none of the labels", id="empty"),
    ],
)
def test_labels_that_name_no_pod(tmp_path: Path, labels: dict[str, str], says: str) -> None:
    async def script(w: World) -> None:
        w.pod()
        for _ in range(2):
            answer = await w.send(payload(alert(labels=labels)))
            assert (answer.code, answer.data["unmapped"]) == (200, 1)
            (why,) = answer.data["reasons"]
            assert says in why["reason"]
            assert why["fingerprint"] == "6d5b3a4c0e1f2a3b"
        assert w.counted("unmapped") == 2
        (line,) = w.lines("alert-unmapped")
        assert (line["level"], line["fingerprint"]) == ("warning", "6d5b3a4c0e1f2a3b")
        assert line["alert"] == labels.get("alertname", "")
        assert w.api.seen == []

    play(script, tmp_path)


def test_a_namespace_that_is_not_watched_here(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        w.pod()
        answer = await w.send(payload(alert()))
        assert answer.data["reasons"][0]["reason"] == "namespace shop is none of those that are watched here"

    play(script, tmp_path, watch_namespaces=("lab",))


def test_a_pod_that_does_not_exist(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        assert (await w.send(payload(alert()))).data["accepted"] == 1
        await w.worked(gone=1)
        assert w.lines("alert-without-pod")[0]["message"] == "there is no pod d0 in namespace shop"
        # It may come yet: nothing was remembered.
        w.pod()
        assert (await w.send(payload(alert()))).data["accepted"] == 1
        await w.worked(created=1)

    play(script, tmp_path)


@pytest.mark.parametrize(
    ("pods", "result"),
    [
        row([{}], "created", id="one"),
        row([], "gone", id="none"),
        row([{}, {}], "gone", id="two-on-the-network-of-their-node"),
        row([{}, {"phase": "Succeeded"}], "created", id="another-had-it-before"),
    ],
)
def test_a_pod_by_its_address(tmp_path: Path, pods: list[dict[str, str]], result: str) -> None:
    async def script(w: World) -> None:
        for number, status in enumerate(pods):
            w.pod(f"d{number}", **status)
        labels = {"alertname": "x", "instance": "10.0.0.7:8000"}
        await w.send(payload(alert(labels=labels)))
        await w.worked(**{result: 1})
        assert [one["spec"]["podRef"]["name"] for one in w.api.incidents] == ["d0"] * (result == "created")

    play(script, tmp_path)


def test_truncated_alerts_are_told(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        w.pod()
        answer = await w.send(payload(alert(), truncatedAlerts=7))
        assert answer.data["truncated"] == 7
        assert "left out 7 alerts" in w.lines("alerts-truncated")[0]["message"]
        registry = w.telemetry.families.registry
        assert registry.get_sample_value("stanch_alerts_truncated_total") == 7

    play(script, tmp_path)


def test_a_server_in_trouble_is_asked_again(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        w.pod()
        trouble = [True]

        async def refuse(request: web.Request) -> tuple[int, dict[str, Any]] | None:
            if request.method == "POST" and trouble:
                trouble.pop()
                return refusal(503, "ServiceUnavailable", "not now")
            return None

        w.api.refuse = refuse
        await w.send(payload(alert()))
        await w.worked(created=1)

    play(script, tmp_path)


def test_what_the_server_will_never_take_is_told_and_the_next_one_comes(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        w.pod("d0")
        w.pod("d1")

        async def refuse(request: web.Request) -> tuple[int, dict[str, Any]] | None:
            if request.method == "POST" and "d0" in await request.text():
                return refusal(403, "Forbidden", "not you")
            return None

        w.api.refuse = refuse
        both = payload(alert("d0"), alert("d1", fingerprint="d1"))
        answer = await w.send(both)
        await w.worked(failed=1, created=1)
        # Alertmanager counts it as a notification that failed, and tries again.
        said = ["1 alerts could not be written to the API server"]
        assert (answer.code, answer.data["errors"]) == (503, said)
        (line,) = w.lines("alert-failed")
        assert (line["level"], "not you" in line["message"]) == ("error", True)

    play(script, tmp_path)


def test_an_answer_of_no_sense_ends_nothing(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        w.pod()
        nonsense: list[tuple[int, dict[str, Any]]] = [
            (200, {"metadata": []}),
            (200, {"metadata": {"name": "d0"}}),
            (200, {}),
        ]

        async def refuse(_: web.Request) -> tuple[int, dict[str, Any]] | None:
            return nonsense.pop() if nonsense else None

        w.api.refuse = refuse
        await w.send(payload(*(alert(fingerprint=f"{n}") for n in range(4))))
        await w.worked(failed=3, created=1)
        assert len(w.lines("alert-failed")) == 3

    play(script, tmp_path)


def test_success_is_answered_when_the_incident_is_written(tmp_path: Path) -> None:
    """Alertmanager sends an alert again after a failure, and after a success hours later: what is only in our
    memory when we crash must not count as taken."""

    async def script(w: World) -> None:
        w.pod()
        stuck = asyncio.Event()

        async def refuse(request: web.Request) -> tuple[int, dict[str, Any]] | None:
            if request.method == "POST":
                await stuck.wait()
            return None

        w.api.refuse = refuse
        one = payload(alert())
        for _ in range(2):
            answer = await w.send(one)
            assert (answer.code, answer.headers["retry-after"]) == (503, "5")
        (line,) = w.lines("alerts-not-written")
        assert line["message"] == "1 alerts are not written to the API server yet"
        waiting = asyncio.create_task(w.send(one))
        stuck.set()
        assert (await waiting).code == 200
        await w.worked(created=1)
        assert len(w.api.incidents) == 1

    play(script, tmp_path, bounds=replace(SMALL, answer_seconds=0.5))


def test_the_queue_is_bounded(tmp_path: Path) -> None:
    """Nothing of what has no room is taken, and the answer makes Alertmanager send it again."""

    async def script(w: World) -> None:
        w.pod()
        stuck = asyncio.Event()

        async def refuse(_: web.Request) -> tuple[int, dict[str, Any]] | None:
            await stuck.wait()
            return None

        w.api.refuse = refuse
        for part in range(2):
            many = [alert(fingerprint=f"{part}a{n}") for n in range(1000)]
            late = await w.send(payload(*many))
            assert (late.code, late.data["errors"]) == (
                503,
                ["1000 alerts are not written to the API server yet"],
            )
        full = await w.send(payload(alert()))
        assert (full.code, full.headers["retry-after"]) == (503, "10")
        assert full.data["errors"] == ["too many alerts wait"]
        # One that has come before takes no room, and is no more written than it was.
        again = await w.send(payload(alert(fingerprint="0a0")))
        assert (again.code, again.data["errors"][0][:24]) == (503, "1 alerts are not written")
        stuck.set()
        await w.worked(created=2000)
        assert (await w.send(payload(alert()))).code == 200

    play(script, tmp_path, bounds=replace(Bounds(), connection_seconds=60.0, answer_seconds=0.1))


def test_at_the_end_what_was_taken_is_worked_off(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        for number in range(20):
            w.pod(f"d{number}")
        many = [alert(f"d{number}", fingerprint=f"{number}") for number in range(20)]
        assert (await w.send(payload(*many))).code == 503

    found: list[World] = []

    async def whole() -> None:
        async with world(tmp_path, bounds=replace(SMALL, answer_seconds=0.0)) as w:
            found.append(w)
            await script(w)

    asyncio.run(whole())
    assert len(found[0].api.incidents) == 20
