"""How time and memory grow with the size of the work, one axis at a time.

Every point is measured in a process of its own, because memory that one point has taken would still
be there for the next. Run as a module with an axis, a size, rounds and a scale, this file is that
process; it prints one JSON object.
"""

from __future__ import annotations

import io
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trimtab.benchmarks.speed.measure import Progress, Stage, Work
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_bytes, atomic_write_json


@dataclass(frozen=True)
class Point:
    """Seconds of one step and the most memory of its process, at size ``x`` of axis ``name``."""

    name: str
    x: int
    seconds: float
    peak_mib: float

    def to_json(self) -> dict[str, Any]:
        """Return the point as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Axis:
    """What grows.

    Attributes:
        title: heading of its panel.
        step: what a step is.
        sizes: its points.
        work: sets the work of one size up; its count is of steps.
    """

    title: str
    step: str
    sizes: tuple[int, ...]
    work: Callable[[Stage, int], Work]


def _repeated(step: Callable[[], object], count: int) -> Work:
    def work() -> float:
        for _ in range(count):
            step()
        return count

    return work


def _environments(stage: Stage, size: int) -> Work:
    from trimtab.benchmarks.speed.cases.environments import actions
    from trimtab.envs.vector import make_vec

    envs = make_vec("gym/HalfCheetah-v5", size, seed=0)
    stage.exits.callback(envs.close)
    envs.reset()
    chosen = actions(envs.single_action_space, size, "float32")[0]
    return _repeated(lambda: envs.step(chosen), stage.amount(200))


def _buffer(stage: Stage, size: int) -> Work:
    from trimtab.benchmarks.speed.cases.shared import ACTION_DIM, BATCH, OBS_DIM, transitions
    from trimtab.datasets.sources.replay import ReplayBuffer

    # Of 1000 environments, filled row by row: nothing else may take memory that counts as its own.
    columns = 1_000
    buffer = ReplayBuffer(size, OBS_DIM, (1, ACTION_DIM), num_envs=columns)
    row = transitions(columns)
    done = row["done"] > 0
    for _ in range(size // columns):
        buffer.add(row["obs"], row["action"][:, None], row["reward"], row["next_obs"], done, done)
    return _repeated(lambda: buffer.sample(BATCH), stage.amount(1_000))


def _sac(stage: Stage, **keywords: Any) -> Work:
    from trimtab.algorithms.off_policy.sac import SAC
    from trimtab.benchmarks.speed.cases.shared import BATCH, filled_replay, setup

    algorithm, buffer = SAC(setup(), **keywords), filled_replay(10_000)
    return _repeated(lambda: algorithm.update(buffer.sample(BATCH)), stage.amount(50))


def _width(stage: Stage, size: int) -> Work:
    return _sac(stage, hidden=(size, size))


def _ensemble(stage: Stage, size: int) -> Work:
    return _sac(stage, critics=size, target_critics=2)


def _denoising(stage: Stage, size: int) -> Work:
    import torch

    from trimtab.benchmarks.speed.cases.latency import HORIZON
    from trimtab.benchmarks.speed.cases.shared import hopper
    from trimtab.policies.kinds.diffusion import DiffusionPolicy

    policy = DiffusionPolicy(hopper(HORIZON), sampling_steps=size).eval()
    obs = torch.zeros(1, policy.spec.obs_dim)
    return _repeated(lambda: policy.act(obs), stage.amount(200))


AXES: Mapping[str, Axis] = {
    "number_of_environments": Axis(
        "Environments (HalfCheetah)", "step of all", (1, 2, 4, 8, 16, 32, 64), _environments
    ),
    "buffer_size": Axis(
        "Transitions in the buffer", "batch of 256", (10_000, 30_000, 100_000, 300_000, 1_000_000),
        _buffer,
    ),
    "network_width": Axis(
        "Width of SAC's networks", "update", (64, 128, 256, 512, 1024), _width
    ),
    "ensemble_size": Axis("Critics of SAC", "update", (2, 5, 10, 15, 20), _ensemble),
    "denoising_steps": Axis("Steps of DDIM", "decision", (1, 2, 5, 10, 20), _denoising),
}  # fmt: skip
"""Every axis by its name in the rows."""

Measure = Callable[[str, int, int, float], Point]


def measure_here(name: str, size: int, rounds: int, scale: float) -> Point:
    """Measure one point in this process, whose memory counts as well."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with ExitStack() as exits:
        work = AXES[name].work(Stage(scale, exits), size)
        work()
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            count = work()
            seconds.append((time.perf_counter() - started) / count)
    return Point(name, size, statistics.median(seconds), peak_mib())


