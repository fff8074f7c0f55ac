"""A real prefill/decode pair in pods, with the engine kit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bed import manifests
from tests.bed.cluster import Namespace
from tests.bed.place import BedError
from tests.bed.vllm import Vllm
from tests.engine.client import get, pd_request
from tests.engine.model import words

pytestmark = pytest.mark.cluster


def test_a_request_goes_from_prefill_to_decode_and_the_kit_answers(
    namespace: Namespace, tmp_path: Path
) -> None:
    if namespace.cluster.bed is None:
        pytest.skip("real engines come from the node's own files: only in the bed")
    try:
        vllm = Vllm.prepare(tmp_path)
    except BedError as error:
        pytest.skip(str(error))
    namespace.apply(vllm.pod("prefill", "prefill"), vllm.pod("decode", "decode"))
    urls = {
        name: f"http://{ip}:{manifests.PORT}"
        for name, ip in namespace.wait_ready("prefill", "decode", deadline_s=600).items()
    }
    answer = pd_request(urls["prefill"], urls["decode"], words(300)).answer()
    assert answer.status == 200, answer.body
    state = json.loads(get(urls["decode"], "/stanch/v1/state", timeout_s=20).body)
    assert state["ready"] is True
    assert state["connector"] == "NixlConnector"
