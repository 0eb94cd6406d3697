"""Stop every command at random moments, and look at what is left: processes, files, the result.

    python scripts/stop_commands.py folder=/tmp/stops cases=20 only=train,export

A command is started in a session of its own, and is sent SIGTERM, SIGINT or SIGKILL, alone or with
its whole group. Then no process may be left and no traceback may have been shown. The same command
is carried out again, and has to end with what a command that nobody stopped ends with, and with
nothing half written. The moments follow from the seed and the time that the command takes here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as parquet
import yaml

__all__ = ["COMMANDS", "Case", "case_of", "carry_out", "prepare", "result_of", "stop"]

SOURCE = Path(__file__).resolve().parent.parent / "src"
TINY = ["env=gym/InvertedPendulum-v5", "algorithm=sac", "algorithm.hidden=[8]", "eval_episodes=2"]
TINY += ["algorithm.warmup_steps=50", "algorithm.batch_size=8", "checkpoint_every=100"]
RUNS = ["online_steps=400"]
RECIPE = ["dataset=two_routes", "dataset.episodes=20"]
COMMANDS = {
    "train": ["train", *TINY, *RUNS, "out=out"],
    "sweep": ["train", *TINY, *RUNS, "out=out", "-m", "seed=0,1", "workers=2"],
    "bench": ["bench", "suite=../suite.yaml", "runs=out", "workers=2"],
    "make": ["dataset", "make", *RECIPE, "out=out"],
    "convert": ["dataset", "convert", "from=../data", "to=out/copy.hdf5", "as=d4rl"],
    "evaluate": ["evaluate", "policy=../run", "episodes=40", "format=json"],
    "export": ["export", "run=../run", "out=out"],
    "leaderboard": ["leaderboard", "runs=../runs", "out=out"],
}
"""The words of each command; what they read is beside the folder that they are carried out in."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
CODES = {signal.SIGTERM: {0, 143, -15}, signal.SIGINT: {0, 130, -2}, signal.SIGKILL: {0, -9}}
GRACE = 30.0
_WORD = "STARTED_BY"
_LINES = ("resource_tracker", "warnings.warn")  # Python's own, where a whole group is told to end


@dataclass(frozen=True)
class Case:
    """One stop: the signal, whether the whole group gets it, and when, as a share of the time."""

    signal: signal.Signals
    group: bool
    share: float


def case_of(seed: int, name: str, number: int) -> Case:
    """Return a case, which follows from its number alone."""
    draw = random.Random(f"{seed} {name} {number}")
    chosen = draw.choice(SIGNALS)
    return Case(chosen, draw.random() < 0.5 and chosen != signal.SIGKILL, draw.uniform(0.05, 1.0))


def prepare(folder: Path) -> None:
    """Make what the commands read: runs, data and a suite."""
    folder.mkdir(parents=True, exist_ok=True)
    suite = {"title": "Stopped", "seeds": [0, 1]}
    suite["runs"] = {"sac": {"overrides": [*TINY, *RUNS], "seconds": 5}}
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite))
    for words in (
        ["train", *TINY, "online_steps=100", "out=runs"],
        ["dataset", "make", "dataset=two_routes", "dataset.episodes=4", "out=made"],
    ):
        code, _, told = carry_out(words, folder)
        assert code == 0, told
    (run,) = (path.parent for path in folder.glob("runs/**/result.json"))
    (data,) = (path.parent.parent for path in folder.glob("made/**/data/main_data.hdf5"))
    for name, target in (("run", run), ("data", data)):
        if not (folder / name).exists():
            (folder / name).symlink_to(target.relative_to(folder))


