"""Sweeps: the table at their end, in which each run stands as what became of it."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from trimtab.benchmarks.cli.commands.train import _print_outcomes
from trimtab.benchmarks.runs import run as loop
from trimtab.benchmarks.suites.launch import Chosen, Done, Kind, Launcher, Start, Work, carry_out
from trimtab.benchmarks.suites.outcome import Outcome
from trimtab.benchmarks.suites.sweep import sweep
from trimtab.errors import TrimtabError


class Here:
    """A launcher that carries out runs in this process, one after another, when they are awaited.

    Args:
        start: what it is started with.
        before: called before each run, with how many have been carried out.
    """

    def __init__(self, start: Start, before: Callable[[int], None]) -> None:
        self.start, self.before, self.count = start, before, 0
        self.waiting: dict[concurrent.futures.Future[Done], Work] = {}

    def submit(self, work: Work) -> concurrent.futures.Future[Done]:
        future: concurrent.futures.Future[Done] = concurrent.futures.Future()
        self.waiting[future] = work
        return future

    def await_some(
        self, futures: Collection[concurrent.futures.Future[Done]]
    ) -> set[concurrent.futures.Future[Done]]:
        future = next(iter(futures))
        self.before(self.count)
        self.count += 1
        try:
            future.set_result(carry_out(self.waiting.pop(future), self.start.tell))
        except TrimtabError as error:
            future.set_exception(error)
        return {future}


def here(before: Callable[[int], None] = lambda count: None) -> Chosen:
    @contextmanager
    def started(start: Start) -> Iterator[Launcher]:
        yield Here(start, before)

    return Chosen(Kind("here", started), {})


def quiet() -> Console:
    return Console(quiet=True)


def short(tiny: Any, out: Path) -> list[str]:
    words = [word for word in tiny.cloning(out) if not word.startswith(("offline", "eval_", "che"))]
    return [*words, "offline_steps=20", "eval_episodes=2", "checkpoint_every=5"]


def shown(outcomes: Sequence[Outcome], capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        _print_outcomes(outcomes)
    return capsys.readouterr().out.splitlines()


def test_a_run_that_fails_stands_in_the_table_with_its_reason(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Outcome] = []
    lines = Console(record=True, width=300, force_terminal=False)
    words = [*short(tiny, tmp_path), "algorithm.learning_rate=0.001,1e30"]
    with pytest.raises(TrimtabError, match="1 of 2 runs failed: .*1e[+]30: .* is nan;") as error:
        sweep(words, told.extend, console=lines, launcher=here())
    assert error.value.exit_code == 2
    assert [(one.label, one.state) for one in told] == [
        ("algorithm.learning_rate=0.001", "done"), ("algorithm.learning_rate=1e+30", "failed"),
    ]  # fmt: skip
    assert told[0].episodes == 2 and told[0].success is not None and told[0].note == ""
    assert Path(told[0].folder, "result.json").is_file() and told[1].episodes is None
    assert Path(told[1].folder, "config.yaml").is_file() and " is " in told[1].note
    ended = [line for line in lines.export_text().splitlines() if line.startswith(("1/2", "2/2"))]
    assert [line.rsplit(" ", 1)[1] for line in ended] == ["done", "failed"]
    table = shown(told, capsys)
    assert table[0] == "sweep: 2 runs, 1 done, 1 failed"
    (row,) = [line for line in table if "1e+30" in line]
    assert "failed" in row and told[1].note in row and told[1].folder in row


def test_a_sweep_that_is_interrupted_shows_what_there_is(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = loop.Run._after

    def stop(run: Any, index: int, steps: int) -> None:
        after(run, index, steps)
        if run.position >= 10 and run.config["seed"] == 1:
            raise KeyboardInterrupt

    told: list[Outcome] = []
    words = [*short(tiny, tmp_path), "seed=0,1,2"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Run, "_after", stop)
        sweep(words, told.extend, console=quiet(), launcher=here())
    assert [one.state for one in told] == ["done", "stopped", "not started"]
    assert [one.episodes for one in told] == [2, None, None]
    told.clear()
    sweep(words, told.extend, console=quiet(), launcher=here())
    assert [one.state for one in told] == ["done"] * 3
    assert [one.note for one in told] == ["already done", "", ""]
