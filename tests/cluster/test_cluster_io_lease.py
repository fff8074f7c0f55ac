"""The Lease: of several operators one is active, whatever becomes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from stanch.edge.cluster import Cluster, Election
from tests.bed.faults import Drop, Hang, Refuse, Rule
from tests.bed.proxy import FaultProxy
from tests.cluster.installed import NAMESPACE, Installed

pytestmark = pytest.mark.cluster

PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/stanch"
# Long enough that a busy machine loses none: a holder that is stopped for a fifth of it goes on.
SECONDS = 9.0
_DEADLINE_SECONDS = 120.0


@pytest.fixture(autouse=True)
def no_lease(stanch: Installed) -> Iterator[None]:
    yield
    stanch.cluster.kubectl("delete", "lease", "stanch", f"--namespace={NAMESPACE}", "--ignore-not-found")


@pytest.fixture
def proxy(stanch: Installed) -> Iterator[FaultProxy]:
    with FaultProxy(stanch.address, trust=stanch.authority) as found:
        yield found


def spec(stanch: Installed) -> dict[str, Any]:
    found: dict[str, Any] = stanch.cluster.api(PATH)["spec"]
    return found


async def until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + _DEADLINE_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(what)
        await asyncio.sleep(0.02)


async def soon(what: Any) -> None:
    await asyncio.wait_for(what, _DEADLINE_SECONDS)


def election(cluster: Cluster, identity: str) -> Election:
    return cluster.election("stanch", identity, SECONDS)


class TestTwo:
    def test_one_leads_and_the_other_takes_over_at_once_when_it_ends(
        self, stanch: Installed, tmp_path: Path
    ) -> None:
        path = stanch.kubeconfig(tmp_path / "kubeconfig")

        async def scene() -> None:
            async with Cluster(path) as cluster, AsyncExitStack() as one:
                first = await one.enter_async_context(election(cluster, "one"))
                await soon(first.elected())
                async with election(cluster, "two") as second:
                    await until("two to see one", lambda: second.holder == "one")
                    assert first.leads
                    assert not second.leads
                    began = spec(stanch)["acquireTime"]
                    await until("a renewal", lambda: spec(stanch)["renewTime"] > began)
                    assert spec(stanch)["acquireTime"] == began
                    lost = asyncio.create_task(first.lost())
                    await one.aclose()
                    assert not first.leads
                    await soon(lost)
                    await soon(second.elected())
                    assert spec(stanch)["holderIdentity"] == "two"
                    assert spec(stanch)["leaseTransitions"] == 1
            assert spec(stanch)["holderIdentity"] == ""

        asyncio.run(scene())

    def test_never_both(self, stanch: Installed, proxy: FaultProxy, tmp_path: Path) -> None:
        """One loses the API server; it stops before the other begins."""
        direct = stanch.kubeconfig(tmp_path / "direct")
        through = stanch.kubeconfig(tmp_path / "through", url=proxy.url)

        async def scene() -> None:
            both: list[str] = []
            async with (
                Cluster(through) as bad,
                Cluster(direct) as good,
                election(bad, "one") as first,
            ):
                await soon(first.elected())
                async with election(good, "two") as second:

                    async def look() -> None:
                        while True:
                            if first.leads and second.leads:
                                both.append("both")
                            await asyncio.sleep(0.005)

                    looking = asyncio.create_task(look())
                    await until("two to see one", lambda: second.holder == "one")
                    proxy.faults.add(Rule(Hang(), resource="leases", times=None))
                    await soon(first.lost())
                    await soon(second.elected())
                    assert not first.leads
                    proxy.faults.clear()
                    await until("one to see two", lambda: first.holder == "two")
                    looking.cancel()
            assert both == []

        asyncio.run(scene())


@pytest.mark.parametrize(
    "fault",
    [
        Refuse(409),
        Refuse(409, applied=True),
        Refuse(500, applied=True),
        Refuse(503),
        Refuse(429, retry_after_seconds=1),
        Drop(applied=True),
    ],
    ids=["409", "409 lie", "500 lie", "503", "429", "drop lie"],
)
def test_one_failed_renewal_loses_nothing(
    stanch: Installed, proxy: FaultProxy, tmp_path: Path, fault: Any
) -> None:
    path = stanch.kubeconfig(tmp_path / "kubeconfig", url=proxy.url)

    async def scene() -> None:
        async with Cluster(path) as cluster, election(cluster, "one") as only:
            await soon(only.elected())
            lost = asyncio.create_task(only.lost())
            proxy.faults.add(Rule(fault, verb="update", resource="leases"))
            await until("the fault", lambda: bool(proxy.faults.hit()))
            seen = len(proxy.faults.seen)
            await until("more renewals", lambda: len(proxy.faults.seen) >= seen + 6)
            assert not lost.done()
            lost.cancel()
            await until("no problem", lambda: only.problem is None)

    asyncio.run(scene())


def test_a_lease_that_is_deleted_or_given_to_another(stanch: Installed, tmp_path: Path) -> None:
    path = stanch.kubeconfig(tmp_path / "kubeconfig")

    async def scene() -> None:
        async with Cluster(path) as cluster, election(cluster, "one") as only:
            await soon(only.elected())
            stanch.cluster.api(PATH, "DELETE")
            await until("it is made again", lambda: stanch.cluster.get(PATH) is not None)
            assert spec(stanch)["holderIdentity"] == "one"
            await soon(only.elected())
            given = {"spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 1}}
            stanch.cluster.api(PATH, "PATCH", given, "application/merge-patch+json")
            await soon(only.lost())
            # Somebody does not renew it.
            await soon(only.elected())
            assert spec(stanch)["holderIdentity"] == "one"

    asyncio.run(scene())


def test_an_account_without_rights_says_so_and_never_leads(stanch: Installed, tmp_path: Path) -> None:
    token = stanch.token("default", NAMESPACE)
    path = stanch.kubeconfig(tmp_path / "kubeconfig", token=token)

    async def scene() -> None:
        async with Cluster(path) as cluster, election(cluster, "one") as only:
            await until("the problem", lambda: only.problem is not None)
            assert "get leases stanch in stanch-system" in (only.problem or "")
            assert not only.leads

    asyncio.run(scene())
