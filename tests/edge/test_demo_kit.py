"""The simulated engine's kit over HTTP: the contract's routes and rules, as a pod's kit has them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stanch.edge import kit
from stanch.edge.client import session
from stanch.edge.demo.child import Child
from stanch.edge.demo.pd import GaveUpError, PdRequest, RequestFailedError, pd_request
from stanch.edge.kit_answers import Facts, KitError
from stanch.edge.release import Order, Released, release
from stanch_connector import contract

pytestmark = pytest.mark.unit
row = pytest.param

TOKEN = "0123456789abcdef-of-a-test"


class Scene:
    """A prefill and a decode engine, each with a kit; the decode's annotations file is ours."""

    def __init__(self, http: aiohttp.ClientSession, prefill: Child, decode: Child, annotations: Path) -> None:
        self.http = http
        self.children = {"prefill": prefill, "decode": decode}
        self.prefill, self.decode = (f"http://127.0.0.1:{c.port}" for c in (prefill, decode))
        self.annotations = annotations

    def annotate(self, **values: object) -> None:
        """As the kubelet writes them: the whole file anew, by a rename."""
        lines = [f"stanch.dev/{key}={json.dumps(json.dumps(value))}\n" for key, value in values.items()]
        new = self.annotations.with_suffix(".new")
        new.write_text("".join(lines))
        new.rename(self.annotations)

    async def ask(self, name: str, patience: float = 10.0) -> None:
        await pd_request(self.http, self.prefill, self.decode, PdRequest(name, "word " * 310, 4, patience))

    async def leak(self, *names: str) -> None:
        """So many requests meet the defect, and their clients leave."""
        async with self.http.post(f"{self.decode}/sim/plant", json={"requests": len(names)}) as answer:
            assert answer.status == 200
        for outcome in await asyncio.gather(*(self.ask(n, 0.5) for n in names), return_exceptions=True):
            assert isinstance(outcome, GaveUpError)

    async def listed(self, base: str | None = None) -> dict[str, Any]:
        lists = await kit.requests(self.http, base or self.decode)
        return {entry.id: entry for entry in lists.ranks["0"]}

    async def state(self) -> Facts:
        return await kit.state(self.http, self.decode)

    async def release(self, *ids: str, dry_run: bool = False) -> Released:
        async with session(1) as connection:
            order = Order(tuple(ids) or None, dry_run=dry_run, deadline_seconds=10)
            return await release(connection, self.decode, order, TOKEN)

    async def until(self, true: Callable[[], Awaitable[object]], seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while not await true():
            assert time.monotonic() < deadline, "it did not come true"
            await asyncio.sleep(0.05)

    async def ready(self) -> bool:
        async with self.http.get(self.decode + contract.ROUTE_READY) as answer:
            return answer.status == 200


@asynccontextmanager
async def engines(folder: Path, *flags: str) -> AsyncIterator[Scene]:
    annotations = folder / "annotations"
    own = ["--role", "decode", "--token", TOKEN, "--annotations", str(annotations), *flags]
    children: list[Child] = []
    try:
        for arguments in (["--role", "prefill"], own):
            children.append(await Child.start("stanch.edge.demo.engine", ["--name", "e", *arguments]))
        async with session() as http:
            yield Scene(http, children[0], children[1], annotations)
    finally:
        # Not killed: what it made for its token goes with it.
        await asyncio.gather(*(child.end(10) for child in children))


def play(folder: Path, script: Callable[[Scene], Awaitable[None]], *flags: str) -> None:
    async def whole() -> None:
        async with engines(folder, *flags) as scene:
            await asyncio.wait_for(script(scene), 60)

    asyncio.run(whole())


def test_the_list_and_the_state(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        await s.leak("a", "b")
        entries = await s.listed()
        assert set(entries) == {"cmpl-a", "cmpl-b"}
        one = entries["cmpl-a"]
        assert (one.status, one.blocks, one.share) == ("FINISHED_ABORTED", 10, 0.1)
        assert (one.client_gone, one.stuck, one.way) == (True, True, "freed")
        facts = await s.state()
        assert (facts.lease_seconds, facts.bidirectional, facts.draining, facts.ready) == (
            30,
            False,
            False,
            True,
        )
        assert (await s.state()).boot_id == facts.boot_id

    play(tmp_path, script)


def test_a_prefill_s_lease_is_listed_as_one_and_never_released(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        body = {"prompt": "word " * 310, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        async with s.http.post(f"{s.prefill}/v1/completions", json=body) as answer:
            assert answer.status == 200
        (one,) = (await s.listed(s.prefill)).values()
        assert (one.leased, one.stuck, one.way, one.refusal_kind) == (True, False, None, "leased")

    play(tmp_path, script)


def test_a_release_frees_orphans_and_completes_those_who_wait(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        await s.leak("gone")
        async with s.http.post(f"{s.decode}/sim/plant", json={"requests": 1}):
            waiting = asyncio.create_task(s.ask("waits", 30))
        await s.until(lambda: _has(s, "cmpl-waits"))
        would = await s.release(dry_run=True)
        assert {fate.id: fate.way for fate in would.fates} == {
            "cmpl-gone": "freed",
            "cmpl-waits": "completed",
        }
        assert len(await s.listed()) == 2, "a dry run changes nothing"
        done = await s.release("cmpl-waits", "cmpl-none")
        assert [(f.id, f.way, f.refusal) for f in done.fates] == [
            ("cmpl-waits", "completed", None),
            (None, None, "no request has this id"),
        ]
        await waiting
        assert set(await s.listed()) == {"cmpl-gone"}
        assert (await s.release()).fates[0].way == "freed"
        assert await s.listed() == {}

    play(tmp_path, script)


async def _has(s: Scene, name: str) -> bool:
    return name in await s.listed()


def test_what_still_reads_is_refused(tmp_path: Path) -> None:
    """A frozen peer: the read may still come."""

    async def script(s: Scene) -> None:
        body: dict[str, Any] = {
            "prompt": "word " * 310,
            "max_tokens": 1,
            "kv_transfer_params": {"do_remote_decode": True},
        }
        async with s.http.post(f"{s.prefill}/v1/completions", json=body) as answer:
            body["kv_transfer_params"] = (await answer.json())["kv_transfer_params"]
        os.kill(s.children["prefill"].pid, signal.SIGSTOP)
        client = asyncio.create_task(s.http.post(f"{s.decode}/v1/completions", json=body))

        async def reads() -> bool:
            return any(entry.refusal_kind == "reading" for entry in (await s.listed()).values())

        await s.until(reads)
        refused = await s.release()
        assert (refused.state, dict(refused.refusals)) == ("refused", {"reading": 1})
        assert "NIXL cannot cancel a read" in (refused.fates[0].refusal or "")
        assert len(await s.listed()) == 1
        client.cancel()
        os.kill(s.children["prefill"].pid, signal.SIGCONT)

    play(tmp_path, script)


def test_the_api_key_guards_the_list_and_the_work(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        with pytest.raises(KitError, match="wants vLLM's API key"):
            await s.listed()
        with pytest.raises(RequestFailedError, match="answered 401"):
            await s.ask("a")
        assert (await kit.requests(s.http, s.decode, lambda: "sesame")).missing == ()
        assert (await s.state()).ready

    play(tmp_path, script, "--api-key", "sesame")


def test_a_cordon_is_a_lease_by_its_beat(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        cordon = {"incident": "li-1", "beat": 1, "leaseSeconds": 1.0}
        s.annotate(cordon=cordon)
        await asyncio.sleep(0)
        s.annotate(cordon={**cordon, "beat": 2})

        async def cordoned(want: bool) -> bool:
            return (await s.state()).cordoned is want and await s.ready() is not want

        beats = asyncio.create_task(_beat(s, cordon))
        await s.until(lambda: cordoned(True))
        await s.ask("served-all-the-same")
        beats.cancel()
        await s.until(lambda: cordoned(False))

    play(tmp_path, script)


async def _beat(s: Scene, cordon: dict[str, Any]) -> None:
    beat = 2
    while True:
        beat += 1
        s.annotate(cordon={**cordon, "beat": beat})
        await asyncio.sleep(0.4)


def test_a_drain_turns_work_away_but_for_the_operator_s_canary(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        boot = (await s.state()).boot_id
        s.annotate(command={"id": "c1", "verb": "drain", "bootId": boot, "deadlineSeconds": 30})

        async def draining() -> bool:
            return (await s.state()).draining is True

        await s.until(draining)
        body = {"prompt": [1], "max_tokens": 1}
        for name, status in (("mine", 503), (f"{contract.CANARY_PREFIX}{boot}", 200)):
            async with s.http.post(
                f"{s.decode}/v1/completions", json=body, headers={"X-Request-Id": name}
            ) as answer:
                assert answer.status == status
                assert (answer.headers.get("Connection") == "close") == (status == 503)
        assert not await s.ready()
        await s.until(lambda: _outcome(s, "c1", "done"))
        s.annotate(command={"id": "c2", "verb": "undrain", "bootId": boot})
        await s.until(lambda: _outcome(s, "c2", "done"))
        await s.ask("again")

    play(tmp_path, script)


async def _outcome(s: Scene, name: str, state: str) -> bool:
    return any(o.get("id") == name and o.get("state") == state for o in (await s.state()).outcomes)


def test_a_command_for_another_boot_is_ignored_and_a_restart_ends_the_process(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.annotate(command={"id": "c1", "verb": "restart", "bootId": "another", "deadlineSeconds": 1})
        await s.until(lambda: _outcome(s, "c1", "ignored"))
        boot = (await s.state()).boot_id
        s.annotate(command={"id": "c2", "verb": "restart", "bootId": boot, "deadlineSeconds": 5})
        deadline = time.monotonic() + 20
        while s.children["decode"].alive:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert s.children["prefill"].alive

    play(tmp_path, script)


def test_without_the_kit_its_routes_are_not_there() -> None:
    async def scenario() -> None:
        child = await Child.start("stanch.edge.demo.engine", ["--name", "e", "--no-kit"])
        try:
            async with session() as http:
                for route in (contract.ROUTE_REQUESTS, contract.ROUTE_STATE, contract.ROUTE_READY):
                    async with http.get(f"http://127.0.0.1:{child.port}{route}") as answer:
                        assert answer.status == 404
        finally:
            child.kill()

    asyncio.run(scenario())


def test_without_a_token_commands_by_post_are_off(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        async with session(1) as connection:
            with pytest.raises(KitError, match="start the engine with STANCH_TOKEN_FILE"):
                await release(connection, s.prefill, Order(), TOKEN)
            with pytest.raises(KitError, match="does not take the token"):
                await release(connection, s.decode, Order(), "fedcba9876543210")

    play(tmp_path, script)
