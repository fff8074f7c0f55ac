"""What a vLLM version means for the fault, and what would help; facts as in docs/vllm.md."""

from __future__ import annotations

from dataclasses import dataclass

from stanch.edge.engine import parsed_version

FIRST_FIXED = (0, 30)
NEWEST_KNOWN = (0, 33)


@dataclass(frozen=True, slots=True)
class Advice:
    """status: affected, fixed or unknown."""

    version: str | None
    status: str
    text: str


def advise(version: str | None) -> Advice:
    """Whether a vLLM of this version has the known defect of its NIXL connector."""
    parsed = parsed_version(version)
    if version is None or parsed is None:
        what = (
            "did not say its version" if version is None else f"says version {version}, which tells nothing"
        )
        return Advice(version, "unknown", f"it {what}, so whether it has the known defect is not known")
    if parsed >= FIRST_FIXED:
        beyond = "" if parsed <= NEWEST_KNOWN else ", as far as is known of so new a version"
        return Advice(
            version,
            "fixed",
            f"vLLM {version} has the fix for the known defect (0.30.0){beyond}; other ways to the same leak "
            "(push mode, a frozen peer, other connectors) stay open",
        )
    return Advice(
        version,
        "affected",
        f"vLLM {version} has the known defect if it uses NIXL: upgrade to 0.30.0 or later; until then a "
        "restart frees the blocks, or a release where the engine kit is loaded",
    )
