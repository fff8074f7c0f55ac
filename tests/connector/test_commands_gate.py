"""The Gate: annotations and POST in; ready, refusals and outcomes out. A clock of its own, no thread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stanch_connector.apiserver.authorize import Access, authorize
from stanch_connector.apiserver.commands import Order, ReleaseArgs
from stanch_connector.apiserver.control import Control
from stanch_connector.apiserver.gate import Gate, Report
from stanch_connector.apiserver.restart import Act
from stanch_connector.contract import ANNOTATION_COMMAND, ANNOTATION_CORDON, KitState
from stanch_connector.engine.guard import FAILURES_IN_A_ROW, Guard

pytestmark = pytest.mark.unit

BOOT = "b00t"
TOKEN = "a-token-of-enough-bytes"
WORK = "/v1/completions"


class Scene:
    def __init__(self, token_file: Path | None = None, counting: bool = True) -> None:
        self.now = 100.0
        self.guard = Guard(lambda: self.now)
        token = str(token_file) if token_file else None
        self.gate = Gate(BOOT, self.guard, lambda: self.now, token, counting)
        self.values: dict[str, str] = {}

    def command(self, name: str, verb: str, **more: object) -> None:
        self.values[ANNOTATION_COMMAND] = body(name, verb, BOOT, **more).decode()
        self.gate.read(self.values)

    def cordon(self, beat: int | None) -> None:
        self.values.pop(ANNOTATION_CORDON, None)
        if beat is not None:
            self.values[ANNOTATION_CORDON] = json.dumps(
                {"incident": "li-1", "beat": beat, "leaseSeconds": 30}
            )
        self.gate.read(self.values)

    def turns(self, count: int | None, seconds: float, every: float = 0.1) -> list[Act]:
        acts = []
        for _ in range(round(seconds / every)):
            self.now += every
            acts.append(self.gate.turn(count))
        return [act for act in acts if act is not Act.WAIT]

    def outcomes(self) -> dict[str, tuple[str, str]]:
        return {o["id"]: (o["state"], o.get("reason", "")) for o in self.gate.outcomes()}


def body(name: str, verb: str, boot: str = BOOT, **more: object) -> bytes:
    return json.dumps({"id": name, "verb": verb, "bootId": boot, **more}).encode()


def test_it_is_the_control_that_the_middleware_asks() -> None:
    control: Control = Gate(BOOT)
    assert control.not_ready() is None
    quiet: KitState = {
        "draining": False,
        "cordoned": False,
        "cordonIncident": None,
        "outcomes": [],
        "malformed": 0,
    }
    assert control.state() == quiet


def test_cordon_is_not_ready_but_turns_nothing_away() -> None:
    scene = Scene()
    scene.cordon(None)
    scene.cordon(1)
    assert (scene.gate.not_ready(), scene.gate.turns_away(WORK, None)) == ("cordoned for li-1", None)
    assert scene.gate.state()["cordonIncident"] == "li-1"
    scene.now += 30
    assert scene.gate.ready()


def test_drain_turns_work_away_and_is_done_when_at_rest() -> None:
    scene = Scene()
    scene.gate.opened()
    scene.command("d", "drain", deadlineSeconds=20)
    assert scene.gate.turns_away(WORK, None) == "draining"
    assert scene.gate.turns_away("/health", None) is None
    assert not scene.gate.ready()
    scene.turns(scene.gate.open_requests(), 2)
    assert scene.outcomes()["d"][0] == "running"
    scene.gate.closed()
    scene.turns(scene.gate.open_requests(), 1)
    assert scene.outcomes()["d"][0] == "done"
    assert scene.gate.turns_away(WORK, None) == "draining"
    scene.now = 120.0
    assert (scene.gate.turns_away(WORK, None), scene.gate.ready()) == (None, True)


@pytest.mark.parametrize("count", [1, None], ids=["never at rest", "nobody counts"])
def test_a_drain_that_does_not_end_fails_and_serving_returns(count: int | None) -> None:
    scene = Scene()
    scene.command("d", "drain", deadlineSeconds=5)
    scene.turns(count, 5.2)
    assert scene.outcomes()["d"] == ("failed", "not finished by its deadline")
    assert scene.gate.turns_away(WORK, None) is None
    assert not scene.gate.busy()


def test_a_drain_lives_on_with_the_cordon_and_ends_with_it() -> None:
    scene = Scene()
    scene.cordon(None)
    scene.cordon(1)
    scene.command("d", "drain", deadlineSeconds=5)
    scene.turns(0, 20)
    assert not scene.gate.ready()
    assert scene.gate.turns_away(WORK, None) == "draining"
    scene.turns(0, 11)
    assert (scene.gate.ready(), scene.gate.turns_away(WORK, None)) == (True, None)


def test_undrain_lets_work_in_again() -> None:
    scene = Scene()
    scene.command("d", "drain")
    scene.command("u", "undrain")
    assert scene.outcomes() == {"d": ("failed", "ended by undrain u"), "u": ("done", "")}
    assert scene.gate.turns_away(WORK, None) is None


def test_restart_drains_then_asks_for_the_signals() -> None:
    scene = Scene()
    scene.command("r", "restart", deadlineSeconds=60)
    assert (scene.gate.not_ready(), scene.gate.restarting()) == ("a restart is under way", "r")
    assert scene.turns(1, 10) == []
    assert scene.turns(0, 1) == [Act.TERM]
    assert scene.turns(0, 6) == [Act.KILL]
    assert scene.turns(0, 6) == [Act.GIVE_UP]
    assert scene.outcomes()["r"] == ("failed", "the process lived on after SIGKILL")
    assert scene.gate.ready()
    assert scene.gate.turns_away(WORK, None) is None


def test_restart_at_the_deadline_while_requests_are_open() -> None:
    scene = Scene()
    scene.command("r", "restart", deadlineSeconds=3)
    assert scene.turns(4, 2.9) == []
    assert scene.turns(4, 0.3) == [Act.TERM]


def test_while_it_restarts_nothing_else_is_begun() -> None:
    scene = Scene()
    scene.command("r", "restart")
    for name, verb in (("r2", "restart"), ("u", "undrain"), ("d", "drain")):
        scene.command(name, verb)
        assert scene.outcomes()[name] == ("refused", "restart r is under way")
    assert scene.gate.turns_away(WORK, None) == "draining"


def test_a_restart_that_cannot_be_ends_and_serving_returns() -> None:
    scene = Scene()
    scene.command("r", "restart")
    scene.gate.restart_failed("no /proc")
    assert scene.outcomes()["r"] == ("failed", "no /proc")
    assert (scene.gate.ready(), scene.gate.turns_away(WORK, None)) == (True, None)
    scene.command("r2", "restart")
    assert scene.gate.restarting() == "r2"


def test_release_is_refused_until_it_is_built() -> None:
    scene = Scene()
    scene.command("x", "release", args={"ids": ["a"]})
    assert scene.outcomes()["x"] == ("refused", "nothing here carries out releases")


def test_release_is_handed_over_once_and_reports_later() -> None:
    scene = Scene()
    handed: list[tuple[Order, Report]] = []
    scene.gate.releaser = lambda order, report: handed.append((order, report))
    scene.command("x", "release", args={"ids": ["a"]})
    scene.gate.read(scene.values)
    scene.command("x", "release", args={"ids": ["b"]})
    [(order, report)] = handed
    assert order.release == ReleaseArgs(("a",))
    report({"id": "x", "state": "running"})
    report({"id": "x", "state": "done", "released": ["a"]})
    assert scene.gate.outcomes() == [{"id": "x", "verb": "release", "state": "done", "released": ["a"]}]


def test_a_releaser_that_raises_is_counted_and_the_command_failed() -> None:
    scene = Scene()

    def broken(order: Order, report: Report) -> None:
        raise RuntimeError("ours")

    scene.gate.releaser = broken
    scene.command("x", "release")
    assert scene.outcomes()["x"][0] == "failed"
    assert scene.guard.errors == {"release": 1}


def test_a_process_that_does_not_lead_releases_nothing() -> None:
    scene = Scene()
    handed: list[Order] = []
    scene.gate.releaser = lambda order, report: handed.append(order)
    scene.gate.read({ANNOTATION_COMMAND: body("x", "release").decode()}, leads=False)
    assert handed == []
    assert scene.outcomes()["x"][0] == "accepted"


def test_a_kit_that_turned_itself_off_stands_in_nobodys_way() -> None:
    scene = Scene()
    scene.command("d", "drain")
    scene.guard.disabled = "failed"
    assert (scene.gate.ready(), scene.gate.turns_away(WORK, None)) == (True, None)


AUTHORIZE: dict[str, tuple[bytes | None, bytes | None, Access]] = {
    "no file": (b"Bearer " + TOKEN.encode(), None, Access.OFF),
    "an empty file": (b"Bearer ", b"\n", Access.OFF),
    "a token too short to mean it": (b"Bearer abc", b"abc", Access.OFF),
    "a file too long": (b"Bearer x", b"x" * 5000, Access.OFF),
    "no header": (None, TOKEN.encode(), Access.MISSING),
    "another scheme": (b"Basic " + TOKEN.encode(), TOKEN.encode(), Access.MISSING),
    "no token in it": (b"Bearer", TOKEN.encode(), Access.MISSING),
    "wrong": (b"Bearer " + TOKEN.encode() + b"x", TOKEN.encode(), Access.WRONG),
    "only its beginning": (b"Bearer a-token", TOKEN.encode(), Access.WRONG),
    "right": (b"Bearer " + TOKEN.encode(), TOKEN.encode(), Access.ALLOWED),
    "right, with the file's newline": (b"bearer  " + TOKEN.encode(), TOKEN.encode() + b"\n", Access.ALLOWED),
    "not ASCII": ("Bearer ü".encode(), TOKEN.encode(), Access.WRONG),
}


@pytest.mark.parametrize(("header", "file_bytes", "access"), AUTHORIZE.values(), ids=AUTHORIZE.keys())
def test_authorize(header: bytes | None, file_bytes: bytes | None, access: Access) -> None:
    assert authorize(header, file_bytes) is access


POSTS: dict[str, tuple[bytes, int, str | None]] = {
    "accepted": (body("d", "drain"), 200, "running"),
    "another boot id": (body("d", "drain", boot="other"), 409, "ignored"),
    "unknown verb": (body("d", "explode"), 409, "ignored"),
    "not JSON": (b"drain", 400, "refused"),
    "not UTF-8": (b"\xff\xfe", 400, "refused"),
    "bad arguments": (body("x", "release", args=[]), 400, "refused"),
    "no releaser": (body("x", "release"), 200, "refused"),
}


@pytest.mark.parametrize(("posted", "status", "state"), POSTS.values(), ids=POSTS.keys())
def test_post(tmp_path: Path, posted: bytes, status: int, state: str) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    scene = Scene(file)
    woken: list[None] = []
    scene.gate.wake = lambda: woken.append(None)
    got, answer = scene.gate.command(posted, f"Bearer {TOKEN}")
    assert (got, answer["state"], len(woken)) == (status, state, 1)


def test_post_needs_the_token_of_now(tmp_path: Path) -> None:
    file = tmp_path / "token"
    scene = Scene(file)
    posted = body("u", "undrain")
    assert scene.gate.command(posted, f"Bearer {TOKEN}")[0] == 404
    file.write_text(TOKEN)
    assert scene.gate.command(posted, None)[0] == 401
    assert scene.outcomes() == {}
    file.write_text("another-token-of-enough-bytes")
    assert scene.gate.command(posted, f"Bearer {TOKEN}")[0] == 401
    assert scene.gate.command(posted, "Bearer another-token-of-enough-bytes")[0] == 200
    again = scene.gate.command(posted, "Bearer another-token-of-enough-bytes")
    assert (again[0], again[1]["state"]) == (200, "done")


def test_what_is_not_understood_is_told(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    for _ in range(3):
        scene.gate.read({"stanch.dev/command": "{not json", "stanch.dev/cordon": "[]"})
    assert scene.gate.state()["malformed"] == 2
    assert [record.getMessage() for record in caplog.records] == [
        "stanch: the annotation stanch.dev/cordon is not understood, and ignored",
        "stanch: the annotation stanch.dev/command is not understood, and ignored",
    ]


def test_of_a_posted_release_the_others_need_no_ids(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    scene = Scene(file)
    scene.gate.command(body("r", "release", args={"ids": ["cmpl-a"] * 9000}), f"Bearer {TOKEN}")
    (posted,) = scene.gate.posted()
    assert len(posted) < 200
    other = Scene()
    other.gate.forwarded(posted)
    assert other.outcomes()["r"][0] == "accepted"


def test_a_gate_that_is_off_takes_no_command(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    scene = Scene(file)
    for _ in range(FAILURES_IN_A_ROW):
        scene.gate.guard.failed("turn", RuntimeError())
    status, answer = scene.gate.command(body("d", "drain"), f"Bearer {TOKEN}")
    assert (status, "turned itself off" in answer["error"]) == (503, True)
    assert scene.outcomes() == {}


def test_the_token_is_in_no_answer_and_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    scene = Scene(file)
    caplog.set_level("DEBUG", "vllm.stanch")
    answers = [
        scene.gate.command(b"x", f"Bearer {TOKEN}"),
        scene.gate.command(body("u", "undrain"), f"Bearer {TOKEN}"),
    ]
    scene.gate.turn(0)
    assert TOKEN not in repr(answers) + caplog.text


def test_what_ended_is_logged_once_with_its_requests(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    caplog.set_level("INFO", "vllm.stanch")
    scene.gate.releaser = lambda order, report: report({"id": "x", "state": "done", "released": ["cmpl-1"]})
    scene.command("x", "release")
    scene.turns(0, 1)
    assert [record.message for record in caplog.records if "cmpl-1" in record.message] == [
        'stanch: command {"id": "x", "verb": "release", "state": "done", "released": ["cmpl-1"]}'
    ]
