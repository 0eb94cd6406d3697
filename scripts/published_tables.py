"""Tables of committed results in the README, in ``docs/`` and beside the results themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trimtab.benchmarks.board.intervals.improvement import verdict
from trimtab.benchmarks.board.stats import Interval
from trimtab.benchmarks.speed.measure import Row
from trimtab.benchmarks.speed.report import readable
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_text

END = "<!-- end of table -->"
ORDER = (
    "robotics/PointMaze-TwoDoors-Open-v0",
    "robotics/PointMaze-TwoDoors-v0",
    "robotics/PointMaze-TwoRoutes-v0",
    "robotics/PointMaze-TwoRoutes-Blocked-v0",
    "metaworld/push-v3",
)


def interval(value: dict[str, float], digits: int = 2, *, signed: bool = False) -> str:
    """Return ``mean [low, high]``."""
    form = f"{'+' if signed else ''},.{digits}f"
    return f"{value['value']:{form}} [{value['low']:{form}}, {value['high']:{form}}]"


def gains(board: Any) -> Iterator[tuple[str, ...]]:
    """Yield the lines of a table of success rates and gains."""
    yield "task", "method", "success", "gain", "over"
    by_env = {env["env"]: env["entries"] for env in board["tables"]}
    for env in ORDER:
        for entry in by_env[env]:
            gain = interval(entry["difference"], signed=True) if entry["difference"] else ""
            over = entry["baseline"] or ""
            yield f"`{env}`", entry["label"], interval(entry["mean"]), gain, over


def parity(board: Any) -> Iterator[tuple[str, ...]]:
    """Yield the lines of a table of returns beside those of the peers."""
    yield "task", "method", "return", "the peer's", "P(better)", "seeds", "shown"
    for env in board["tables"]:
        means = {entry["label"]: entry["mean"] for entry in env["entries"]}
        for entry in env["entries"]:
            if entry["baseline"]:
                yield (
                    f"`{env['env']}`",
                    entry["label"],
                    interval(entry["mean"], 0),
                    interval(means[entry["baseline"]], 0),
                    interval(entry["improvement"]),
                    str(len(entry["runs"])),
                    verdict(Interval(**entry["improvement"])),
                )


def ratios(processors: Any) -> Iterator[tuple[str, ...]]:
    """Yield the lines of a table of what was faster or slower than whom, on each processor."""
    ratio = "ours / peer"
    yield "what", "measured against", "unit", *(f"{ratio}, {name}" for name in processors)
    measured = [{row["name"]: Row(**row) for row in rows} for rows in processors.values()]
    for name, row in measured[0].items():
        if row.ratio_median is not None and not name.endswith("_generic"):  # no peer: our own
            found = [rows.get(name) for rows in measured]
            yield (
                f"`{name}`", readable(row)["measured against"], row.unit,
                *("-" if one is None else readable(one)[ratio] for one in found),
            )  # fmt: skip


def on_a_gpu(rows: Any) -> Iterator[tuple[str, ...]]:
    """Yield the lines of a table of what ``scripts/gpu.py`` timed, most of it beside a peer."""
    yield (
        "what",
        "measured against",
        "Trimtab",
        "peer",
        "unit",
        "ours / peer",
        "per simulated second",
        "difference",
    )
    for row in rows:
        if row.get("ours") is not None:  # not a check, and it has not failed
            cells = readable(Row(**{field.name: row[field.name] for field in fields(Row)}))
            ratio, own = row["ratio_median"], row.get("simulated_seconds_a_step")
            seconds = own / row["simulated_seconds_a_step_of_the_peer"] if own else 1.0
            off = row.get("difference")
            yield (
                f"`{row['name']}`", cells["measured against"], cells["ours"], cells["peer"],
                row["unit"], cells["ours / peer"],
                f"{ratio * seconds:.1f}" if own and ratio is not None else "",
                "" if off is None else f"{off:.1e}" if off else "0",
            )  # fmt: skip


def only(
    lines: Iterator[tuple[str, ...]], chosen: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, ...]]:
    """Yield the heading of a table and those of its lines whose first two cells are chosen.

    Raises:
        TrimtabError: if a chosen line is not there.
    """
    yield next(lines)
    found = {cells[:2]: cells for cells in lines}
    for first, second in chosen:
        if (f"`{first}`", second) not in found:
            raise TrimtabError(f"publish: there is no row of {first}, {second}; correct the script")
        yield found[f"`{first}`", second]


def markdown(lines: Iterator[tuple[str, ...]]) -> str:
    """Return lines of cells as a table; the first two columns are words, the others numbers."""
    heading, *rest = lines
    rule = [":--" if number < 2 else "--:" for number in range(len(heading))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heading, rule, *rest))


_DOORS, _BLOCKED = "robotics/PointMaze-TwoDoors-v0", "robotics/PointMaze-TwoRoutes-Blocked-v0"
_GAINS = (
    (_DOORS, "dsrl_sac (flow)"),
    (_DOORS, "best_of_n"),
    (_DOORS, "golden_ticket"),
    (_DOORS, "frozen (flow)"),
    (_DOORS, "zero_noise (flow)"),
    (_BLOCKED, "dsrl_sac (flow)"),
    (_BLOCKED, "golden_ticket"),
    (_BLOCKED, "frozen (flow)"),
    ("metaworld/push-v3", "dsrl_sac (flow)"),
    ("metaworld/push-v3", "frozen (flow)"),
)
"""Rows of the quickstart that the README shows."""
_RATIOS = (
    ("half_cheetah_16", "Gymnasium, sync"),
    ("hopper_16_envpool", "EnvPool"),
    ("sac_loop", "Stable-Baselines3"),
    ("sac_loop_sbx", "sbx"),
    ("ppo_loop", "Stable-Baselines3"),
    ("diffusion_onnx_1", "diffusers, DDIM loop"),
)
"""Rows of `trimtab speed` that the README shows: where it is faster, and where it is not."""


@dataclass(frozen=True)
class Table:
    """A table of a result in a page, between two lines of comment.

    Attributes:
        result: folder of the result below ``benchmarks/results``, or several by the names that the
            table calls them by.
        file: what it is made from.
        page: where it stands, from the root of the project.
        lines: heading and lines from the file's content.
        name: what the comment before it calls it.
        script: what writes it.
    """

    result: str | Mapping[str, str]
    file: str
    page: str
    lines: Callable[[Any], Iterator[tuple[str, ...]]]
    name: str
    script: str = "publish.py"

    @property
    def start(self) -> str:
        """The comment before the table."""
        return f"<!-- {self.name} table: written by scripts/{self.script} -->"

    def text(self, results: Path) -> str:
        """Return the table."""

        def content(folder: str) -> Any:
            return json.loads((results / folder / self.file).read_text(encoding="utf-8"))

        if isinstance(self.result, str):
            return markdown(self.lines(content(self.result)))
        return markdown(self.lines({name: content(one) for name, one in self.result.items()}))

    @property
    def folders(self) -> list[str]:
        """The folders that the table is made from."""
        return [self.result] if isinstance(self.result, str) else [*self.result.values()]


_BOARD, _SPEED = "leaderboard.json", "speed.json"
_PROCESSORS = {"Intel Xeon": "speed", "AMD EPYC": "speed-amd"}
"""What the rows of ``trimtab speed`` were measured on, and their folders."""
TABLES = (
    Table("quickstart", _BOARD, "docs/demo.md", gains, "quickstart"),
    Table("quickstart", _BOARD, "README.md", lambda board: only(gains(board), _GAINS), "short"),
    Table("online-parity", _BOARD, "docs/online-methods.md", parity, "online-parity"),
    Table(_PROCESSORS, _SPEED, "docs/performance.md", ratios, "speed"),
    Table(
        _PROCESSORS, _SPEED, "README.md", lambda rows: only(ratios(rows), _RATIOS), "short speed"
    ),
    Table("gpu", "rows.json", "benchmarks/results/gpu/README.md", on_a_gpu, "gpu", "gpu.py"),
)


def write_pages(place: Path, project: Path) -> None:
    """Write the tables of a result in the pages that have one.

    Raises:
        TrimtabError: if a page lacks the comment before its table.
    """
    for table in TABLES:
        if place.name in table.folders:
            page = project / table.page
            before, found, rest = page.read_text(encoding="utf-8").partition(table.start)
            if not found:
                raise TrimtabError(f"publish: {table.page} lacks the line {table.start}")
            _, _, after = rest.partition(END)
            text = f"{before}{table.start}\n{table.text(place.parent)}\n{END}{after}"
            atomic_write_text(page, text)
