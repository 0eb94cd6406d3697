"""Sweeps: the table at their end, in which each run stands as what became of it."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from trimtab import plugins
from trimtab.benchmarks.cli.commands.train import _print_outcomes
from trimtab.benchmarks.cli.main import run as trimtab
from trimtab.benchmarks.suites.launch import Chosen, Done, Kind, Launcher, Start, Work, carry_out
from trimtab.benchmarks.suites.outcome import Outcome
from trimtab.benchmarks.suites.search import Search, search
from trimtab.benchmarks.suites.study import SAMPLERS, Study
from trimtab.benchmarks.suites.sweep import sweep
from trimtab.benchmarks.training import run as loop
from trimtab.benchmarks.training.settings import groups
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings_of import command_of
from trimtab.benchmarks.training.train import train
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
    reason = "1 of 2 runs failed: .*1e[+]30: .* is (nan|inf);"  # as the processor rounds
    with pytest.raises(TrimtabError, match=reason) as error:
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


SPACE = [
    "algorithm.learning_rate=tag(log, interval(1e-4,1e-2))",
    "algorithm.batch_size=choice(8,16)",
]


def searched(words: Sequence[str], launcher: Chosen, **how: Any) -> tuple[list[Outcome], str]:
    told: list[Any] = []
    chosen = Search(n_trials=4, score="return", sampler="random", seed=3, **how)
    search(words, chosen, lambda *said: told.extend(said), console=quiet(), launcher=launcher)
    outcomes, best = told
    return outcomes, best


def killed_in(child: Callable[[], object]) -> None:
    """Carry out something in a process of its own, which kills itself."""
    number = os.fork()
    if number == 0:
        try:
            child()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == -signal.SIGKILL


def trials_in(out: Path) -> list[dict[str, Any]]:
    (file,) = out.glob("studies/*/study.json")
    return list(json.loads(file.read_text())["trials"])


def test_a_search_that_is_killed_tries_what_one_that_is_not_tries(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    outcomes, best = searched([*short(tiny, whole), *SPACE], here())
    after = loop.Run._after

    def kill(run: Any, index: int, steps: int) -> None:
        after(run, index, steps)
        if run.position >= 10 and len(list(killed.glob("**/result.json"))) == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    words = [*short(tiny, killed), *SPACE]
    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, "_after", kill)
        killed_in(lambda: searched(words, here()))
    assert [trial["state"] for trial in trials_in(killed)] == ["done", "running"]
    counted: list[int] = []
    again, _ = searched(words, here(counted.append))
    assert counted == [0, 1, 2]  # the first one is not run again
    assert len(list(killed.glob("**/result.json"))) == len(list(killed.glob("**/seed0"))) == 4
    for one, other in zip(trials_in(whole), trials_in(killed), strict=True):
        assert (one["params"], one["score"]) == (other["params"], other["score"])
        assert one["state"] == other["state"] == "done"
    scores = [one.return_ for one in outcomes]
    assert scores == sorted(scores, reverse=True) == [one.return_ for one in again]  # type: ignore[type-var]
    folder = Path(outcomes[0].folder)
    repeated = train(compose_run(shlex.split(best)[2:]))
    assert repeated.already_done and repeated.folder == folder
    searched(words, here(lambda count: pytest.fail("all was done")))
    capsys.readouterr()
    with pytest.raises(TrimtabError, match="was begun with direction=maximize, not minimize"):
        searched(words, here(), direction="minimize")
    with pytest.raises(TrimtabError, match="was begun with space="):
        searched([*words[:-1], "algorithm.batch_size=choice(8,32)"], here())


def test_optuna_learns_from_the_scores_before(tmp_path: Path) -> None:
    """The best of 40 trials of (x - 0.3)² is nearer than chance, and the same after a stop."""
    about = {
        "words": [], "direction": "minimize", "score": "auto", "sampler": "tpe", "seed": 0,
        "space": {"x": {"kind": "float", "low": 0.0, "high": 1.0, "step": None, "log": False},
                  "n": {"kind": "int", "low": 1, "high": 64, "step": None, "log": True}},
    }  # fmt: skip

    def tried(study: Study, count: int) -> list[Mapping[str, Any]]:
        while len(study.trials) < count:
            trial = study.ask()
            trial.score, trial.state = (float(trial.params["x"]) - 0.3) ** 2, "done"
        study.save()
        return [trial.params for trial in study.trials]

    whole = tried(Study(tmp_path / "whole", about), 40)
    tried(Study(tmp_path / "parts", about), 15)
    rest = Study(tmp_path / "parts", about)
    rest.load()
    assert tried(rest, 40) == whole
    late = sorted(abs(float(params["x"]) - 0.3) for params in whole[25:])
    assert late[len(late) // 2] < 0.2  # by chance the half of them would be within 0.25
    assert all(1 <= params["n"] <= 64 and isinstance(params["n"], int) for params in whole)
    assert rest.best_first()[0].score == min(trial.score or 0.0 for trial in rest.trials)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["hydra.sweeper.n_trials=0"], "n_trials=0: must be a whole number from 1"),
        (["hydra.sweeper.n_trials=-1"], "n_trials=-1: must be a whole number from 1"),
        (["hydra.sweeper.n_jobs=0"], "n_jobs=0: must be a whole number from 1"),
        (["hydra.sweeper.score=succes"], "score=succes: there are: auto, success, return"),
        (["hydra.sweeper.direction=up"], "direction"),
        (["hydra.sweeper.sampler=tpx"], "sampler"),
        (["hydra.sweeper.n_trial=3"], "n_trials"),
        (["hydra.sweeper.study_name=../up"], "study_name='../up'"),
        (["workers=2"], "n_jobs"),
        (["algorithm.learning_rate=interval(1,0.1)"], "begins above its end"),
        (["algorithm.learning_rate=tag(log, interval(0,1))"], "must be above 0"),
        (["seed=range(5,1)"], "a range has no values in it"),
        (["seed=shuffle(range(4,1))"], "a range has no values in it"),
        (["source=glob(zzz*)"], "no name of source is like that"),
        (["algorithm.batch_size=choice()"], "choice()"),
        (["algorithm.learning_rat=choice(1,2)"], "learning_rate"),
        (["seed=3"], "no setting is to be searched"),
        (["seed=interval(1,4)"], "write seed='range(1,5)' or seed='choice(1,4)'"),
        (["seed=tag(log, interval(1,4))"], "write seed='tag(log, range(1,5))'"),
        (["seed=choice(0,x)"], "seed=x: "),
        (["seed=shuffle(range(0,1000000000))"], "from 100 values at most"),
        (["seed=0,"], "seed=0,: cannot be read"),
    ],
)
def test_wrong_words_of_a_search_are_one_line(
    words: list[str], line: str, tiny: Any, tmp_path: Path
) -> None:
    swept = ["seed=0,1"] if words[0].startswith(("hydra", "workers")) else []
    with pytest.raises(TrimtabError) as error:
        trimtab(["train", "-m", "hydra/sweeper=optuna", *short(tiny, tmp_path), *swept, *words])
    assert line in str(error.value) and error.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


CHEAP = [
    "env=gym/InvertedPendulum-v5", "algorithm=sac", "online_steps=10", "algorithm.warmup_steps=4",
    "algorithm.hidden=[8]", "eval_episodes=1",
]  # fmt: skip
"""Words of a run that is never carried out: its trials are :class:`Scripted`."""


class Scripted(Here):
    """A launcher whose runs end at once: a return of their number, or as they are told to."""

    def await_some(
        self, futures: Collection[concurrent.futures.Future[Done]]
    ) -> set[concurrent.futures.Future[Done]]:
        (future,) = futures
        number = int(self.waiting.pop(future).label.split()[1])
        try:
            self.before(number)
            found = {"return": float(number), "success": None, "episodes": 1}
            future.set_result(Done("runs", found, already_done=False))
        except TrimtabError as error:
            future.set_exception(error)
        return {future}


def scripted(before: Callable[[int], None]) -> Chosen:
    @contextmanager
    def started(start: Start) -> Iterator[Launcher]:
        yield Scripted(start, before)

    return Chosen(Kind("scripted", started), {})


def test_a_trial_that_failed_is_tried_again_behind_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is tried next does not depend on whether it was stopped, or mended, in between."""
    import optuna

    def early(module: Any, seed: int) -> Any:  # learns from the first score on
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)

    monkeypatch.setitem(SAMPLERS, "tpe", early)  # type: ignore[arg-type]
    tried: list[int] = []
    faults: dict[int, BaseException] = {1: TrimtabError("not mended")}

    def carried_out(number: int) -> None:
        tried.append(number)
        if number in faults:
            raise faults[number]

    def search_in(out: str) -> list[int]:
        tried.clear()
        words = [*CHEAP, f"out={tmp_path / out}", "algorithm.tau=interval(0.001,0.1)"]
        search(
            words, Search(n_trials=5), lambda *said: None, console=quiet(),
            launcher=scripted(carried_out),
        )  # fmt: skip
        return list(tried)

    def failing(out: str) -> None:
        with pytest.raises(TrimtabError, match="1 of 5 trials failed: trial 1: not mended"):
            search_in(out)

    failing("whole")
    assert tried == [0, 1, 2, 3, 4]
    failing("whole")
    assert tried == [1]
    faults[3] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        search_in("parts")
    faults.clear()
    assert search_in("whole") == [1] and search_in("whole") == []
    assert search_in("parts") == [3, 4, 1]
    assert trials_in(tmp_path / "whole") == trials_in(tmp_path / "parts")
    assert [trial["score"] for trial in trials_in(tmp_path / "whole")] == [0, 1, 2, 3, 4]


