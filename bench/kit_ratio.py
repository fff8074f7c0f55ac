"""Paired ratios with their interval. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist, fmean, stdev


@dataclass(frozen=True, slots=True)
class Ratio:
    """The geometric mean of the starts' ratios, and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def paired(above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> Ratio:
    """above[start][i] / below[start][i], as they were measured side by side; on logarithms, so that a ratio
    and its inverse weigh the same. Two engines that were started differ by a few per cent for as long as they
    run, by chance: so what the interval is made of is the starts, not the runs. Raises ValueError for fewer
    than three starts, or different numbers of runs."""
    logs = [
        fmean(log(a / b) for a, b in zip(ups, downs, strict=True))
        for ups, downs in zip(above, below, strict=True)
    ]
    if len(logs) < 3:
        raise ValueError(f"{len(logs)} starts are too few for an interval")
    mean = fmean(logs)
    half = t_975(len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    return Ratio(exp(mean), exp(mean - half), exp(mean + half))


def t_975(degrees: int) -> float:
    """The 97.5 % point of Student's t, by the expansion in 1/degrees (Abramowitz and Stegun 26.7.5); within
    0.3 % from four degrees on."""
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum((term / float(degrees) ** power for power, term in enumerate(terms, 1)), 0.0)
