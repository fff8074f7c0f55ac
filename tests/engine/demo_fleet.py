"""What `stanch demo --engines` plays on: real vLLM engines, one prefill and two decodes, all with the stock
connector and the engine kit, the decodes with the injector in them; the demo's own router sends them light
traffic from this process.

It is no part of the package, which ships neither a fault injector nor an installer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from stanch.edge.demo.child import StartError
from stanch.edge.demo.deployment import Member, Say, Traffic, write_annotations
from stanch.edge.demo.pd import PdRequest, RequestFailedError, pd_request
from stanch.edge.demo.router import Router
from stanch.edge.demo.story import RELEASE, Stage, policy
from stanch_connector import contract
from tests.engine import install, processes
from tests.engine.bed import Bed, Engine, EngineError, Role, Spec
from tests.engine.chaos_bed import Fitted, start
from tests.engine.kit import MIDDLEWARE, kit_path
from tests.engine.marks import PARK
from tests.engine.model import words
from tests.engine.weights import NEEDS, write_weights

_T = TypeVar("_T")

VERSION = install.BASE_VERSION
ROLES: dict[str, Role] = {"prefill-0": "prefill", "decode-0": "decode", "decode-1": "decode"}
# A client that waits longer has met the defect, or a machine with far too much to do.
_PATIENCE_S = 8.0
# The first request of a pair also makes the NIXL handshake.
_FIRST_REQUEST_S = 90.0
# The prompts of these seeds share no beginning: no block is found in a prefix cache.
_PROMPTS = 508
_TELL_EVERY_S = 20.0


def missing() -> str | None:
    """Why the demo cannot be played on engines here, as one sentence; None where it can."""
    if install.locate(VERSION) is None:
        return f"vLLM {VERSION} is not installed; `make engines` installs it, once, outside the checkout"
    return None


def pauses(rng: random.Random) -> Iterator[float]:
    """Seconds between a request and the next, for ever: what two cores can serve beside all else."""
    while True:
        yield rng.uniform(0.6, 1.6)


class EngineFleet:
    """A Deployment of real engines. Use `fleet(...)`."""

    kind = f"real vLLM {VERSION}, on the CPU"

    def __init__(self, bed: Bed, session: aiohttp.ClientSession, seed: int, say: Say) -> None:
        self._bed = bed
        self._session = session
        self._seed = seed
        self._say = say
        self._pids: dict[str, int] = {}
        self._at_work: set[asyncio.Future[Any]] = set()
        self._to_plant: Counter[str] = Counter()
        self._plant_seconds = 0.0
        self._plant_until: float | None = None
        self._planted: list[str] = []
        self._prompts = itertools.cycle(random.Random(seed).sample(range(_PROMPTS), _PROMPTS))
        self.keep_logs = False

    async def start(self) -> Router:
        """All engines at once, then a first request to each decode; returns the router. Raises StartError."""
        write_weights(self._bed.directory / "model")
        engines = [self._fitted(name, role) for name, role in ROLES.items()]
        await self._off_loop(lambda: start(*engines))
        for engine in engines:
            self._pids[engine.name] = os.getpgid(engine.worker_pids()[0])
        urls = {name: self._engine(name).url for name in ROLES}
        prefills = {name: url for name, url in urls.items() if ROLES[name] == "prefill"}
        decodes = {name: url for name, url in urls.items() if ROLES[name] == "decode"}
        for pair in itertools.product(prefills.values(), decodes.values()):
            first = PdRequest("first", words(64, seed=next(self._prompts)), 4, _FIRST_REQUEST_S)
            try:
                await pd_request(self._session, *pair, first)
            except RequestFailedError as error:
                raise self._failed(f"the first request through {pair[0]} and {pair[1]}: {error}") from error
        self._router = Router(prefills, decodes, self._seed, pauses, self._ask)
        return self._router

    def _fitted(self, name: str, role: Role) -> Fitted:
        """An engine with the kit, which reads its annotations from a file of ours."""
        self.annotate(name, {})
        kit = kit_path(self._bed.directory / "kit")
        spec = Spec(role, name, role == "decode", extra_args=(*NEEDS, *MIDDLEWARE), python_path=kit)
        return Fitted(self._bed, spec, {contract.ENV_ANNOTATIONS: str(self._annotations(name))})

    @property
    def engines(self) -> tuple[Member, ...]:
        """The engines as they are now; pid: of the engine's process group."""
        found = ((name, role, self._engine(name)) for name, role in ROLES.items())
        return tuple(
            Member(name, role, one.url, self._pids[name] if one.alive else None) for name, role, one in found
        )

    async def traffic(self) -> Traffic:
        return replace(self._router.traffic(), planted=tuple(self._planted))

    async def plant(self, name: str, requests: int, seconds: float) -> None:
        """The next so many requests to this engine, within that time of the first, carry the mark that the
        injector acts on."""
        self._to_plant[name], self._plant_seconds, self._plant_until = requests, seconds, None

    def annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        write_annotations(self._annotations(name), annotations)

    def _annotations(self, name: str) -> Path:
        return self._bed.directory / f"{name}.annotations"

    def log(self, name: str, lines: int) -> str:
        return processes.tail(self._engine(name).log, lines)

    async def health(self, name: str) -> bool:
        """What a liveness probe with Kubernetes' default time-out of a second sees."""
        try:
            url, patience = f"{self._engine(name).url}/health", aiohttp.ClientTimeout(total=1)
            async with self._session.get(url, timeout=patience) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False

    async def end(self) -> None:
        """End all processes side by side, by force if it must be, also when this is interrupted."""
        with ExitStack() as last:
            last.callback(self._clean_up)
            last.callback(self._kill)
            for engine in self._bed.engines:
                engine.ask_to_end()
            await asyncio.gather(*(asyncio.to_thread(one.stop, 5) for one in self._bed.engines))
            # An interrupted start or restart may bring one more up, and ends when it finds that one dead.
            while not all(work.done() for work in self._at_work):
                self._kill()
                await asyncio.sleep(0.1)
            await asyncio.gather(*self._at_work, return_exceptions=True)

    def _kill(self) -> None:
        for engine in self._bed.engines:
            engine.kill()

    def _clean_up(self) -> None:
        if not self.keep_logs:
            shutil.rmtree(self._bed.directory, ignore_errors=True)

    def _ask(self, rng: random.Random, name: str, decode: str) -> PdRequest:
        if self._to_plant[decode] and self._within_its_time():
            self._to_plant[decode] -= 1
            name = f"{PARK}{name}"
            self._planted.append(name)
        prompt = words(rng.randint(192, 448), seed=next(self._prompts))
        return PdRequest(name, prompt, rng.randint(4, 8), _PATIENCE_S)

    def _within_its_time(self) -> bool:
        now = time.monotonic()
        if self._plant_until is None:
            self._plant_until = now + self._plant_seconds
        return now <= self._plant_until

    async def _off_loop(self, work: Callable[[], _T]) -> _T:
        """Run what blocks, in a thread that outlives a cancelled caller. Raises StartError."""
        thread = asyncio.ensure_future(asyncio.to_thread(work))
        self._at_work.add(thread)
        while not (await asyncio.wait((thread,), timeout=_TELL_EVERY_S))[0]:
            up = sum(await asyncio.gather(*(self.health(one.name) for one in self._bed.engines)))
            self._say(f"{up} of {len(ROLES)} engines are up")
        try:
            return thread.result()
        except (EngineError, OSError) as error:
            raise self._failed(str(error).splitlines()[0].rstrip(":")) from error

    def _failed(self, what: str) -> StartError:
        # Its log tells why, but at a length that nobody wants here.
        self.keep_logs = True
        return StartError(f"{what}; the engines' logs are in {self._bed.directory}")

    def _engine(self, name: str) -> Engine:
        return next(engine for engine in self._bed.engines if engine.name == name)


@asynccontextmanager
async def fleet(seed: int, say: Say) -> AsyncIterator[EngineFleet]:
    """The engines with traffic between them; nothing of them is left at the end. Raises StartError."""
    async with aiohttp.ClientSession() as session:
        engines = EngineFleet(Bed(VERSION), session, seed, say)
        try:
            router = await engines.start()
            async with router.running():
                yield engines
        finally:
            await engines.end()


STAGE = Stage(
    opening=(
        f"starting {len(ROLES)} real vLLM {VERSION} engines on the CPU, with NIXL between them and a fault "
        "injector in the decodes: a minute or two"
    ),
    build=fleet,
    # Two cores for three engines: an answer takes longer, and so does what rests on it.
    policy=policy(10.0, interval_seconds=2.0),
    # Nobody starts an engine of the bed again, and it would take another minute.
    acts=(RELEASE,),
    patience_seconds=120,
)