def test_a_score_that_the_task_does_not_have_is_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    words = [*CHEAP, f"out={tmp_path}", "seed=0,1"]
    never = scripted(lambda number: pytest.fail("a trial was begun"))
    with pytest.raises(TrimtabError, match="score=success: .* has no success.*score=return"):
        search(words, Search(score="success"), print, console=quiet(), launcher=never)
    assert list(tmp_path.iterdir()) == []


def test_a_command_to_repeat_has_the_plug_ins_that_it_needs(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = tmp_path / "lab_of_this_test"
    lab.mkdir()
    (lab / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(plugins.VARIABLE, str(lab))
    monkeypatch.chdir(tmp_path)
    words = [*short(tiny, Path("runs")), "algorithm.batch_size=choice(8,16)"]
    best = searched(words, here())[1]
    assert best.startswith("trimtab --with ./lab_of_this_test train env=")
    folder = next(Path("runs").glob("**/config.yaml")).parent
    monkeypatch.setenv(plugins.VARIABLE, "")  # it is the run that needs it, and not this process
    noted = command_of(folder)
    assert noted is not None and noted.startswith("trimtab --with ./lab_of_this_test train ")
    (folder / "provenance.json").unlink()
    assert command_of(folder) == noted  # from what config.yaml says


def test_a_file_of_ones_own_is_one_of_the_values(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever carries out a run is given the file, and no name that this process gave to it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(groups, "adopted", {})  # later tests do not find the file
    method = "_target_: trimtab.algorithms.offline.bc.BehaviorCloning"
    (tmp_path / "mine.yaml").write_text(f"# @package _global_\nalgorithm:\n  {method}\n")
    told: list[Outcome] = []
    others = [word for word in short(tiny, tmp_path / "runs") if not word.startswith("algorithm=")]
    words = [*others, f"algorithm=bc,{tmp_path}/mine.yaml"]
    # As in a process of its own, which knows nothing of this one's files.
    sweep(words, told.extend, console=quiet(), launcher=here(lambda _: groups.adopted.clear()))
    assert [one.label for one in told] == ["algorithm=bc", f"algorithm={tmp_path}/mine.yaml"]
    assert [Path(one.folder).parts[-3] for one in told] == ["bc", "mine"]
    searched_words = [*others, f"algorithm=choice({tmp_path}/mine.yaml)"]
    outcomes, best = searched(searched_words, here(lambda _: groups.adopted.clear()))
    assert {one.state for one in outcomes} == {"done"} and f"algorithm={tmp_path}/mine" in best


def test_a_search_without_optuna_names_the_extra(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(TrimtabError, match=r"pip install 'trimtab\[optuna\]'"):
        searched([*short(tiny, tmp_path), *SPACE], here())
    assert list(tmp_path.iterdir()) == []
