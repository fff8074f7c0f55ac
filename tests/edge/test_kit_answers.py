"""What the kit says over HTTP, right and wrong: read as it is meant, or not at all with a sentence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stanch.core.sample import Role
from stanch.edge import kit
from stanch.edge.cli.options import key_reader
from stanch.edge.errors import FileError
from stanch.edge.kit_answers import Facts, KitError, Lists
from tests.edge.fake_kit import Answer, FakeKit, entry, hangs, says
from tests.edge.fake_vllm import FakeVllm, drops, talk

pytestmark = pytest.mark.unit
row = pytest.param


def asked(server: FakeKit | None, key: kit.Key = kit.no_key) -> Lists:
    async def ask(session: aiohttp.ClientSession, fake: FakeVllm) -> Lists:
        return await kit.requests(session, fake.url, key)

    fake = FakeVllm()
    fake.kit = server
    return talk(fake, ask)


def told(server: FakeKit) -> Facts:
    async def ask(session: aiohttp.ClientSession, fake: FakeVllm) -> Facts:
        return await kit.state(session, fake.url)

    fake = FakeVllm()
    fake.kit = server
    return talk(fake, ask)


def test_a_list_is_read() -> None:
    server = FakeKit(entry("a"), entry("b", waitsFor=None, leased=True))
    server.ranks["7"] = {"requests": []}
    server.missing = [3]
    lists = asked(server)
    assert (lists.boot_id, set(lists.ranks), lists.missing) == ("boot-1", {"0", "7"}, ("3",))
    first, second = lists.ranks["0"]
    assert (first.id, first.age_seconds, first.blocks, first.share) == ("cmpl-a", 612.4, 10, 0.1)
    assert (first.remote_engine, first.way, first.stuck, second.stuck) == ("prefill-3", "freed", True, False)


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({"0": "e_dp0", "1": "e_dp1"}, {"0": "e_dp0", "1": "e_dp1"}),
        ({"0": "e", "1": None, "2": 7, "3": ""}, {"0": "e"}),
        (["e"], {}),
        (None, {}),
    ],
    ids=["each rank's", "those that make sense", "none", "an older kit"],
)
def test_the_ids_by_which_peers_know_its_ranks(given: object, ids: dict[str, str]) -> None:
    assert told(FakeKit() if given is None else FakeKit(engineIds=given)).engine_ids == ids


def test_a_newer_contract_is_read_by_what_is_known_of_it() -> None:
    """Keys and values may be added: those that are not known are passed over, and accuse nobody."""
    server = FakeKit(
        entry("a", waitsFor="the_moon", clientGone=False, way="teleported", newKey=[1]), contract=2, fix="new"
    )
    server.extra = {"addedLater": {"x": 1}}
    (one,) = asked(server).ranks["0"]
    assert (one.waits_for, one.stuck, one.way) == ("the_moon", False, "teleported")
    assert told(server).boot_id == "boot-1"


def test_an_older_contract_leaves_optional_keys_out() -> None:
    old = {k: v for k, v in entry().items() if k not in ("way", "refusal", "refusalKind", "cacheShare")}
    (one,) = asked(FakeKit(old)).ranks["0"]
    assert (one.stuck, one.way, one.refusal, one.share) == (True, None, None, None)


def test_a_rank_that_is_listed_and_missing_proves_nothing() -> None:
    server = FakeKit(entry())
    server.missing = [0]
    assert dict(asked(server).ranks) == {}


@pytest.mark.parametrize(
    ("extra", "taken"),
    [
        row(dict.fromkeys("ab", [1.5] * 100_000), True, id="some"),
        row({"x": [1.5] * 1_100_000}, False, id="numbers"),
        row({"x": [[]] * 250_000}, False, id="lists"),
        row({"x": [{}] * 250_000}, False, id="objects"),
    ],
)
def test_a_body_that_would_take_much_memory_is_not_read(extra: dict[str, Any], taken: bool) -> None:
    """It is whole and of the right schema, and shorter than a list may be."""
    server = FakeKit(entry())
    server.extra = extra
    if taken:
        assert set(asked(server).ranks) == {"0"}
    else:
        with pytest.raises(KitError, match="in the place of its kit is something else"):
            asked(server)


BAD_ENTRIES: dict[str, Any] = {
    "no-id": entry(id=None),
    "no-age": entry(ageSeconds=None),
    "age-text": entry(ageSeconds="612"),
    "age-negative": entry(ageSeconds=-1),
    "age-nan": entry(ageSeconds=math.nan),
    "age-true": entry(ageSeconds=True),
    "blocks-missing": {k: v for k, v in entry().items() if k != "blocks"},
    "leased-missing": {k: v for k, v in entry().items() if k != "leased"},
    "gone-number": entry(clientGone=1),
    "waits-missing": {k: v for k, v in entry().items() if k != "waitsFor"},
    "no-object": 7,
}


@pytest.mark.parametrize("bad", [row(one, id=name) for name, one in BAD_ENTRIES.items()])
def test_one_entry_that_makes_no_sense_spoils_the_list(bad: Any) -> None:
    """A missing key is never taken for a zero or a no."""
    with pytest.raises(KitError, match=r"^its kit's list has "):
        asked(FakeKit(entry(), bad))


@pytest.mark.parametrize(
    ("answer", "words", "absent"),
    [
        row(says(404, {"detail": "Not Found"}), "it has no engine kit", True, id="404"),
        row(
            says(401, {"error": "x"}),
            "its kit wants vLLM's API key: give the file .* --api-key-file",
            False,
            id="401",
        ),
        row(
            says(501, {"error": "no list: the kit\n turned itself off"}),
            "no list: the kit turned",
            False,
            id="501",
        ),
        row(says(500, {"error": "boom"}), r"its kit answers HTTP 500 \(boom\)", False, id="500"),
        row(says(302), "its kit answers HTTP 302", False, id="redirect"),
        row(says(200, text="<html>"), "in the place of its kit is something else", False, id="html"),
        row(says(200, [1]), "in the place of its kit is something else", False, id="no-object"),
        row(says(200, {"ranks": {}}), "in the place of its kit is something else", False, id="no-schema"),
        row(
            says(200, {"schema": "stanch.requests/2", "bootId": "b", "ranks": {}, "missingRanks": []}),
            "its kit speaks stanch.requests/2, which this version of Stanch does not know",
            False,
            id="other-schema",
        ),
        row(says(200, {"schema": "stanch.requests/1"}), "has no boot id", False, id="no-boot-id"),
        row(says(200, {"schema": "stanch.requests/1", "bootId": "b"}), "has no ranks", False, id="no-ranks"),
        row(
            says(200, {"schema": "stanch.requests/1", "bootId": "b", "ranks": {"0": {}}, "missingRanks": []}),
            "list of rank 0 is none",
            False,
            id="no-requests",
        ),
        row(hangs, "its kit did not answer within 0.2 s", False, id="hangs"),
        row(lambda request: drops(FakeVllm(), request), "the connection was closed", False, id="drops"),
    ],
)
def test_what_is_no_answer_is_a_sentence(
    answer: Answer, words: str, absent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is hangs:
        monkeypatch.setattr(kit, "LIST_SECONDS", 0.2)
    server = FakeKit()
    server.answers["requests"] = answer
    with pytest.raises(KitError, match=words) as caught:
        asked(server)
    assert caught.value.absent is absent


def test_nobody_there() -> None:
    async def ask(session: aiohttp.ClientSession, fake: FakeVllm) -> None:
        await fake.down()
        with pytest.raises(KitError, match="its kit could not be asked: the connection was refused"):
            await kit.requests(session, fake.url)

    talk(FakeVllm(), ask)


def test_the_key_is_read_anew_at_each_use_and_never_told(tmp_path: Path) -> None:
    file, server = tmp_path / "key", FakeKit(entry())
    file.write_text("one\n")
    key = key_reader(file)
    server.key = "two"
    with pytest.raises(KitError, match="does not take the API key in that file") as caught:
        asked(server, key)
    assert "one" not in str(caught.value)
    file.write_text("two\n")
    assert len(asked(server, key).ranks["0"]) == 1
    file.unlink()
    with pytest.raises(KitError, match=r"its kit was not asked: .*cannot be read"):
        asked(server, key)
    with pytest.raises(FileError):
        key_reader(file)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        row(
            {
                "role": "kv_consumer",
                "leaseSeconds": 45,
                "pinSeconds": 480.0,
                "bidirectional": True,
                "draining": True,
            },
            (Role.DECODE, 45, 480, True, True),
            id="all",
        ),
        row({"role": "kv_producer"}, (Role.PREFILL, None, None, None, False), id="prefill"),
        row({"role": "kv_both"}, (None, None, None, None, False), id="both-tells-nothing"),
        row(
            {"role": 7, "leaseSeconds": -1, "pinSeconds": "480", "bidirectional": "yes", "draining": 1},
            (None, None, None, None, None),
            id="nonsense-is-not-said",
        ),
        row({"leaseSeconds": math.inf, "pinSeconds": True}, (None, None, None, None, False), id="no-numbers"),
    ],
)
def test_the_facts(said: dict[str, Any], read: tuple[object, ...]) -> None:
    facts = told(FakeKit(**said))
    found = (facts.role, facts.lease_seconds, facts.pin_seconds, facts.bidirectional, facts.draining)
    assert found == read
