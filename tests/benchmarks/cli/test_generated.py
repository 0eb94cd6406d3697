"""Generated wrong input (``wrong.py``): an exit code of 0 or 2, at most three lines, nothing left.

Many cases take minutes; each unclean one is told:

    WRONG_CASES=0-1999 pytest tests/benchmarks/cli/test_generated.py
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from loading import load_module

from trimtab import plugins
from trimtab.benchmarks.cli.main import main, run
from trimtab.benchmarks.training.settings import groups
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.datasets.formats.registry import get_format

FIRST = 70
LIMIT = 20
"""Seconds of the processor that one case may take."""
WAIT = 180
"""Seconds by the clock, for one that waits: a machine that is shared may take long."""
FORMATS = {"d4rl": "data.hdf5", "ogbench": "data.npz"}


wrong = load_module(Path(__file__).with_name("wrong.py"))


class TooLong(BaseException):
    """A case has not ended in its time."""


@contextmanager
def limited() -> Iterator[None]:
    """Let a block end after its time, whatever it does."""

    def end(*_: object) -> None:
        raise TooLong

    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, LIMIT),
        (signal.SIGALRM, signal.ITIMER_REAL, WAIT),
    )
    before = [signal.signal(number, end) for number, _, _ in timers]
    try:
        for _, timer, seconds in timers:
            signal.setitimer(timer, seconds)
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Right input, as small as it can be."""
    folder = tmp_path_factory.mktemp("material")
    finished = train(compose_run([*wrong.RUN, f"out={folder}/runs"])).folder
    assert run(["export", f"run={finished}", f"out={folder}/bundle"]) == 0
    words = [*wrong.CLONE, "dataset=two_routes", "dataset.episodes=2", f"out={folder}/made"]
    train(compose_run(words))
    (minari,) = (path.parent.parent for path in folder.rglob("data/main_data.hdf5"))
    dataset = get_format("minari").load(minari)
    data = {"minari": minari}
    for name, file in FORMATS.items():
        save = get_format(name).save
        assert save is not None
        save(dataset, folder / file)
        data[name] = folder / file
    return wrong.Material(finished, folder / "bundle", data)


@contextmanager
def surroundings(place: Path) -> Iterator[None]:
    """What a case changes of the process is as before afterwards."""
    path = list(sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv(plugins.VARIABLE, "")
        yield
    sys.path[:] = path
    groups.adopted.clear()


def what_is_unclean(words: list[str], place: Path, capfd: Any) -> str:
    """Carry a case out; return what is not clean of its end, or nothing."""
    capfd.readouterr()
    code = "?"
    with surroundings(place):
        try:
            with limited():
                main(words)
        except SystemExit as ended:
            code = str(ended.code)
        except TooLong:
            return f"it takes {LIMIT} s of the processor, or waits for {WAIT} s"
        except BaseException as error:
            return f"{type(error).__name__}: {str(error)[:300]}"
    shown = capfd.readouterr()
    lines = [line for line in shown.err.splitlines() if "%," not in line]  # but for progress
    found_errors = code == "1" and words[:2] == ["dataset", "check"] and bool(shown.out)
    found = {
        f"exit code {code}": code not in ("0", "2") and not found_errors,
        f"{len(lines)} lines": code == "2" and not 1 <= len(lines) <= 3 and not shown.out,
        "a traceback": "Traceback" in shown.err + shown.out,
        "a line without an end": any(len(line) > 6000 for line in lines),
        "something half written": bool(list(place.rglob(".*.tmp"))),
        "a process left": bool(multiprocessing.active_children()),
    }
    said = " | ".join(lines)[:600]
    return f"{', '.join(what for what, there in found.items() if there)}: {said}" * any(
        found.values()
    )


def test_generated_input_is_answered_cleanly(
    material: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, _, last = os.environ.get("WRONG_CASES", "").partition("-")
    unclean = []
    for number in range(int(first), int(last) + 1) if last else range(FIRST):
        place = tmp_path / str(number)
        place.mkdir()
        words = wrong.words_of(number, place, material)
        if what := what_is_unclean(words, place, capfd):
            shown = " ".join(word[:200] for word in words)
            unclean.append(f"{number}: {shown}\n    {what}")
            with capfd.disabled():
                sys.stdout.write(f"\n{unclean[-1]}\n")
        shutil.rmtree(place, ignore_errors=True)
    assert not unclean, f"{len(unclean)} unclean:\n" + "\n".join(unclean)
