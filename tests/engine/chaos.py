"""The outside of chaos_inside.py: says what is to raise in an engine, and reads what did."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.engine.bed import REPOSITORY
from tests.engine.kit import kit_path

VARIABLE = "STANCH_CHAOS"


def chaos_path(directory: Path) -> list[Path]:
    """What goes onto PYTHONPATH: the kit as its install puts it there, and our plug-in in its plug-in's
    place."""
    path = [REPOSITORY, *kit_path(directory)]
    (entry_points,) = directory.glob("*.dist-info/entry_points.txt")
    entry_points.write_text("[vllm.general_plugins]\nstanch = tests.engine.chaos_inside:register\n")
    return path


class Chaos:
    """Of one engine. Its directory goes into the engine's environment, by VARIABLE."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        # Of the present round.
        self.number = 0
        self.order([])

    def order(self, points: list[str] | str, times: int | None = 1, but: Sequence[str] = ()) -> int:
        """From now on these raise ("all": whatever is of the kit, but for some), each so often per process;
        the round's number."""
        self.number += 1
        new = self.directory / "new"
        said = {"round": self.number, "points": points, "times": times, "but": list(but)}
        new.write_text(json.dumps(said))
        new.replace(self.directory / "control")
        return self.number

    def seen(self, number: int) -> set[str]:
        """The points that were reached in that round, in any process."""
        return set(self._lines("seen", number))

    def raised(self, number: int) -> Counter[str]:
        """How often each point raised in that round."""
        return Counter(self._lines("raised", number))

    def _lines(self, what: str, number: int) -> Iterable[str]:
        for path in self.directory.glob(f"{what}-*"):
            for line in path.read_text().splitlines():
                round_, _, point = line.partition(" ")
                if int(round_) == number:
                    yield point
