"""Commit a finished quickstart: copy its leaderboard files and write the README's table from them.

python scripts/publish_quickstart.py runs/suites/quickstart
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "quickstart"
FILES = ("episodes.parquet", "leaderboard.md", "leaderboard.csv", "leaderboard.json", "index.html",
         "figure.png")  # fmt: skip
START, END = "<!-- quickstart table: written by scripts/publish_quickstart.py -->", "<!-- end of table -->"  # noqa: E501 # fmt: skip
ORDER = (
    "robotics/PointMaze-TwoRoutes-v0",
    "robotics/PointMaze-TwoRoutes-Blocked-v0",
    "metaworld/push-v3",
)


def interval(value: dict[str, float], *, signed: bool = False) -> str:
    """Return ``mean [low, high]`` with two decimals."""
    form = "+.2f" if signed else ".2f"
    return f"{value['value']:{form}} [{value['low']:{form}}, {value['high']:{form}}]"


def table(board: dict[str, Any]) -> str:
    """Return the README's table of a leaderboard."""
    lines = ["| task | method | success | gain |", "| :-- | :-- | --: | --: |"]
    by_env = {env["env"]: env["entries"] for env in board["tables"]}
    for env in ORDER:
        for entry in by_env[env]:
            gain = interval(entry["difference"], signed=True) if entry["difference"] else ""
            lines.append(f"| `{env}` | {entry['label']} | {interval(entry['mean'])} | {gain} |")
    return "\n".join(lines)


def main(folder: Path) -> None:
    """Copy the files of ``folder`` and write the README's table."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(folder / name, RESULTS / name)
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(START)
    _, _, after = rest.partition(END)
    board = json.loads((RESULTS / "leaderboard.json").read_text())
    readme.write_text(f"{before}{START}\n{table(board)}\n{END}{after}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
