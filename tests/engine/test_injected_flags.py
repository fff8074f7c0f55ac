"""Arguments with the kit in them, against vLLM's own parser: what was there means what it meant. No engine
starts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stanch.edge.render.kit import KitOptions, inject
from stanch_connector.install.names import MIDDLEWARE
from tests.edge.pod_templates import CONFIG, Object, engine, template
from tests.engine import install
from tests.engine.test_render_flags import parsed

pytestmark = pytest.mark.engine

SHELL = ["bash", "-c"]
MORE = ["--port", "9000", "--middleware", "other.Middleware", "--kv-transfer-config", CONFIG]


def starts(config: Path) -> dict[str, Object]:
    """Containers as people write them."""
    quoted = f"--kv-transfer-config '{CONFIG}'"
    scripts = {
        "a script": f"exec vllm serve org/model --port 9000 {quoted}",
        "a script with a file": f'vllm serve "$MODEL" --config {config} -tp 2',
        "a script with a file that names the model": f"vllm serve --config {config} {quoted}",
        "a script with the model as a flag": f"vllm serve --model org/model \\\n  --port 9000 {quoted}",
    }
    return {
        "arguments": engine(command=["vllm", "serve", "org/model"], args=MORE),
        "a command": engine(command=["vllm", "serve", "org/model", *MORE], args=...),
        "a file": engine(command=["vllm", "serve", "org/model"], args=["--config", str(config)]),
        "parts": engine(command=["vllm", "serve", "m", "--kv-transfer-config.kv_role", "kv_both"], args=...),
        **{name: engine(command=[*SHELL, script], args=...) for name, script in scripts.items()},
    }


def words_of(container: Object) -> list[str]:
    """What stands behind `vllm`; of a script, as a real shell gives it."""
    words = [*container.get("command", []), *container.get("args", [])]
    if words[:2] != SHELL:
        return [str(word) for word in words[1:]]
    program = 'vllm() { printf \'%s\\0\' "$@"; }\nexec() { "$@"; }\n'
    environment = {"MODEL": "org/model"}
    done = subprocess.run([*SHELL, program + words[2]], capture_output=True, env=environment, check=True)
    return done.stdout.decode().split("\0")[:-1]


def rest(said: Object) -> Object:
    """All but the middleware, and the engine's id, which is random."""
    transfer = {**(said["transfer"] or {}), "engine_id": None}
    return {**said, "middleware": None, "transfer": transfer}


@pytest.mark.parametrize("version", install.DEFAULT_VERSIONS)
def test_vllm_reads_the_flag_and_everything_else_as_before(version: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("model: org/model\nport: 9000\n")
    before = starts(config)
    after: dict[str, Object] = {}
    for name, container in before.items():
        done = inject(template(container), KitOptions("i"))
        assert done.changed, done.problems
        after[name] = done.template["spec"]["containers"][0]
    answers = parsed(version, [words_of(one) for one in (*before.values(), *after.values())])
    assert all("ok" in one for one in answers), answers
    for name, old, new in zip(before, answers, answers[len(before) :], strict=False):
        assert new["ok"]["middleware"] == [*old["ok"]["middleware"], MIDDLEWARE], name
        assert rest(new["ok"]) == rest(old["ok"]), name


@pytest.mark.parametrize("version", install.DEFAULT_VERSIONS)
def test_vllm_reads_the_connector(version: str, tmp_path: Path) -> None:
    transfer: dict[str, Any] = json.loads(CONFIG)
    multi = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [transfer]},
    }
    lines = []
    for one in (transfer, multi):
        for container in (
            engine(args=["--kv-transfer-config", json.dumps(one)]),
            engine(command=[*SHELL, f"vllm serve m --kv-transfer-config '{json.dumps(one)}'"], args=...),
        ):
            done = inject(template(container), KitOptions("i", connector_patch="Always"))
            assert done.problems == ()
            lines.append(words_of(done.template["spec"]["containers"][0]))
    found = [one["ok"]["transfer"] for one in parsed(version, lines)]
    children = [one["kv_connector_extra_config"]["connectors"][0] for one in found[2:]]
    for one in (*found[:2], *children):
        assert one["kv_connector"] == "StanchNixlConnector"
        assert one["kv_connector_module_path"] == "stanch_connector.connector"
        assert one["kv_connector_extra_config"]["stanch_connector_patch"] == "Always"
