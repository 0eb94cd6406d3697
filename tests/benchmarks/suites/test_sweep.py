"""Sweeps: the table at their end, in which each run stands as what became of it."""

from __future__ import annotations

import concurrent.futures
import os
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from here import Here, launcher_here
from optuna.storages.journal import JournalFileBackend
from rich.console import Console

from trimtab import plugins
from trimtab.benchmarks.cli.commands.train import _print_outcomes
from trimtab.benchmarks.cli.main import run as trimtab
from trimtab.benchmarks.suites.launch import Chosen, Done
from trimtab.benchmarks.suites.search import SAMPLERS, Search, search
from trimtab.benchmarks.suites.sweep import sweep
from trimtab.benchmarks.suites.sweep_line import SweepLine
from trimtab.benchmarks.training import run as loop
from trimtab.benchmarks.training.settings import groups
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings_of import command_of
from trimtab.benchmarks.training.train import train
from trimtab.errors import TrimtabError


def here(before: Callable[[int], None] = lambda count: None, kind: type[Here] = Here) -> Chosen:
    return Chosen(launcher_here(before, kind), {})


def quiet() -> Console:
    return Console(quiet=True)


def short(tiny: Any, out: Path) -> list[str]:
    words = [word for word in tiny.cloning(out) if not word.startswith(("offline", "eval_", "che"))]
    return [*words, "offline_steps=20", "eval_episodes=2", "checkpoint_every=5"]


