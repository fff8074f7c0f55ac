"""How much arrives and how long it is: the day curve, bursts, lulls, and the sizes of requests."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from random import Random

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Profile:
    """What kind of deployment. peak_rate: requests/s for all of it. night: its share of the peak at night.
    lull: the chance of one to begin in a minute. *_blocks: of 16 tokens, the size of a cache."""

    name: str
    prefills: int
    decodes: int
    boths: int = 0
    peak_rate: float = 0.5
    night: float = 0.2
    lull: float = 0.0
    prompt_median: float = 900.0
    output_median: float = 250.0
    decode_blocks: int = 12_000
    prefill_blocks: int = 16_000
    prefill_speed: float = 8_000.0
    lease: float = 30.0
    heartbeats: bool = True
    pin: float = 0.0
    ranks: bool = False
    sleeper: bool = False
    by_reason: bool = True
    iterations: bool = True
    process_start: bool = True
    container: bool = True


PROFILES = (
    Profile("sparse", 1, 3, peak_rate=0.04, night=0.3, lull=0.01, decode_blocks=4_000),
    Profile("both", 0, 0, boths=2, peak_rate=0.25, night=0.1, prompt_median=2_500.0, prefill_speed=4_000.0),
    Profile("bidirectional", 1, 2, peak_rate=0.1, night=0.1, lull=0.01, decode_blocks=6_000, pin=480.0),
    Profile(
        "old",
        1,
        3,
        peak_rate=0.2,
        night=0.1,
        lull=0.01,
        lease=480.0,
        heartbeats=False,
        by_reason=False,
        iterations=False,
        process_start=False,
        container=False,
    ),
    Profile("tight", 1, 2, peak_rate=0.5, night=0.1, prompt_median=2_500.0, decode_blocks=6_000),
    Profile(
        "night-idle",
        2,
        3,
        peak_rate=0.7,
        night=0.0,
        lull=0.005,
        prompt_median=2_500.0,
        decode_blocks=9_000,
        sleeper=True,
        container=False,
    ),
    Profile("ranks", 2, 4, peak_rate=0.6, night=0.1, lull=0.01, decode_blocks=5_000, ranks=True),
    Profile("busy", 2, 3, peak_rate=1.6, night=0.3, output_median=450.0),
)


class Load:
    """The arrival rate, minute by minute, and the sizes of what arrives."""

    def __init__(self, profile: Profile, random: Random) -> None:
        self._profile = profile
        self._random = random
        self._burst_until = self._lull_until = 0.0
        self._burst = 1.0

    def minute(self, t: float) -> tuple[float, int]:
        """(requests/s, extra requests at once) of the minute that begins at t."""
        profile, random = self._profile, self._random
        day = 0.5 + 0.5 * cos(2 * pi * (t / DAY_SECONDS - 15 / 24))
        # A night that is idle is idle: the lowest sixth of the curve counts as nothing.
        share = profile.night + (1 - profile.night) * max(0.0, (day - 0.17) / 0.83)
        if t >= self._burst_until and random.random() < 1 / 90:
            self._burst_until = t + random.uniform(60, 480)
            self._burst = random.uniform(3, 8)
        if t >= self._lull_until and random.random() < profile.lull:
            self._lull_until = t + random.uniform(120, 1_500)
        if t < self._lull_until:
            return 0.0, 0
        rate = profile.peak_rate * share * (self._burst if t < self._burst_until else 1.0) / 1.2
        batch = random.randint(10, 40) if share > 0 and random.random() < 1 / 180 else 0
        return rate, batch

    def sizes(self) -> tuple[int, int]:
        """(tokens of the prompt, tokens of the output) of one request."""
        profile, random = self._profile, self._random
        room = min(profile.decode_blocks, profile.prefill_blocks) * 16
        output = int(min(4_000, max(1, profile.output_median * random.lognormvariate(0, 0.8))))
        if random.random() < 1 / 150:
            return int(random.uniform(min(40_000, 0.4 * room), min(140_000, 0.7 * room))), output
        prompt = profile.prompt_median * random.lognormvariate(0, 1)
        return int(min(30_000, room / 3, max(16, prompt))), output
