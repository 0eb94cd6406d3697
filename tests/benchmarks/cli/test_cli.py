"""The command line as a user meets it: by words, output and exit code.

An evaluation is carried out in a process of its own and here, with the same output. All else is
carried out here, because an interpreter takes longer to import what it needs than to do the work.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trimtab.benchmarks.cli.main import main, overview, run
from trimtab.benchmarks.cli.screen import print_result, print_rows
from trimtab.benchmarks.cli.table import COMMANDS
from trimtab.envs.registry import list_tasks
from trimtab.errors import TrimtabError

SMALL_CLONE = [
    "train", "env=robotics/PointMaze-TwoRoutes-v0", "algorithm=bc", "policy=flow",
    "dataset=two_routes", "dataset.episodes=4", "act_steps=4", "offline_steps=30",
    "policy.hidden=[16,16]", "policy.sampling_steps=2", "eval_episodes=2",
]  # fmt: skip
STEER = [
    "train", "env=robotics/PointMaze-TwoRoutes-Blocked-v0", "algorithm=dsrl_sac",
    "online_steps=120", "algorithm.warmup_steps=40", "algorithm.hidden=[8,8]",
    "algorithm.batch_size=8", "eval_episodes=2",
]  # fmt: skip


def trimtab(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trimtab.benchmarks.cli.main", *words],
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def trimtab_here(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Carry the words out in this process; return what the one above would have."""
    shown, told = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(told),
        pytest.raises(SystemExit) as ended,
    ):
        main(words)
    code = ended.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(words, code, shown.getvalue(), told.getvalue())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def clone(place: Path) -> Path:
    done = trimtab_here(*SMALL_CLONE, cwd=place)
    assert done.returncode == 0, done.stderr
    (folder,) = (path.parent for path in place.glob("runs/**/result.json"))
    return folder


