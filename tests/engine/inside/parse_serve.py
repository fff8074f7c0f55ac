"""Inside an engine's Python: what vLLM's own parser makes of command lines, as JSON; no engine is started.

Standard input: a JSON list of argument lists, each as behind `vllm`. Standard output, last line: a list of
{"ok": {...}} or {"error": "..."}.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser


def parsed(arguments: list[str]) -> dict[str, Any]:
    parser = FlexibleArgumentParser(prog="vllm")
    command = ServeSubcommand()
    command.subparser_init(parser.add_subparsers(dest="subparser"))
    words = io.StringIO()
    try:
        with contextlib.redirect_stderr(words):
            args = parser.parse_args(arguments)
            command.validate(args)
            # As ServeSubcommand.cmd has it.
            args.model = args.model_tag
            engine = AsyncEngineArgs.from_cli_args(args)
    except (SystemExit, ValueError, TypeError) as error:
        return {"error": words.getvalue() or repr(error)}
    transfer = engine.kv_transfer_config
    return {
        "ok": {
            "model": engine.model,
            "served": engine.served_model_name,
            "port": args.port,
            "tensor": engine.tensor_parallel_size,
            "data": engine.data_parallel_size,
            "block": engine.block_size,
            "shutdown": engine.shutdown_timeout,
            "nodes": engine.nnodes,
            "middleware": args.middleware,
            "transfer": None if transfer is None else dataclasses.asdict(transfer),
        }
    }


if __name__ == "__main__":
    found = [parsed(arguments) for arguments in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps(found) + "\n")