def started_by(word: str) -> list[psutil.Process]:
    """Return the processes that have a word in their environment, also those nobody's child."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(_WORD) == word and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def carry_out(
    words: list[str], folder: Path, case: Case | None = None, seconds: float = 0.0
) -> tuple[int, str, str]:
    """Carry out a command, which a case may stop; return its exit code and both outputs.

    Args:
        words: the command's.
        folder: that it is carried out in.
        case: how it is stopped; None to let it come to its end.
        seconds: how long it takes where nobody stops it.

    Raises:
        AssertionError: if it does not end, or a process is left.
    """
    word = f"{folder} {time.monotonic_ns()}"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), _WORD: word}
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab.benchmarks.cli.main", *words],
        cwd=folder, env=environment, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        if case is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(case.share * seconds)
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if case.group else os.kill)(process.pid, case.signal)
        out, told = process.communicate(timeout=300)
        deadline = time.monotonic() + GRACE
        while (left := started_by(word)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, f"left behind: {[one.cmdline() for one in left]}"
    finally:
        process.kill()
        for one in started_by(word):
            one.kill()
    kept = [line for line in told.splitlines() if not any(part in line for part in _LINES)]
    return process.returncode, out, "\n".join(kept)


def result_of(folder: Path, shown: str) -> str:
    """Return a digest of what a command has made that does not depend on the clock."""
    digest = hashlib.sha256(shown.encode() if shown.startswith(("{", "[")) else b"")
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or "checkpoint" in path.parts:
            continue
        if path.suffix == ".parquet":
            table = parquet.read_table(path)
            timed = [name for name in table.column_names if "second" in name]
            digest.update(str(table.drop_columns(timed).to_pylist()).encode())
        elif path.suffix in (".safetensors", ".hdf5", ".onnx", ".csv"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def stop(name: str, case: Case, folder: Path, seconds: float, expected: str) -> int:
    """Stop a command, carry it out again and compare; return the exit code of the first time.

    Args:
        name: of the command.
        case: how it is stopped.
        folder: a new one beside what :func:`prepare` has made.
        seconds: how long the command takes.
        expected: digest of what it makes where nobody stops it.

    Raises:
        AssertionError: naming what is not clean.
    """
    folder.mkdir()
    words = COMMANDS[name]
    code, _, told = carry_out(words, folder, case, seconds)
    assert code in CODES[case.signal], f"exit code {code}: {told[-400:]}"
    assert "Traceback" not in told, told[-800:]
    if case.signal != signal.SIGKILL:  # what is killed cannot tidy up; the next command does
        assert not list(folder.rglob(".*.tmp")), f"half written: {list(folder.rglob('.*.tmp'))}"
    code, shown, told = carry_out(words, folder)
    assert code == 0, f"the second time: exit code {code}: {told[-400:]}"
    left = [path for path in folder.rglob(".*.tmp")]
    assert not left, f"left half written: {left}"
    assert result_of(folder, shown) == expected, "another result"
    shutil.rmtree(folder)
    return code


def main(folder: Path, cases: int, only: list[str], seed: int) -> int:
    """Stop each command as often as is asked for; return how many times something was not clean."""
    prepare(folder)
    failed = 0
    for name in only or COMMANDS:
        whole = folder / f"{name}-whole"
        shutil.rmtree(whole, ignore_errors=True)
        whole.mkdir()
        before = time.monotonic()
        code, shown, told = carry_out(COMMANDS[name], whole)
        seconds = time.monotonic() - before
        assert code == 0, told
        expected, clean = result_of(whole, shown), 0
        for number in range(cases):
            case, place = case_of(seed, name, number), folder / f"{name}-{number}"
            shutil.rmtree(place, ignore_errors=True)
            try:
                stop(name, case, place, seconds, expected)
                clean += 1
            except AssertionError as error:
                print(f"{name} {number} {case}: {error}", flush=True)  # noqa: T201
        failed += cases - clean
        print(f"{name}: {clean} of {cases} clean, {seconds:.1f} s", flush=True)  # noqa: T201
    return failed


if __name__ == "__main__":
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    sys.exit(
        main(
            Path(given.get("folder", "stops")).absolute(),
            int(given.get("cases", 20)),
            [name for name in given.get("only", "").split(",") if name],
            int(given.get("seed", 0)),
        )
    )