def shown(outcomes: Sequence[SweepLine], capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        _print_outcomes(outcomes)
    return capsys.readouterr().out.splitlines()


def test_a_run_that_fails_stands_in_the_table_with_its_reason(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[SweepLine] = []
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
    ended = [line for line in lines.export_text().splitlines() if line.startswith(("1/2", "2/2"))]
    assert [line.rsplit(" ", 1)[1] for line in ended] == ["done", "failed"]
    table = shown(told, capsys)
    assert table[0] == "sweep: 2 runs, 1 done, 1 failed"
    (row,) = [line for line in table if "1e+30" in line]
    assert "failed" in row and told[1].note in row


def test_a_sweep_that_is_interrupted_shows_what_there_is(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = loop.Run._finish_step

    def stop(run: Any, index: int, steps: int) -> None:
        after(run, index, steps)
        if run.position >= 10 and run.config["seed"] == 1:
            raise KeyboardInterrupt

    told: list[SweepLine] = []
    words = [*short(tiny, tmp_path), "seed=0,1,2"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Run, "_finish_step", stop)
        sweep(words, told.extend, console=quiet(), launcher=here())
    assert [one.state for one in told] == ["done", "not finished", "not finished"]
    assert [one.episodes for one in told] == [2, None, None]
    told.clear()
    sweep(words, told.extend, console=quiet(), launcher=here())
    assert [one.state for one in told] == ["done"] * 3
    assert [one.note for one in told] == ["already done", "", ""]


SPACE = [
    "algorithm.learning_rate=tag(log, interval(1e-4,1e-2))",
    "algorithm.batch_size=choice(8,16)",
]


def searched(words: Sequence[str], launcher: Chosen, **how: Any) -> tuple[list[SweepLine], str]:
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


def trials_in(out: Path) -> list[tuple[dict[str, Any], float | None]]:
    """Return what each trial that has ended tried, and its score."""
    (file,) = out.glob("studies/*/study.log")
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(file)))
    trials = optuna.load_study(study_name=None, storage=storage).trials
    return [(trial.params, trial.value) for trial in trials if "outcome" in trial.user_attrs]


def test_a_search_that_is_killed_tries_what_one_that_is_not_tries(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    outcomes, best = searched([*short(tiny, whole), *SPACE], here())
    after = loop.Run._finish_step

    def kill(run: Any, index: int, steps: int) -> None:
        after(run, index, steps)
        if run.position >= 10 and len(list(killed.glob("**/result.json"))) == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    words = [*short(tiny, killed), *SPACE]
    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, "_finish_step", kill)
        killed_in(lambda: searched(words, here()))
    assert len(trials_in(killed)) == 1
    counted: list[int] = []
    again, _ = searched(words, here(counted.append))
    assert counted == [0, 1, 2]  # the first one is not run again
    assert len(list(killed.glob("**/result.json"))) == len(list(killed.glob("**/seed0"))) == 4
    assert trials_in(whole) == trials_in(killed)
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
        (["algorithm.learning_rate=interval(1,0.1)"], "low=1.0, high=0.1"),
        (["algorithm.learning_rate=tag(log, interval(0,1))"], "low=0.0, high=1.0"),
        (["algorithm.learning_rate=interval(0,inf)"], "finite"),
        (["seed=range(5,1)"], "a range has no values in it"),
        (["seed=shuffle(range(4,1))"], "a range has no values in it"),
        (["source=glob(zzz*)"], "no name of source is like that"),
        (["algorithm.batch_size=choice()"], "choice()"),
        (["algorithm.learning_rat=choice(1,2)"], "learning_rate"),
        (["seed=3"], "no setting is to be searched"),
        (["seed=interval(1,4)"], "must be a whole number"),
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


def searched_scripted(out: Path, before: Callable[[int], None], **how: Any) -> list[SweepLine]:
    told: list[Any] = []
    search(
        [*CHEAP, f"out={out}", "algorithm.tau=interval(0.001,0.1)"], Search(**how),
        lambda *said: told.extend(said), console=quiet(), launcher=here(before, Scripted),
    )  # fmt: skip
    return list(told[0])


def test_a_trial_that_failed_has_another_one_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is tried next does not depend on whether the search was stopped in between."""

    def early(module: Any, seed: int) -> Any:  # learns from the first score on
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)

    monkeypatch.setitem(SAMPLERS, "tpe", early)  # type: ignore[arg-type]
    tried: list[int] = []
    faults: dict[int, BaseException] = {1: TrimtabError("not mended")}

    def carried_out(number: int) -> None:
        tried.append(number)
        if number in faults:
            raise faults[number]

    with pytest.raises(TrimtabError, match="1 of 5 trials failed: algorithm.tau=.*: not mended"):
        searched_scripted(tmp_path / "whole", carried_out, n_trials=5)
    found = searched_scripted(tmp_path / "whole", carried_out, n_trials=5)
    assert tried == [0, 1, 2, 3, 4, 5]
    assert [one.return_ for one in found] == [5.0, 4.0, 3.0, 2.0, 0.0, None]
    tried.clear()
    faults[3] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        searched_scripted(tmp_path / "parts", carried_out, n_trials=5)
    del faults[3]
    searched_scripted(tmp_path / "parts", carried_out, n_trials=5)
    assert tried == [0, 1, 2, 3, 3, 4, 5]
    assert trials_in(tmp_path / "whole") == trials_in(tmp_path / "parts")
    searched_scripted(tmp_path / "parts", lambda number: pytest.fail("all was done"), n_trials=5)


def test_a_damaged_journal_is_one_line(tmp_path: Path) -> None:
    searched_scripted(tmp_path, lambda number: None, n_trials=1)
    (file,) = tmp_path.glob("studies/*/study.log")
    whole = file.read_text()
    for text in ("{}\n" + whole, "[1]\n[2]\n", "{\n{\n"):
        file.write_text(text)
        with pytest.raises(TrimtabError, match=r"study.log cannot be read") as error:
            searched_scripted(tmp_path, lambda number: pytest.fail("a trial was begun"))
        assert "\n" not in str(error.value)


def test_half_of_a_line_that_a_killed_search_left_is_cut_off(tmp_path: Path) -> None:
    carried_out: list[int] = []
    searched_scripted(tmp_path, carried_out.append, n_trials=1)
    (file,) = tmp_path.glob("studies/*/study.log")
    for length in (len(file.read_bytes()) - 3, 300):
        file.write_bytes(file.read_bytes()[:length])
        searched_scripted(tmp_path, carried_out.append, n_trials=1)
    assert carried_out == [0, 1, 0]  # its run is found done where it is really carried out
    assert len(trials_in(tmp_path)) == 1


def test_a_score_that_the_task_does_not_have_is_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    words = [*CHEAP, f"out={tmp_path}", "seed=0,1"]
    never = here(lambda number: pytest.fail("a trial was begun"), Scripted)
    with pytest.raises(TrimtabError, match="score=success: .* has no success"):
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


def test_a_file_of_ones_own_is_one_of_the_values(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever carries out a run is given the file, and no name that this process gave to it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(groups, "adopted", {})  # later tests do not find the file
    method = "_target_: trimtab.algorithms.offline.bc.BehaviorCloning"
    (tmp_path / "mine.yaml").write_text(f"# @package _global_\nalgorithm:\n  {method}\n")
    told: list[SweepLine] = []
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