def measure_apart(name: str, size: int, rounds: int, scale: float) -> Point:
    """Measure one point in a process of its own.

    Raises:
        TrimtabError: if that process fails.
    """
    words = [sys.executable, "-P", "-m", "trimtab.benchmarks.speed.growth"]
    words += [name, str(size), str(rounds), str(scale)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it was killed; is there enough memory?"]
        raise TrimtabError(f"speed: {name} at {size:,}: {last[0]}")
    return Point(**json.loads(done.stdout))


def peak_mib(status: Path = Path("/proc/self/status")) -> float:
    """Return the most memory that this process has held, in MiB."""
    try:
        # Not ru_maxrss where this is to be had: that one begins with the memory of the parent.
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def measure_axes(
    names: Sequence[str],
    *,
    rounds: int,
    scale: float = 1.0,
    progress: Progress = lambda share, text: None,
    measure: Measure = measure_apart,
) -> list[Point]:
    """Measure every point of the named axes, one after another.

    Raises:
        TrimtabError: if a point cannot be measured.
    """
    wanted = [(name, size) for name in names for size in AXES[name].sizes]
    points = []
    for number, (name, size) in enumerate(wanted):
        progress(number / len(wanted), f"{name} {size:,}")
        points.append(measure(name, size, rounds, scale))
    progress(1.0, "done")
    return points


def write_growth(folder: Path, points: Sequence[Point]) -> None:
    """Write ``growth.json`` and ``growth.png``."""
    atomic_write_json(folder / "growth.json", [point.to_json() for point in points])
    atomic_write_bytes(folder / "growth.png", draw(points))


def draw(points: Sequence[Point]) -> bytes:
    """Return a PNG with a column for each axis: its time above, its memory below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(point.name for point in points))
    chart, panels = pyplot.subplots(
        2, len(names), figsize=(2.9 * len(names), 4.8), sharex="col", squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for column, name in enumerate(names):
        axis, mine = AXES[name], [point for point in points if point.name == name]
        sizes = [point.x for point in mine]
        time_panel, memory_panel = panels[0][column], panels[1][column]
        times, memory = [1e3 * p.seconds for p in mine], [p.peak_mib for p in mine]
        decades = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
        guide = [times[0] * size / sizes[0] for size in sizes]
        time_panel.plot(sizes, guide, "--", color="#999999", linewidth=1, label="in proportion")
        time_panel.plot(sizes, times, "o-", color="#0072b2", markersize=4)
        memory_panel.plot(sizes, memory, "s-", color="#d55e00", markersize=4)
        time_panel.set(
            title=axis.title, ylabel=f"ms for one {axis.step}", xscale="log", yscale="log",
            ylim=(10.0 ** decades[0], 10.0 ** max(decades[1], decades[0] + 1)),
        )  # fmt: skip
        time_panel.yaxis.set_major_formatter("{x:g}")
        time_panel.yaxis.set_minor_formatter("")
        memory_panel.set(ylabel="peak memory, MiB", xscale="log", ylim=(0, 1.15 * max(memory)))
        for panel in (time_panel, memory_panel):
            panel.grid(True, color="#dddddd", linewidth=0.6)
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(labelsize=8)
            panel.yaxis.label.set_size(8.5)
            panel.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
            panel.set_xticks(sizes, [_short(size) for size in sizes])
        time_panel.title.set_size(9.5)
    panels[0][0].legend(frameon=False, fontsize=8, loc="upper left")
    image = io.BytesIO()
    chart.savefig(image, format="png", dpi=150, facecolor="white")
    pyplot.close(chart)
    return image.getvalue()


def _short(size: int) -> str:
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


def main(words: Sequence[str]) -> None:
    """Measure the point that ``words`` name and print it."""
    name, size, rounds, scale = words
    point = measure_here(name, int(size), int(rounds), float(scale))
    sys.stdout.write(json.dumps(point.to_json()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
