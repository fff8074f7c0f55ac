"""Everything that the kit stands on inside vLLM, in every version's own sources, by syntax tree.

Read only: nothing is imported, so this says that names and arguments are there, not what they do.
`python -m tests.connector.conformance.seams` prints the table of docs/compatibility.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connector.conformance import seams, sources

pytestmark = pytest.mark.engine
DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"


def tree(version: str) -> Path:
    found = sources.locate_tree(version)
    if found is None:
        pytest.skip(f"no sources of vLLM {version}: python -m tests.connector.conformance.sources")
    return found


@pytest.mark.parametrize("version", sources.ALL)
def test_what_the_kit_stands_on_is_there(version: str) -> None:
    root = tree(version)
    found = {seam: seam.misfit(root) for seam in seams.SEAMS}
    wrong = {
        seam.name: misfit or "there, though it is said not to be"
        for seam, misfit in found.items()
        if (misfit is None) != (version in seam.versions)
    }
    assert wrong == {}


def test_the_document_has_this_table() -> None:
    for version in sources.ALL:
        tree(version)
    written = DOCUMENT.read_text().splitlines()
    missing = [line for line in seams.table().splitlines() if line not in written]
    assert missing == [], "put in what `python -m tests.connector.conformance.seams` prints"


def test_a_version_without_a_seam_is_seen(tmp_path: Path) -> None:
    """The check itself can fail: a method renamed, an argument renamed, a field gone, a class gone."""
    root = tree("0.29.0")
    for name in ("vllm/v1/core/sched/scheduler.py", "vllm/v1/outputs.py"):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = (root / name).read_text()
        text = text.replace("def _free_blocks(self, request", "def _let_go(self, request")
        text = text.replace("def add_request(self, request", "def add_request(self, one")
        copy.write_text(text.replace("kv_connector_worker_meta:", "renamed:"))
    found = {seam.name: seam.misfit(tmp_path) for seam in seams.SEAMS}
    assert found["Scheduler._free_blocks(request)"] == "not there"
    assert found["Scheduler.add_request(request)"] == "(one)"
    assert found["KVConnectorOutput.kv_connector_worker_meta"] == "not there"
    assert found["NIXL worker.get_finished()"] == "not there"
    assert found["Scheduler._preempt_request(request)"] is None
