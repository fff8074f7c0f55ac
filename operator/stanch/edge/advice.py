"""What a vLLM version means for the fault, and what would help; facts as in docs/vllm.md."""

from __future__ import annotations

from dataclasses import dataclass

from stanch.edge.engine import parsed_version
from stanch.edge.kit_answers import Facts

FIRST_FIXED = (0, 30)
NEWEST_KNOWN = (0, 33)


@dataclass(frozen=True, slots=True)
class Advice:
    """status: affected, fixed, not-affected (its kit says that the defect is not its own) or unknown."""

    version: str | None
    status: str
    text: str


def advise(version: str | None, facts: Facts | None = None) -> Advice:
    """Whether a vLLM of this version has the known defect of its NIXL connector. facts: what its kit says."""
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
    reason = "" if facts is None or facts.fix_reason is None else f": {facts.fix_reason}"
    if facts is not None and facts.fix == "active":
        text = f"vLLM {version} has the known defect, and the kit's fix for it is active here"
        return Advice(version, "fixed", f"{text}; other ways to the same leak stay open")
    if facts is not None and facts.fix == "not-needed":
        return Advice(
            version, "not-affected", f"vLLM {version}: the known defect is not this engine's{reason}"
        )
    if facts is not None and facts.fix is not None:
        return Advice(
            version,
            "affected",
            f"vLLM {version} has the known defect, and the kit's fix is not active ({facts.fix}{reason}): "
            "use the fixed connector or upgrade to 0.30.0 or later; until then a release or a restart frees "
            "the blocks",
        )
    return Advice(
        version,
        "affected",
        f"vLLM {version} has the known defect if it uses NIXL: upgrade to 0.30.0 or later; until then a "
        "restart frees the blocks, or a release where the engine kit is loaded",
    )
