"""`stanch requests` and `stanch release`: what they ask a kit, what they tell, and their exit codes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.edge.cli import Done, inside, into_nothing
from tests.edge.fake_kit import FakeKit, entry, says
from tests.edge.fake_vllm import FakeVllm

pytestmark = pytest.mark.unit
row = pytest.param

PARKED = entry(
    "young", status="WAITING_FOR_REMOTE_KVS", ageSeconds=12, clientGone=False, way=None, refusal="it reads"
)
RUNNING = entry("busy", status="RUNNING", ageSeconds=9000, clientGone=False, waitsFor=None, way=None)
LEASED = entry("kept", waitsFor=None, leased=True, ageSeconds=20, way=None, refusal="leased")


def run(command: str, server: FakeKit | None, *arguments: str) -> Done:
    """`stanch COMMAND URL ...` of a server with this kit."""

    async def scene() -> Done:
        fake = FakeVllm()
        fake.kit = server
        async with fake:
            done = await inside(command, fake.url, *arguments)
            return Done(done.code, done.out.replace(fake.url, "URL"), done.err.replace(fake.url, "URL"))

    return asyncio.run(scene())


class TestRequests:
    def test_the_table_shows_the_longest_stuck_first(self) -> None:
        done = run("requests", FakeKit(RUNNING, LEASED, PARKED, entry("old")))
        lines = done.out.splitlines()
        assert (done.code, done.err) == (0, "")
        assert [line.split()[0] for line in lines[1:-1]] == [
            "cmpl-old",
            "cmpl-young",
            "cmpl-busy",
            "cmpl-kept",
        ]
        for word in (
            "FINISHED_ABORTED",
            "10 min",
            "10 %",
            "remote KV",
            "gone",
            "prefill-3",
            "yes: its blocks",
        ):
            assert word in lines[1]
        assert "no: it reads" in lines[2]
        assert "its reader (leased)" in lines[4]
        assert lines[-1] == "2 of 4 stuck, holding 20 blocks"

    def test_only_the_stuck(self) -> None:
        done = run("requests", FakeKit(RUNNING, LEASED, PARKED, entry("old")), "--stuck", "--output", "json")
        (listing,) = done.objects
        assert [one["id"] for one in listing["requests"]] == ["cmpl-old", "cmpl-young"]
        assert {key: listing[key] for key in ("schema", "target", "bootId", "missingRanks")} == {
            "schema": "stanch.listing/1",
            "target": "URL",
            "bootId": "boot-1",
            "missingRanks": [],
        }
        assert listing["requests"][0] == {
            "rank": "0",
            "stuck": True,
            **{key: value for key, value in entry("old").items() if key != "releasable"},
        }

    @pytest.mark.parametrize(
        ("rank", "code", "ids", "err"),
        [
            row((), 3, ["cmpl-a", "cmpl-b"], "rank 2 did not answer its kit", id="all"),
            row(("--rank", "1"), 0, ["cmpl-b"], "", id="one"),
            row(("--rank", "2"), 3, [], "rank 2 did not answer its kit", id="the-missing-one"),
            row(("--rank", "9"), 3, [], "it has no rank 9; its ranks are 0, 1, 2", id="none"),
        ],
    )
    def test_ranks(self, rank: Sequence[str], code: int, ids: list[str], err: str) -> None:
        server = FakeKit(entry("a"))
        server.ranks["1"] = {"requests": [entry("b")]}
        server.missing = [2]
        done = run("requests", server, *rank, "--output", "json")
        assert (done.code, [one["id"] for one in done.objects[0]["requests"]]) == (code, ids)
        assert err in done.err

    def test_nothing_is_there(self) -> None:
        assert run("requests", FakeKit()).out == "no request is there\n"
        assert run("requests", FakeKit(RUNNING), "--stuck").out == "no request is stuck\n"

    @pytest.mark.parametrize(
        ("arguments", "err"),
        [
            row(("--stuck",), "rank 1 did not answer its kit", id="a-rank-is-silent"),
            row(("--rank", "1"), "rank 1 did not answer its kit", id="the-silent-rank"),
            row(("--rank", "7"), "it has no rank 7", id="no-such-rank"),
        ],
    )
    def test_a_silent_rank_is_never_taken_for_an_empty_one(
        self, arguments: tuple[str, ...], err: str
    ) -> None:
        server = FakeKit(RUNNING)
        server.missing = [1]
        done = run("requests", server, *arguments)
        assert (done.code, done.out, err in done.err) == (3, "", True)

    def test_what_the_other_ranks_list_is_no_whole(self) -> None:
        server = FakeKit(entry("a"))
        server.missing = [1]
        done = run("requests", server)
        assert done.out.splitlines()[-1] == "1 of 1 stuck, holding 10 blocks, on the ranks that answered"

    def test_no_kit(self) -> None:
        done = run("requests", None)
        assert (done.code, done.out, done.err) == (3, "", "cannot tell about URL: it has no engine kit\n")

    def test_the_key(self, tmp_path: Path) -> None:
        server = FakeKit(entry())
        server.key = "sesame"
        done = run("requests", server)
        assert (done.code, "give the file that holds it with --api-key-file" in done.err) == (3, True)
        file = tmp_path / "key"
        file.write_text("sesame\n")
        for name in ("--api-key-file", "--token-file"):  # the second is taken, and not shown
            assert run("requests", server, name, str(file)).code == 0
        done = run("requests", server, "--api-key-file", str(tmp_path / "none"))
        assert (done.code, "the API key cannot be read" in done.err) == (65, True)


@pytest.fixture
def token(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    return str(file)


def outcome(**differs: Any) -> dict[str, Any]:
    """What a release of two ended with: one freed, one refused."""
    return {
        "state": "done",
        "dryRun": False,
        "released": ["cmpl-a-0-0badcafe"],
        "ways": {"cmpl-a-0-0badcafe": "freed"},
        "refused": {"cmpl-b-0-0badcafe": "rank 0: it still reads"},
        "refusals": {"reading": 1},
        "missingRanks": [],
        **differs,
    }


NOTHING: dict[str, Any] = {"released": [], "ways": {}, "refused": {}, "refusals": {}}
DONE: dict[str, Any] = {"refused": {}, "refusals": {}}


@pytest.mark.parametrize(("command", "code"), [("release", 1), ("requests", 3)])
def test_a_reader_that_has_gone_changes_no_answer(token: str, command: str, code: int) -> None:
    """What was refused is not done, and a rank that did not answer is not listed, whoever reads of it."""

    async def scene() -> Done:
        fake = FakeVllm()
        fake.kit = FakeKit(entry("a"), entry("b"))
        fake.kit.takes(**outcome())
        fake.kit.missing = [1] if command == "requests" else []
        more = ("--all", "--token-file", token) if command == "release" else ()
        async with fake:
            return await into_nothing(command, fake.url, *more)

    assert asyncio.run(scene()).code == code


class TestRelease:
    def released(self, token: str, said: dict[str, Any], *arguments: str) -> tuple[Done, dict[str, Any]]:
        """The run against a kit whose outcome is this, and the command that it got."""
        server = FakeKit(entry("a"), entry("b"))
        server.takes(**said)
        done = run("release", server, *arguments, "--token-file", token)
        (command,) = server.commands
        assert command[0] == "Bearer 0123456789abcdef"
        assert "0123456789abcdef" not in done.out + done.err
        return done, command[1]

    @pytest.mark.parametrize(
        ("arguments", "args"),
        [
            row(["cmpl-a", "cmpl-b", "cmpl-a"], {"ids": ["cmpl-a", "cmpl-b"], "dryRun": False}, id="ids"),
            row(["--older-than", "120s"], {"olderThanSeconds": 120, "dryRun": False}, id="older-than"),
            row(["--older-than", "2m"], {"olderThanSeconds": 120, "dryRun": False}, id="minutes"),
            row(["--all", "--dry-run"], {"dryRun": True}, id="all-dry"),
            row(
                ["x", "--older-than", "5"], {"ids": ["x"], "olderThanSeconds": 5, "dryRun": False}, id="both"
            ),
        ],
    )
    def test_the_command(self, token: str, arguments: list[str], args: dict[str, object]) -> None:
        _, command = self.released(token, outcome(), *arguments, "--timeout", "20")
        assert command["id"].startswith("cli-")
        found = {key: command[key] for key in ("verb", "bootId", "args")}
        assert found == {"verb": "release", "bootId": "boot-1", "args": args}
        # The time is for all of it.
        assert 1 <= command["deadlineSeconds"] <= 20

    def test_it_tells_of_each_what_was_done(self, token: str) -> None:
        done, _ = self.released(token, outcome(), "cmpl-a", "cmpl-b")
        lines = done.out.splitlines()
        assert done.code == 1
        assert lines[1].strip().split(maxsplit=2) == ["cmpl-a", "10", "freed: nobody waited for it"]
        assert lines[2].strip().split(maxsplit=2) == ["cmpl-b", "10", "refused: rank 0: it still reads"]
        assert lines[3] == "1 released, 10 blocks; 1 not"

    def test_as_data(self, token: str) -> None:
        done, command = self.released(token, outcome(), "--all", "--output", "json")
        assert done.objects == [
            {
                "schema": "stanch.release/1",
                "target": "URL",
                "bootId": "boot-1",
                "commandId": command["id"],
                "dryRun": False,
                "state": "done",
                "reason": None,
                "requests": [
                    {
                        "id": "cmpl-a",
                        "schedulerId": "cmpl-a-0-0badcafe",
                        "blocks": 10,
                        "way": "freed",
                        "refusal": None,
                        "young": False,
                    },
                    {
                        "id": "cmpl-b",
                        "schedulerId": "cmpl-b-0-0badcafe",
                        "blocks": 10,
                        "way": None,
                        "refusal": "rank 0: it still reads",
                        "young": False,
                    },
                ],
                "releases": {},
                "refusals": {"reading": 1},
                "missingRanks": [],
            }
        ]

    def test_of_very_many_it_names_some_and_counts_all(self, token: str) -> None:
        said = outcome(releases={"freed": 700}, refusals={"reading": 150})
        done, _ = self.released(token, said, "--all")
        assert done.out.splitlines()[-1] == "700 released; 150 not; 848 of them are not named above"

    @pytest.mark.parametrize(
        ("said", "arguments", "code", "words"),
        [
            row(outcome(**DONE), ["--all"], 0, "1 released, 10 blocks", id="done"),
            row(outcome(), ["--all"], 1, "1 not", id="some-refused"),
            row(
                outcome(refusals={"too-young": 1}),
                ["--older-than", "9"],
                0,
                "1 not",
                id="the-young-are-not-meant",
            ),
            row(
                outcome(refusals={"too-young": 1}),
                ["cmpl-b", "--older-than", "9"],
                1,
                "1 not",
                id="but-named",
            ),
            row(outcome(**NOTHING), ["--all"], 0, "nothing was released", id="nothing-stuck"),
            row(
                outcome(**NOTHING, state="refused", reason="args is not an object"),
                ["--all"],
                1,
                "args is not an object",
                id="refused-as-a-whole",
            ),
            row(outcome(missingRanks=[1]), ["--all"], 3, "ranks 1 did not answer", id="a-rank-is-missing"),
            row(
                outcome(state="failed", reason="rank 1 did not answer"),
                ["--all"],
                3,
                "cannot tell about all of URL: rank 1 did not answer",
                id="failed",
            ),
            row(
                outcome(ways={"cmpl-a-0-0badcafe": "failed"}, **DONE),
                ["cmpl-a"],
                0,
                "failed: its client got an error",
                id="a-client-got-an-error",
            ),
            row(
                outcome(ways={"x": "completed"}, released=["x"], dryRun=True, **DONE),
                ["--all", "--dry-run"],
                0,
                "would be completed: all its KV is here",
                id="dry-run",
            ),
        ],
    )
    def test_exit_codes(
        self, token: str, said: dict[str, Any], arguments: list[str], code: int, words: str
    ) -> None:
        done, _ = self.released(token, said, *arguments)
        assert (done.code, words in done.out + done.err) == (code, True)

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            row(["--older-than", "60"], 0, "not meant: rank 0: it still reads", id="by-age"),
            row(["cmpl-b", "--older-than", "60"], 1, "refused: rank 0: it still reads", id="named"),
            row(["--all"], 1, "refused: rank 0: it still reads", id="all"),
        ],
    )
    def test_a_young_one_that_reads_was_not_meant_by_age(
        self, token: str, arguments: list[str], code: int, words: str
    ) -> None:
        """The kit names the read, not the age; an honest transfer is no refusal of what was asked for."""
        server = FakeKit(entry("a"), entry("b", ageSeconds=5))
        server.takes(**outcome())
        done = run("release", server, *arguments, "--token-file", token)
        assert (done.code, words in done.out) == (code, True)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            row(
                [], "say what to release: IDS (`stanch requests` lists them), --older-than 120s", id="nothing"
            ),
            row(["cmpl-a", "--all"], "either --all, which is of any age, or which IDS", id="ids-and-all"),
            row(
                ["--older-than", "soon"],
                "'soon' is not a number of seconds (allowed: 0 to 86400, such",
                id="when",
            ),
        ],
    )
    def test_what_is_not_said_clearly_releases_nothing(self, arguments: list[str], words: str) -> None:
        server = FakeKit(entry())
        server.takes(**outcome())
        done = run("release", server, *arguments)
        assert (done.code, words in done.err, server.commands) == (64, True, [])

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            row(says(404, {"error": "off"}), "start the engine with STANCH_TOKEN_FILE=FILE", id="404"),
            row(
                says(401, {"error": "no"}),
                "its kit does not take the token in that file (HTTP 401)",
                id="401",
            ),
            row(
                says(409, {"state": "ignored", "reason": "for another boot id"}),
                "(or a restart) answer at this address; give one engine's own URL: nothing was released",
                id="409",
            ),
            row(
                says(409, {"state": "ignored", "reason": "unknown verb"}),
                "its kit ignored the order, so nothing was released: unknown verb",
                id="409-unknown-verb",
            ),
            row(
                says(500, {"error": "boom"}),
                "answers HTTP 500 to the order: boom; whether it took it is not known",
                id="500",
            ),
            row(says(200, text="<html>"), "answers HTTP 200 to the order", id="garbage"),
            row(
                says(200, {"id": "another", "state": "done"}),
                "answers HTTP 200 to the order",
                id="another-id",
            ),
        ],
    )
    def test_an_order_that_is_not_taken_cannot_be_told(self, token: str, answer: Any, words: str) -> None:
        server = FakeKit(entry())
        server.answers["command"] = answer
        done = run("release", server, "--all", "--token-file", token)
        assert (done.code, done.out) == (3, "")
        assert words in done.err

    def test_without_a_token(self) -> None:
        server = FakeKit()
        server.answers["command"] = says(401, {"error": "a bearer token is needed"})
        done = run("release", server, "--all")
        assert (done.code, "its kit wants a token: give the file" in done.err) == (3, True)

    def test_no_kit(self) -> None:
        assert run("release", None, "--all").err == "cannot tell about URL: it has no engine kit\n"
