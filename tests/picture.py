"""The README's picture: `python -m tests.picture` plays `stanch demo` once and draws its last words."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from pathlib import Path

from rich.console import Console

from stanch.edge.demo import story
from stanch.edge.demo.telling import Account
from stanch.edge.demo.view import PlainView, folded, story_of
from stanch.edge.output import console

PICTURE = Path(__file__).parents[1] / "docs" / "demo.svg"
COLUMNS = 114
SEED = 1


async def play() -> Account:
    stage, out = story.SIMULATED, PlainView(console())
    async with stage.build(SEED, out.say) as fleet:
        return await story.run(fleet, stage, out, SEED)


def drawn(account: Account) -> str:
    """The account as a terminal shows it, in SVG."""
    screen = Console(
        file=io.StringIO(), width=COLUMNS, record=True, force_terminal=True, highlight=False, markup=False
    )
    for line in list(story_of(account))[1:]:  # The first is the gap below the story.
        screen.print(folded(line, screen))
    svg = screen.export_svg(title="stanch demo", unique_id="demo")
    # Rich's fonts would be fetched from elsewhere: the viewer's own will do.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")


def main() -> int:
    account = asyncio.run(play())
    if account.failure is not None:
        print(f"no picture: {account.failure}", file=sys.stderr)
        return 1
    PICTURE.write_text(drawn(account), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
