"""`stanch remediate`: the object that it makes, and what it says where it makes none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stanch.api.incident import LeakIncident
from stanch.edge.cli.remediate import body
from tests.edge.cli import Done
from tests.edge.fake_api import FakeApi, refusal
from tests.edge.test_cli_incidents import PATH, run

pytestmark = pytest.mark.unit
row = pytest.param

POD = "GET /api/v1/namespaces/shop/pods/d0"
POST = f"POST {PATH}"
WHO = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews"
MADE = (201, {"metadata": {"name": "d0-x7k2p", "namespace": "shop"}})


@pytest.fixture
def api() -> FakeApi:
    found = FakeApi()
    found.answers[POD] = (200, {"metadata": {"name": "d0", "uid": "uid-0"}})
    found.answers[POST] = MADE
    found.answers[WHO] = (201, {"status": {"userInfo": {"username": "oidc:ada"}}})
    return found


def remediate(api: FakeApi, tmp_path: Path, *arguments: str) -> Done:
    return run(api, tmp_path, *arguments, command="remediate")


def test_it_names_the_pod_that_is_there_now(api: FakeApi, tmp_path: Path) -> None:
    done = remediate(api, tmp_path, "d0", "--reason", "cache full since noon")
    assert (done.code, done.err) == (0, "")
    assert done.out == "made incident d0-x7k2p; what becomes of it: stanch incidents --all -n shop\n"
    (posted,) = [found for key, found in api.asked if key == POST]
    assert posted == {
        "apiVersion": "stanch.dev/v1alpha1",
        "kind": "LeakIncident",
        "metadata": {"generateName": "d0-"},
        "spec": {
            "podRef": {"name": "d0", "uid": "uid-0"},
            "trigger": {"type": "Person", "by": "oidc:ada", "reason": "cache full since noon"},
        },
    }


@pytest.mark.parametrize(
    "answer",
    [refusal(403, "Forbidden", "not you"), (201, {"status": {}}), (404, {})],
    ids=["forbidden", "nobody", "no such kind"],
)
def test_where_the_server_does_not_say_who_that_is_it_is_made_all_the_same(
    api: FakeApi, tmp_path: Path, answer: tuple[int, Any]
) -> None:
    api.answers[WHO] = answer
    assert remediate(api, tmp_path, "d0").code == 0
    (posted,) = [found for key, found in api.asked if key == POST]
    assert posted["spec"]["trigger"]["by"] == ""


def test_json(api: FakeApi, tmp_path: Path) -> None:
    done = remediate(api, tmp_path, "d0", "--output", "json")
    assert json.loads(done.out) == {
        "schema": "stanch.remediation/1",
        "namespace": "shop",
        "name": "d0-x7k2p",
        "pod": "d0",
    }


def test_the_kind_takes_what_is_made() -> None:
    made = LeakIncident.model_validate(body("d0", "uid-0", "why", "u" * 300))
    trigger = made.spec.trigger
    assert (made.spec.pod_ref.uid, trigger.type.value, trigger.reason) == ("uid-0", "Person", "why")
    assert trigger.by == "u" * 253


CAUSES = [
    {"field": "spec.trigger.reason", "message": "Too long: may not be more than 1024 bytes"},
    {"field": "<nil>", "message": "some validation rules were not checked"},
]


@pytest.mark.parametrize(
    ("key", "answer", "code", "words"),
    [
        row(
            POD,
            refusal(404, "NotFound", "pods d0 not found"),
            1,
            "refused: there is no pod d0 in namespace shop",
            id="no-pod",
        ),
        row(
            POST,
            refusal(422, "Invalid", "a long story", causes=CAUSES),
            1,
            "refused: spec.trigger.reason: Too long: may not be more than 1024 bytes",
            id="invalid",
        ),
        row(
            POST,
            refusal(403, "Forbidden", "alice may not create"),
            1,
            "refused: create leakincidents in shop: alice may not create (HTTP 403)",
            id="forbidden",
        ),
        row(
            POST,
            None,
            1,
            "refused: the cluster does not know the kinds of stanch.dev: "
            "they come with the chart: helm install (docs/install.md); with crds.install false "
            "kubectl apply --server-side -f crds/",
            id="no-kinds",
        ),
        row(
            POST,
            refusal(500, "InternalError", "etcd is away"),
            3,
            "cannot tell: create leakincidents in shop: etcd is away (HTTP 500)",
            id="trouble",
        ),
    ],
)
def test_none_is_made(
    api: FakeApi, tmp_path: Path, key: str, answer: tuple[int, Any] | None, code: int, words: str
) -> None:
    if answer is None:
        del api.answers[key]
    else:
        api.answers[key] = answer
    done = remediate(api, tmp_path, "d0")
    assert (done.code, done.out, done.err) == (code, "", f"{words}\n")


def test_a_write_is_sent_once(api: FakeApi, tmp_path: Path) -> None:
    """Whether it happened is not known after no answer, so a second try could make a second incident."""
    api.answers[POST] = refusal(503, "ServiceUnavailable", "later")
    remediate(api, tmp_path, "d0")
    assert sum(key == POST for key, _ in api.asked) == 1