@pytest.fixture(scope="module")
def bundle(clone: Path, place: Path) -> Path:
    done = trimtab_here("export", f"run={clone}", "out=bundle", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "replay" in done.stdout
    return place / "bundle"


def test_a_bundle_is_not_written_into_itself(bundle: Path, clone: Path, place: Path) -> None:
    for words in (["run=bundle", "out=bundle/inside"], [f"run={clone}", f"out={clone}/policy/b"]):
        with pytest.raises(TrimtabError, match="lies within .*, a bundle; choose another place"):
            run(["export", *(word.replace("=bundle", f"={place}/bundle") for word in words)])
    assert not (bundle / "inside").exists()


def test_help_is_quick_and_names_every_command(place: Path) -> None:
    started = time.perf_counter()
    shown = trimtab("--help", cwd=place)
    # Five times what is promised, because tests share the machine; `import torch` alone takes more.
    assert time.perf_counter() - started < 5
    assert shown.returncode == 0
    assert shown.stdout == overview()
    assert all(name in shown.stdout for name in COMMANDS)
    # Only the lists of methods and of launchers import torch, which takes a second.
    shows = "import sys, trimtab.benchmarks.cli.main as c; c.overview()"
    lists = [f"c.run(['list', '{what}'])" for what in ("env", "dataset", "policy", "suite")]
    loaded = "; ".join([shows, *lists, "print('torch' in sys.modules)"])
    check = [sys.executable, "-c", loaded]
    answer = subprocess.run(check, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown = capfd.readouterr().out
    assert "examples:" in shown and "settings:" in shown


def test_help_shows_the_chosen_methods_and_policys_own_settings(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for words in (
        ["--help", "algorithm=dsrl_na", "policy=flow"],
        ["policy=flow", "algorithm=dsrl_na", "--help"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(["train", *words])
        assert ended.value.code == 0
        lines = capfd.readouterr().out.splitlines()
        assert "  algorithm.magnitude: 1.5 # half width b of the box of latents" in lines
        assert "  algorithm.log_std_min: -5.0 # lower bound of the actor's log standard" in str(
            [line[:71] for line in lines]
        )
        assert "  policy.sampling_steps: 10 # Euler steps at acting time" in lines
        assert "  online_steps: 30000 # of the run, unless you give it" in lines


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["train", "--help", "algorithm=dsrl_n"], "did you mean dsrl_na?"),
        (["trian"], "did you mean train?"),
        (["train", "env=gym/Hoper-v5", "algorithm=sac"], "gym/Hopper-v5"),
        (["train", "env=gym/Hopper-v5", "algorithm=sca"], "did you mean sac?"),
        (["train", "env=gym/Hopper-v5", "algorithm=sac", "sed=1"], "did you mean seed?"),
        (["train", "env=gym/Hopper-v5", "algorithm=sac", "algorithm.tua=1"], "did you mean tau?"),
        (["train", "env=gym/Hopper-v5", "algorithm=sac", "--multi"], "no option --multi"),
        (["train", "env=gym/Hopper-v5", "algorithm=sca", "-m", "seed=0,1"], "did you mean sac?"),
        (["train", "env=gym/Hopper-v5", "algorithm=dsrl_sac"], "base="),
        (["train", "env=gym/Hopper-v5", "algorithm=dsrl_sac", "base=nowhere"], "does not exist"),
        (["train", "env=gym/Hopper-v5", "algorithm=sac,sca", "-m"], "sca: did you mean sac?"),
        (["train", "env=gym/Hopper-v5", "algorithm=sac", "seed=1", "seed=2"],
         "train: seed is given twice, the second time as '2'"),
        (["train", "algorithm=sac", "-m", "algorithm.tau=0.1", "++algorithm.tau=0.2,0.3"],
         "train: algorithm.tau is given twice, the second time as '0.2,0.3'"),
        (["train", "algorithm=bc", "-m", "dataset=null,two_routes"], "name one, or leave it out"),
        (["bench", "suite=quikstart"], "did you mean quickstart?"),
        (["bench", "suite=quickstart", "seeds=a"], "whole numbers"),
        (["bench", "suite=quickstart", "seeds=0,-1"], "seeds=0,-1: must be different"),
        (["bench", "suite=quickstart", "seeds=[]"], "seeds=[]: must be different whole numbers"),
        (["bench", "suite=quickstart", "seeds=4294967296"], "must be different whole numbers"),
        (["bench", "suite=quickstart", "seeds=1,0,1"], "seeds=1,0,1: must be different"),
        (["bench", "suite=quickstart", "workers=-1"], "whole number"),
        (["evaluate"], "policy is not given"),
        (["evaluate", "policy=nowhere"], "does not exist"),
        (["evaluate", "policy=nowhere", "backend=tflite"], "torch, onnx"),
        (["leaderboard", "runs=nowhere"], "nowhere"),
        (["leaderboard", "run=nowhere"], "did you mean runs?"),
        (["export", "run=nowhere", "out=x"], "does not exist"),
        (["export", "run=nowhere", "out="], "out= is empty; give it a value: folder of the"),
        (["export", "run=", "out=b"], "run= is empty; give it a value: a finished run"),
        (["calibrate", "bundle=", "dataset=x", "out=b"], "bundle= is empty; give it a value"),
        (["bench", "suite=./quickstart"], "must be a name, or a file that ends in .yaml"),
        (["dataset", "make", "two_routes", "dataset.episodes=1e12"], "write it in digits"),
        (["train", "env=gym/Hopper-v5", "algorithm=sac", "seed=[0,1]"], "seed=[0, 1]: must be"),
        (["train", "env=gym/Hopper-v5", "algorithm=sac", "seed=0,0", "-m"], "is there twice; name"),
        (["evaluate", "policy=nowhere", "seed=4294967296"], "seed=4294967296: must be a whole"),
        (["evaluate", "policy=nowhere", f"episodes={'9' * 5000}"], "must be a whole number"),
        (["dataset", "make", "dataset=two_routes", "out="], "out= is empty"),
        (["dataset", "check", "path=~/nowhere.hdf5"], os.path.expanduser("~/nowhere.hdf5")),
        (["evaluate", "policy=~/no (where)"], os.path.expanduser("~/no (where) does not exist")),
        (["dataset", "action=destroy"], "list, make, check, info"),
        (["dataset", "action=check", "path=nowhere"], "nowhere"),
        (["dataset", "action=make", "dataset=two_rotes"], "did you mean two_routes?"),
        (["dataset", "action=info"], "either dataset="),
        (["list", "algoritm"], "did you mean algorithm?"),
        (["list", "env", "tag=goal,spars"], "there are: control, "),
        (["list", "suite", "tag=goal"], "tag= belongs to what=env, not"),
        (["list", "env", "dataset"], "list: dataset: one word too many"),
        (["dataset", "make", "dataset=two_routes", "dataset="], "dataset is given twice"),
        (["doctor", "format=yaml"], "table, json"),
    ],
)  # fmt: skip
def test_wrong_words_get_one_line_and_code_2(
    words: list[str],
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    answer = capfd.readouterr()
    assert ended.value.code == 2, answer.err
    assert part in answer.err
    assert len(answer.err.strip().splitlines()) == 1, answer.err
    assert answer.out == ""
    assert not list(tmp_path.rglob("*.json"))


def test_a_finished_run_says_so(clone: Path, place: Path) -> None:
    again = trimtab_here(*SMALL_CLONE, cwd=place)
    assert again.returncode == 0
    assert "already done" in again.stdout


@pytest.mark.bits
def test_evaluate_twice_and_on_onnx(bundle: Path, place: Path) -> None:
    words = ["evaluate", f"policy={bundle}", "episodes=4", "seed=100", "format=json"]
    first, second = trimtab(*words, cwd=place), trimtab_here(*words, cwd=place)
    assert first.returncode == 0, first.stderr
    assert second.returncode == 0, second.stderr
    assert first.stdout == second.stdout
    answer = json.loads(first.stdout)
    assert [episode["eval_seed"] for episode in answer["episodes"]] == [100, 101, 102, 103]
    onnx = trimtab_here(*words, "backend=onnx", cwd=place)
    assert onnx.returncode == 0, onnx.stderr
    assert json.loads(onnx.stdout)["success"] == answer["success"]


def test_one_episode_has_no_interval(bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", f"policy={bundle}", "episodes=1"]
    shown = []
    for more in ([], ["format=json"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        assert ended.value.code == 0
        shown.append(capfd.readouterr().out)
    (line,) = [line for line in shown[0].splitlines() if "return" in line]
    assert line.split()[-2] == "–"
    assert json.loads(shown[1])["return_interval"] is None


def test_evaluate_refuses_a_task_with_other_spaces(bundle: Path, place: Path) -> None:
    answer = trimtab_here("evaluate", f"policy={bundle}", "env=gym/Hopper-v5", cwd=place)
    assert answer.returncode == 2
    assert "does not fit gym/Hopper-v5" in answer.stderr
    assert answer.stderr.startswith("trimtab: policy ") and "base" not in answer.stderr


def test_a_sweep_steers_one_bundle_with_several_seeds(
    bundle: Path, place: Path, in_this_process: str
) -> None:
    # Sweeps in processes of their own are in training/test_resumed_sweeps.py.
    done = trimtab_here(*STEER, f"base={bundle}", "-m", "seed=0,1", in_this_process, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "sweep: 2 runs, 2 done" in done.stdout
    assert len(list(place.glob("runs/**/dsrl_sac/*/seed[01]/result.json"))) == 2
    board = trimtab_here("leaderboard", "runs=runs", "out=board", "format=json", cwd=place)
    assert board.returncode == 0, board.stderr
    assert json.loads(board.stdout)
    assert (place / "board" / "leaderboard.md").is_file()


def test_a_failing_run_of_a_sweep_is_told_in_one_line(
    bundle: Path, place: Path, in_this_process: str
) -> None:
    shorter = [word.replace("warmup_steps=40", "warmup_steps=10") for word in STEER]
    words = [*shorter, f"base={bundle}", "algorithm.learning_rate=1e30", "seed=0,1", "-m"]
    answer = trimtab_here(*words, in_this_process, cwd=place)
    assert answer.returncode == 2
    (line,) = [line for line in answer.stderr.splitlines() if line.startswith("trimtab: ")]
    assert re.search(r": at update 1\d*, after \d+ environment steps: \w+ is (nan|inf|-inf);", line)
    assert "Traceback" not in answer.stderr


def test_dataset_make_info_check_and_list(place: Path) -> None:
    words = ["dataset=push_noisy", "dataset.episodes=2"]
    made = trimtab_here("dataset", "action=make", *words, "format=json", cwd=place)
    assert made.returncode == 0, made.stderr
    path = json.loads(made.stdout)["path"]
    for action in ("info", "check"):
        answer = trimtab_here(
            "dataset", f"action={action}", f"path={path}", "format=json", cwd=place
        )
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["path"] == path
    listed = trimtab_here("dataset", "action=list", "format=json", cwd=place)
    (row,) = (row for row in json.loads(listed.stdout)["made"] if "push-noisy" in row["id"])
    assert (row["folder"], row["episodes"]) == (path, 2)


@pytest.mark.parametrize("what", ["env", "family", "algorithm", "policy", "dataset", "suite"])
def test_list_as_json_is_alone_on_standard_output(
    what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["list", what, "format=json"])
    assert ended.value.code == 0
    rows = json.loads(capfd.readouterr().out)
    assert rows and all(what in row for row in rows)


def test_list_names_families_whose_tasks_cannot_be_listed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["list", "family", "format=json"])
    rows = {row["family"]: row for row in json.loads(capfd.readouterr().out)}
    assert rows["gymnasium:<id>"]["tasks"] is None and rows["gym"]["tasks"] == 11


def test_list_env_by_tags_and_in_a_narrow_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["list", "env", *words])
        assert ended.value.code == 0
        return capfd.readouterr().out

    tasks = list_tasks()
    found = {row["env"] for row in json.loads(shown("tag=goal,sparse", "format=json"))}
    assert found == {id for id in tasks if {"goal", "sparse"} <= set(tasks[id].tags)}
    gym = {row["env"] for row in json.loads(shown("tag=gym", "format=json"))}
    assert gym == {id for id in tasks if id.startswith("gym/")}
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown().splitlines()
    assert max(map(len, lines)) <= 80 and lines[0] == "env"
    names = {line.split()[1] for line in lines if line.startswith("│ ")}
    assert {id for id in tasks if len(id) <= 48} <= names
    assert {id.split("/")[0] for id in tasks} <= names


def test_in_a_pipe_a_title_is_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["dataset", "list", f"out={tmp_path}"])
    assert ended.value.code == 0
    assert f"on disk below {tmp_path}/datasets" in capfd.readouterr().out.splitlines()


def test_brackets_in_a_path_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    found = {"return": 1.0, "success": None, "episodes": 1, "env_steps": 0, "updates": 0}
    print_result(Path("a [b] c/seed0"), found, already_done=False)
    print_rows("runs of [it]", [{"run": "x [red]y[/red]"}])
    shown = capsys.readouterr().out
    for part in ("done: a [b] c/seed0\n", "runs of [it]", "x [red]y[/red]"):
        assert part in shown
