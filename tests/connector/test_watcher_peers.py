"""Several API-server processes of one engine: what is open over all, and who leads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stanch_connector.apiserver.gate import Gate
from stanch_connector.apiserver.peers import Folder, Peer, open_folder, total
from stanch_connector.apiserver.restart import Process
from stanch_connector.apiserver.watcher import Watcher
from stanch_connector.contract import ANNOTATION_COMMAND

pytestmark = pytest.mark.unit

TOTALS: dict[str, tuple[list[int | None], int | None]] = {
    "nobody": ([], None),
    "alone": ([2], 2),
    "together": ([2, 0, 3], 5),
    "one does not know": ([2, None], None),
}


@pytest.mark.parametrize(("counts", "expected"), TOTALS.values(), ids=TOTALS.keys())
def test_total(counts: list[int | None], expected: int | None) -> None:
    assert total({pid: Peer(pid, count, ()) for pid, count in enumerate(counts)}) == expected


def test_who_died_no_longer_counts_and_leaves_no_file(tmp_path: Path) -> None:
    living = {10, 20}
    folders = [
        Folder(tmp_path, Process(pid, 1, 5, ()), lambda process: process.pid in living) for pid in living
    ]
    for folder in folders:
        folder.publish(1, [])
    assert total(folders[0].read()) == 2
    living.remove(20)
    assert (total(folders[0].read()), len(list(tmp_path.iterdir()))) == (1, 1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"open": 1}', '{"open": "1", "outcomes": []}'])
def test_a_file_that_says_nothing_is_one_that_does_not_know(tmp_path: Path, text: str) -> None:
    (tmp_path / "10-5.json").write_text(text)
    (tmp_path / "other.json").write_text(text)
    found = Folder(tmp_path, Process(11, 1, 5, ()), lambda process: True).read()
    assert found == {10: Peer(10, None, ())}


def test_a_folder_of_ones_own_or_none(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    folder = open_folder("b00t/..", (str(tmp_path / "missing"), str(tmp_path / "a")))
    assert folder is not None
    [made] = (tmp_path / "a").iterdir()
    assert (made.stat().st_mode & 0o777, "/" in made.name) == (0o700, False)
    folder.publish(0, [])
    folder.remove()
    assert list((tmp_path / "a").iterdir()) == []
    assert open_folder("b00t", (str(tmp_path / "missing"),)) is None
    assert open_folder("", (str(tmp_path / "a"),)) is None


def test_a_folder_that_is_a_link_is_not_taken(tmp_path: Path) -> None:
    first = open_folder("b00t", (str(tmp_path),))
    assert first is not None
    [made] = tmp_path.iterdir()
    made.rmdir()
    (tmp_path / "elsewhere").mkdir()
    made.symlink_to(tmp_path / "elsewhere")
    assert open_folder("b00t", (str(tmp_path),)) is None


def test_only_the_leader_releases_and_the_others_tell_its_outcome(tmp_path: Path) -> None:
    """This process against one with a lower pid, which leads."""
    own = open_folder("b00t", (str(tmp_path),))
    assert own is not None
    [folder] = tmp_path.iterdir()
    leader = Folder(folder, Process(1, 0, 5, ()), lambda process: True)
    own_alive = Folder(folder, own._own, lambda process: True)
    leader.publish(0, [])
    gate = Gate("b00t", counting=True)
    handed: list[object] = []
    gate.releaser = lambda order, report: handed.append(order)
    file = tmp_path / "annotations"
    said = json.dumps({"id": "x", "verb": "release", "bootId": "b00t"})
    file.write_text(f"{ANNOTATION_COMMAND}={json.dumps(said)}")
    watcher = Watcher(gate, str(file), own_alive)
    watcher.once()
    assert (handed, gate.outcomes()[0]["state"]) == ([], "accepted")
    leader.publish(0, [{"id": "x", "verb": "release", "state": "done", "released": ["a"]}])
    watcher.once()
    assert gate.outcomes() == [{"id": "x", "verb": "release", "state": "done", "released": ["a"]}]


def test_where_the_others_cannot_be_told_a_drain_is_not_at_rest(tmp_path: Path) -> None:
    now = [0.0]
    gate = Gate("b00t", clock=lambda: now[0], counting=True)
    folder = open_folder("b00t", (str(tmp_path),))
    assert folder is not None
    [made] = tmp_path.iterdir()
    made.rmdir()
    made.write_text("in the way")
    file = tmp_path / "annotations"
    said = json.dumps({"id": "d", "verb": "drain", "bootId": "b00t", "deadlineSeconds": 5})
    file.write_text(f"{ANNOTATION_COMMAND}={json.dumps(said)}")
    watcher = Watcher(gate, str(file), folder)
    for tenth in range(40):
        now[0] = tenth / 10
        watcher.once()
    assert gate.outcomes()[0]["state"] == "running"
    assert (gate.guard.errors, gate.guard.disabled) == ({}, None)
    made.unlink()
    for tenth in range(40, 49):
        now[0] = tenth / 10
        watcher.once()
    assert gate.outcomes()[0]["state"] == "done"


def test_a_command_by_post_reaches_every_process_once(tmp_path: Path) -> None:
    """A release is carried out by one process, the one that was asked; the others show its outcome."""
    own = open_folder("b00t", (str(tmp_path),))
    assert own is not None
    [folder] = tmp_path.iterdir()
    other = Folder(folder, Process(1, 0, 5, ()), lambda process: True)
    texts = [json.dumps({"id": verb, "verb": verb, "bootId": "b00t"}) for verb in ("drain", "release")]
    other.publish(0, [], texts)
    gate = Gate("b00t", counting=True)
    handed: list[object] = []
    gate.releaser = lambda order, report: handed.append(order)
    watcher = Watcher(gate, str(tmp_path / "none"), Folder(folder, own._own, lambda process: True))
    for _ in range(3):
        watcher.once()
    assert gate.turns_away("/v1/completions", None) == "draining"
    assert handed == []
    assert gate.posted() == []
    other.publish(0, [{"id": "release", "verb": "release", "state": "done", "released": ["a"]}], texts)
    watcher.once()
    assert {one["id"]: one["state"] for one in gate.outcomes()}["release"] == "done"


def test_what_came_by_post_is_told_to_the_others(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-enough-bytes")
    (tmp_path / "shm").mkdir()
    own = open_folder("b00t", (str(tmp_path / "shm"),))
    assert own is not None
    gate = Gate("b00t", token_file=str(token), counting=True)
    gate.releaser = lambda order, report: None
    for verb in ("restart", "release"):
        body = json.dumps({"id": verb, "verb": verb, "bootId": "b00t"}).encode()
        assert gate.command(body, "Bearer a-token-of-enough-bytes")[0] == 200
    gate.restart_failed("not in a test")
    Watcher(gate, str(tmp_path / "none"), own).once()
    [peer] = own.read().values()
    assert [json.loads(text)["id"] for text in peer.posted] == ["restart", "release"]


def test_a_file_that_a_listing_misses_is_still_of_a_process_that_lives(tmp_path: Path) -> None:
    """Else two processes would lead at once: a file that is just replaced may be missed."""
    alive = True
    folder = Folder(tmp_path, Process(9, 0, 9, ()), lambda process: alive)
    other = Folder(tmp_path, Process(1, 0, 5, ()), lambda process: True)
    other.publish(3, [])
    assert folder.read() == {1: Peer(1, 3)}
    (tmp_path / "1-5.json").unlink()
    assert folder.read() == {1: Peer(1, None)}
    alive = False
    assert folder.read() == {}
