"""`stanch incidents`: which cluster and namespace it means, what it lists and what it says of each."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stanch.api.incident import LeakIncident
from stanch.edge import incident_list
from stanch.edge.cli.kube import Kube, kube_of
from stanch.edge.errors import FileError
from tests.edge.cli import Done, inside
from tests.edge.fake_api import FakeApi, refusal

pytestmark = pytest.mark.unit
row = pytest.param

PATH = "/apis/stanch.dev/v1alpha1/namespaces/shop/leakincidents"
EVERYWHERE = "/apis/stanch.dev/v1alpha1/leakincidents"


def incident(name: str, created: str = "2026-11-29T12:00:00Z", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "shop", "creationTimestamp": created},
        "spec": {"podRef": {"name": f"pod-{name}"}},
        "status": {"created": created, **status},
    }


def ended(name: str, at: str, ending: str = "Resolved", **more: Any) -> dict[str, Any]:
    return incident(name, ended=at, ending=ending, phase=ending, detail="well again", **more)


def run(api: FakeApi, tmp_path: Path, *arguments: str, command: str = "incidents") -> Done:
    async def scene() -> Done:
        async with api:
            config = api.kubeconfig(tmp_path / "config")
            return await inside(command, *arguments, "--kubeconfig", config)

    return asyncio.run(scene())


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


STEP = {"name": "Drain", "start": "2026-11-29T12:00:05Z"}


class TestList:
    def test_the_open_ones_the_oldest_first(self, api: FakeApi, tmp_path: Path) -> None:
        late = incident("late", "2026-11-29T12:01:00Z", phase="Drain", steps=[STEP], stuckCount=3)
        api.listing(PATH, ended("over", "2026-11-29T12:09:00Z"), late, incident("early"))
        done = run(api, tmp_path)
        lines = done.out.splitlines()
        assert (done.code, done.err) == (0, "")
        assert [line.split()[0] for line in lines] == ["name", "early", "late", "2"]
        assert "not looked at yet" in lines[1]
        assert lines[2].split()[1:3] == ["pod-late", "Drain"]
        assert lines[-1] == "2 open"

    def test_all_of_them_the_latest_end_first(self, api: FakeApi, tmp_path: Path) -> None:
        first, second = (
            ended("first", "2026-11-29T12:05:00Z"),
            ended("second", "2026-11-29T12:09:00Z", "Failed"),
        )
        api.listing(PATH, first, second, incident("open"))
        lines = run(api, tmp_path, "--all").out.splitlines()
        assert [line.split()[0] for line in lines[1:-1]] == ["open", "second", "first"]
        assert lines[-1] == "1 open, 2 ended"

    def test_everywhere(self, api: FakeApi, tmp_path: Path) -> None:
        api.listing(EVERYWHERE, incident("a"))
        lines = run(api, tmp_path, "-A").out.splitlines()
        assert lines[0].split()[:2] == ["namespace", "name"]
        assert lines[1].split()[:2] == ["shop", "a"]

    def test_another_namespace(self, api: FakeApi, tmp_path: Path) -> None:
        api.listing(PATH.replace("shop", "other"))
        assert run(api, tmp_path, "-n", "other").out.startswith("no incident is open")
        assert run(api, tmp_path, "-n", "other", "--all").out == "no incident is there\n"

    def test_json(self, api: FakeApi, tmp_path: Path) -> None:
        api.listing(PATH, incident("a", wait="Cooldown: 12 s"))
        (data,) = run(api, tmp_path, "--output", "json").objects
        assert {key: data[key] for key in ("schema", "namespace", "name", "created")} == {
            "schema": "stanch.incident/1",
            "namespace": "shop",
            "name": "a",
            "created": "2026-11-29T12:00:00+00:00",
        }
        assert data["spec"]["podRef"]["name"] == "pod-a"
        assert data["status"]["wait"] == "Cooldown: 12 s"

    def test_one_that_cannot_be_read_hides_no_other(self, api: FakeApi, tmp_path: Path) -> None:
        api.listing(PATH, incident("a"), ended("b", "2026-11-29T12:05:00Z", "Teleported"))
        done = run(api, tmp_path)
        assert done.code == 3
        assert done.out.splitlines()[1].startswith("a ")
        assert done.err.startswith("cannot tell about shop/b: ")
        assert "newer Stanch" in done.err

    def test_words_of_engines_stay_printable(self, api: FakeApi, tmp_path: Path) -> None:
        api.listing(PATH, incident("a", wait="Cooldown: \x1b[31mred"))
        assert "\x1b" not in run(api, tmp_path).out

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            row(None, "does not know the kinds of stanch.dev: they come with the chart", id="no-kinds"),
            row(
                refusal(403, "Forbidden", "alice may not list"),
                "alice may not list (HTTP 403)",
                id="forbidden",
            ),
            row(refusal(401, "Unauthorized", "Unauthorized"), "Unauthorized (HTTP 401)", id="unknown-user"),
            row((200, []), "is no object", id="something-else"),
        ],
    )
    def test_cannot_tell(
        self, api: FakeApi, tmp_path: Path, answer: tuple[int, Any] | None, words: str
    ) -> None:
        if answer is not None:
            api.answers[f"GET {PATH}"] = answer
        done = run(api, tmp_path)
        assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
        assert done.err.startswith("cannot tell: ")
        assert words in done.err


def test_no_server(tmp_path: Path) -> None:
    config = kubeconfig(tmp_path / "config", "http://127.0.0.1:1")
    done = asyncio.run(inside("incidents", "--kubeconfig", str(config)))
    assert (done.code, done.out) == (3, "")
    assert "no answer" in done.err


def kubeconfig(path: Path, server: str, **contexts: dict[str, str]) -> Path:
    found = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [
            {"name": name, "context": {"cluster": "c", "user": "u", **more}}
            for name, more in (contexts or {"here": {}}).items()
        ],
        "current-context": next(iter(contexts or {"here": {}})),
    }
    path.write_text(json.dumps(found))
    return path


class TestKube:
    def test_the_context_s_namespace(self, tmp_path: Path) -> None:
        config = str(kubeconfig(tmp_path / "a", "http://h", here={"namespace": "shop"}, there={}))
        assert kube_of(config, None, None) == Kube(config, "here", "shop")
        assert kube_of(config, "there", None) == Kube(config, "there", "default")
        assert kube_of(config, None, "mine") == Kube(config, "here", "mine")

    def test_of_several_files_the_first_current_context_counts(self, tmp_path: Path) -> None:
        """As kubectl has it; the Python client takes the last."""
        one = kubeconfig(tmp_path / "1", "http://h", first={"namespace": "a"})
        two = kubeconfig(tmp_path / "2", "http://h", second={"namespace": "b"})
        config = f"{one}:{tmp_path / 'none'}:{two}"
        assert kube_of(config, None, None) == Kube(config, "first", "a")
        assert kube_of(config, "second", None) == Kube(config, "second", "b")

    def test_kubeconfig_of_the_environment_or_of_home(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        assert kube_of(None, None, None).kubeconfig is None
        (tmp_path / ".kube").mkdir()
        home = kubeconfig(tmp_path / ".kube/config", "http://h", home={"namespace": "own"})
        assert kube_of("", None, None) == Kube(str(home), "home", "own")

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            row("{", "cannot be read", id="no-yaml"),
            row("just words", "this is no kubeconfig", id="no-mapping"),
            row("a: !!int x", "cannot be read: invalid literal", id="no-number"),
            row("a: !!timestamp x", "a value is not what its tag says", id="no-time"),
            row("[" * 5000, "nested too deeply", id="deep"),
            row("a: " + "x" * (4 << 20), "larger than 4 MB", id="large"),
            row(b"\xff\xfea\x00", "it is not UTF-8 text", id="utf-16"),
        ],
    )
    def test_a_file_that_is_none(self, tmp_path: Path, text: str | bytes, words: str) -> None:
        (tmp_path / "config").write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(FileError, match=words):
            kube_of(str(tmp_path / "config"), None, None)

    @pytest.mark.parametrize("name", ["/dev/zero", "/"])
    def test_what_is_no_file(self, name: str) -> None:
        with pytest.raises(FileError, match=r"larger than 4 MB|Is a directory"):
            kube_of(name, None, None)

    @pytest.mark.parametrize("name", ["~no-such-user/config", "x" * 300, "a\nb"])
    def test_a_name_that_no_file_has(self, name: str) -> None:
        done = asyncio.run(inside("incidents", "--kubeconfig", name))
        assert (done.code, "cannot be read" in done.err or "no such file" in done.err) in (
            (3, True),
            (65, True),
        )

    def test_a_home_that_cannot_be_looked_into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As in a pod whose user is not that of its HOME; root may look anywhere but at such a name."""
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.setenv("HOME", "/" + "x" * 300)
        assert kube_of(None, None, "shop") == Kube(None, None, "shop")
        done = asyncio.run(inside("incidents"))
        assert (done.code, "Name a kubeconfig" in done.err) == (3, True)

    @pytest.mark.parametrize("contexts", [5, "a", [5, {"name": "a", "context": 7}]])
    def test_contexts_that_are_none(self, tmp_path: Path, contexts: object) -> None:
        (tmp_path / "config").write_text(json.dumps({"current-context": "a", "contexts": contexts}))
        done = asyncio.run(inside("incidents", "--kubeconfig", str(tmp_path / "config")))
        assert (done.code, done.out, f"kubeconfig {tmp_path}/config: " in done.err) == (3, "", True)

    @pytest.mark.parametrize("server", ["", "foo bar", "ftp://h", "http://h:99999", "http://[::1", "http://"])
    def test_a_server_without_an_address(self, tmp_path: Path, server: str) -> None:
        config = kubeconfig(tmp_path / "config", server)
        done = asyncio.run(inside("incidents", "--kubeconfig", str(config)))
        assert (done.code, done.out, "is none of http or https" in done.err) == (3, "", True)

    def test_a_server_name_that_is_none(self, tmp_path: Path) -> None:
        config = kubeconfig(tmp_path / "config", "https://127.0.0.1:1")
        found = json.loads(config.read_text())
        found["clusters"][0]["cluster"]["tls-server-name"] = 5
        config.write_text(json.dumps(found))
        done = asyncio.run(inside("incidents", "--kubeconfig", str(config)))
        assert (done.code, "tls-server-name is no text" in done.err) == (3, True)

    @pytest.mark.parametrize("key", ["certificate-authority-data", "client-certificate-data"])
    def test_a_certificate_that_is_none(self, tmp_path: Path, key: str) -> None:
        config = kubeconfig(tmp_path / "config", "https://127.0.0.1:1")
        found = json.loads(config.read_text())
        junk = {key: "aGVsbG8=", "client-key-data": "aGVsbG8="}
        found["clusters"][0]["cluster"] |= junk if "authority" in key else {}
        found["users"][0]["user"] = {} if "authority" in key else junk
        config.write_text(json.dumps(found))
        done = asyncio.run(inside("incidents", "--kubeconfig", str(config)))
        assert (done.code, done.out, "its certificates or its key cannot be used" in done.err) == (
            3,
            "",
            True,
        )

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        done = asyncio.run(inside("incidents", "--kubeconfig", str(tmp_path / "none")))
        assert (done.code, "there is no such file" in done.err) == (3, True)

    def test_a_context_that_is_not_there(self, tmp_path: Path) -> None:
        config = str(kubeconfig(tmp_path / "a", "http://h"))
        done = asyncio.run(inside("incidents", "--kubeconfig", config, "--context", "nope"))
        assert (done.code, "nope" in done.err) == (3, True)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        row({}, "not looked at yet", id="new"),
        row({"steps": [{**STEP, "end": STEP["start"], "outcome": "Failed"}]}, "Failed", id="no-detail"),
        row({"steps": [{**STEP, "end": STEP["start"], "outcome": "Done"}]}, "", id="done"),
        row({"steps": [STEP], "wait": "Cooldown: 9 s"}, "waits: Cooldown: 9 s", id="waits"),
        row({"ending": "GaveUp", "code": "NeverConfirmed", "wait": "x"}, "NeverConfirmed", id="ended"),
    ],
)
def test_what_is_said_of_one(status: dict[str, Any], words: str) -> None:
    assert incident_list.what(LeakIncident.model_validate(incident("a", **status))) == words
