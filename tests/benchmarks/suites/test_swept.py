"""Words of a sweep: what its runs are given, and what is wrong with some; none is carried out."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from rich.console import Console

from trimtab.benchmarks.cli.main import run as trimtab
from trimtab.benchmarks.suites.sweep import sweep
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings.swept import swept_words
from trimtab.errors import TrimtabError

TASK = ["env=gym/InvertedPendulum-v5", "online_steps=10"]


@pytest.mark.parametrize(
    ("word", "runs"),
    [
        ("seed=0,1", ["seed=0", "seed=1"]),
        ("seed=range(0,6,2)", ["seed=0", "seed=2", "seed=4"]),
        ("algorithm=bc,./mine.yaml", ["algorithm=bc", "algorithm=./mine.yaml"]),
        ("algorithm=glob(bc)", ["algorithm=bc"]),
        ("base=runs/a${seed},b", ["base=runs/a${seed}", "base=b"]),
        ("dataset=two_routes,./data", ["dataset=two_routes", "dataset=./data"]),
        ("dataset=[runs/a,runs/b]", ["dataset=[runs/a,runs/b]"]),
        ('out="o5,x"', ['out="o5,x"']),
        ("out=runs/${seed}", ["out=runs/${seed}"]),
        ("~dataset", ["~dataset"]),
    ],
)
def test_a_run_is_given_the_words_of_the_command_line(word: str, runs: list[str]) -> None:
    (one,) = swept_words([word])
    found = one.words()
    assert (found if "glob" not in word else found[:1]) == (
        runs if "glob" not in word else runs[:1]
    )
    assert one.count == len(found)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("seed=0,", "seed=0,: cannot be read; values have one comma between two of them"),
        ("seed=range(0,1000000000)", "these are 1000000000 runs, and a sweep has at most 1000;"),
        ("seed=range(0,500) eval_seed=0,1,2", "these are 1500 runs"),
        ("seed=range(0,0)", "a range has no values in it; widen it"),
        ("algorithm=glob(zzz*)", "no name of algorithm is like that; trimtab list algorithm"),
        ("seed=range(0,3,0)", "a range has finite numbers, and a step that is not 0"),
        ("algorithm.tau=interval(0,1)", "name some after commas, or add hydra/sweeper=optuna"),
        ("algorithm=sac,sac", "algorithm=sac is there twice"),
        ("algorithm=sacc,./mine.yaml", "algorithm=sacc: did you mean sac?"),
        ("algorithm=sac,./mine.yaml", "algorithm=./mine.yaml: cannot be read (No such file"),
        ("out=o5,x", "out=o5,x: all runs of a sweep lie in one folder; one whose name has a comma"),
        ("hydra.job.name=a,b", "Hydra's own settings have no effect here"),
        ("hydra/sweeper=bayes", "hydra/sweeper=bayes: there are: basic, optuna"),
        ("hydra.sweeper.n_trials=3", "add hydra/sweeper=optuna"),
    ],
)
def test_wrong_words_of_a_sweep_are_one_line_at_once(
    word: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = [] if word.startswith("algorithm=") else ["algorithm=sac"]
    with pytest.raises(TrimtabError) as error:
        trimtab(["train", "-m", *TASK, *chosen, *word.split()])
    assert line in str(error.value) and "\n" not in str(error.value)
    assert error.value.exit_code == 2 and list(tmp_path.iterdir()) == []


def test_values_are_counted_without_being_made() -> None:
    begun = time.process_time()
    words = ["seed=range(0,1000000000)", "eval_seed=shuffle(range(0,1,1e-9))"]
    assert [one.count for one in swept_words(words)] == [10**9, 10**9]
    assert time.process_time() - begun < 1


def test_an_unknown_method_is_no_reason_to_name_all() -> None:
    with pytest.raises(TrimtabError, match=r"there are \d+, such as .*trimtab list algorithm"):
        sweep([*TASK, "algorithm=sac,zzzzz"], print, console=Console(quiet=True))
    with pytest.raises(TrimtabError) as error:
        compose_run([*TASK, "algorithm=zzzzz"])
    assert len(str(error.value)) < 200


def test_a_file_among_several_values_without_a_sweep_is_told_to_be_one() -> None:
    with pytest.raises(TrimtabError, match="these are several runs, a sweep: add -m"):
        compose_run([*TASK, "algorithm=bc,./mine.yaml"])


def test_a_comma_in_a_folder_in_quotes_is_the_folder_s() -> None:
    assert compose_run([*TASK, "algorithm=sac", 'out="o5,x"'])["out"] == "o5,x"
