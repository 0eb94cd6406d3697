"""The documents are followed to the letter."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trimtab.benchmarks.cli.commands.listing import LISTINGS
from trimtab.benchmarks.cli.main import main
from trimtab.datasets import lint
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.datasets.formats.registry import list_formats
from trimtab.envs import registry
from trimtab.policies.bundle.bundle import check_bundle, load_bundle, save_bundle

BLOCK = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def followed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in which ``docs/add-a-method.md`` was followed."""
    copy = tmp_path_factory.mktemp("docs") / "project"
    usual = shutil.ignore_patterns(".git", ".venv*", "results", "__pycache__", "*.egg-info")

    def ignored(folder: str, names: list[str]) -> set[str]:
        of_a_user = {"runs"} if Path(folder) == root else set()  # and not benchmarks/runs
        return usual(folder, names) | of_a_user

    shutil.copytree(root, copy, symlinks=True, ignore=ignored)
    blocks = BLOCK.findall((root / "docs" / "add-a-method.md").read_text())
    assert [name for name, _ in blocks] == [
        "algorithms/offline/filtered_bc.py",
        "conf/algorithm/filtered_bc.yaml",
        "algorithms/off_policy/huber_sac.py",
        "conf/algorithm/huber_sac.yaml",
        "algorithms/offline/goal_best_of.py",
        "conf/algorithm/goal_best_of.yaml",
    ]
    for name, text in blocks:
        assert not (copy / name).exists()
        (copy / name).write_text(text)
    return copy


def test_a_child_of_sac_with_a_new_setting_is_25_lines_and_its_yaml_three(followed: Path) -> None:
    text = (followed / "algorithms" / "off_policy" / "huber_sac.py").read_text()
    code = [line for line in text.splitlines() if line.strip()]
    assert len(code) <= 25, len(code)
    settings = (followed / "conf" / "algorithm" / "huber_sac.yaml").read_text()
    assert len([line for line in settings.splitlines() if not line.startswith("#")]) == 3


SEVERAL = """
import contextlib, io, json, sys
from trimtab.benchmarks.cli.main import main
answers = []
for words in json.loads(sys.argv[1]):
    told, code = io.StringIO(), 0
    with contextlib.redirect_stderr(told):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
    answers.append((code, told.getvalue()))
print(json.dumps(answers))
"""
"""Carries out commands one after the other, in an interpreter that imports everything once; prints
the exit code and the standard error of each in the end.
"""


def run(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(project / "src")}
    return subprocess.run(
        [sys.executable, "-P", *words], cwd=project, env=environment,
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


MAZE = ["env=robotics/PointMaze-TwoRoutes-v0", "dataset=two_routes", "dataset.episodes=4"]
CLONED = [
    *MAZE, "policy=flow", "policy.hidden=[16,16]", "policy.sampling_steps=2", "offline_steps=40",
    "eval_episodes=2",
]  # fmt: skip
RIGHT = [
    ["list", "algorithm", "format=json"],
    ["train", "algorithm=filtered_bc", "act_steps=4", *CLONED],
    ["train", "algorithm=goal_best_of", "algorithm.hidden=[8]", "algorithm.batch_size=16", *CLONED],
]
REFUSED = {
    "relabels goals, a step at a time": [*MAZE, "act_steps=2"],
    "has none; trimtab list env tag=goal": [
        "env=gym/Hopper-v5", "dataset=hopper_random", "dataset.steps=100",
    ],
    "does not follow from goals alone": [*MAZE, "env_options.reward=sparse", "other_task=true"],
}  # fmt: skip
"""Words that the second method refuses, by what it says of them."""


@pytest.fixture(scope="module")
def answers(followed: Path) -> tuple[str, list[tuple[int, str]]]:
    """What the commands print, and the exit code and the standard error of each."""
    wrong = ["train", "algorithm=goal_best_of", "policy=flow", "offline_steps=10"]
    commands = [*RIGHT, *([*wrong, *words] for words in REFUSED.values())]
    done = run(followed, "-c", SEVERAL, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    *shown, told = done.stdout.splitlines()
    return "\n".join(shown), json.loads(told)


def test_the_method_is_listed_with_its_paper_and_trains(
    followed: Path, answers: tuple[str, list[tuple[int, str]]]
) -> None:
    shown, told = answers
    assert [code for code, _ in told[: len(RIGHT)]] == [0] * len(RIGHT), told
    assert "filtered_bc" in shown and "2106.01345" in shown
    (log,) = followed.glob("runs/**/filtered_bc/**/metrics.jsonl")
    assert '"kept": 0.5' in log.read_text()
    # The second method went through its phases; its bundle holds clone and critic in one graph.
    (ended,) = followed.glob("runs/**/goal_best_of/**/result.json")
    assert json.loads(ended.read_text())["updates"] == 40
    policy = load_bundle(ended.parent / "policy").policy
    assert {"base.network", "critic.network"} <= {
        ".".join(name.split(".")[:2]) for name in policy.state_dict()
    }
    exported = save_bundle(
        policy, ended.parent / "exported",
        contract={"env": "x/y", "control_rate": None, "act_steps": 1},
    )  # fmt: skip
    assert check_bundle(exported)["onnx"] <= 1e-4


@pytest.mark.parametrize("told", REFUSED)
def test_a_method_with_goals_refuses_what_has_none(
    told: str, answers: tuple[str, list[tuple[int, str]]]
) -> None:
    code, shown = answers[1][len(RIGHT) + list(REFUSED).index(told)]
    assert code == 2 and told in shown, shown


def test_the_contract_tests_cover_the_method(followed: Path) -> None:
    """Those of the method, and those that look at all methods or settings at once."""
    tested = run(
        followed, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-v",
        "tests/test_conf.py", "tests/algorithms/test_contract.py",
        "-k", "filtered_bc or goal_best_of or huber_sac or has_its_yaml or test_the_target",
    )  # fmt: skip
    assert "test_every_method_has_its_yaml_and_every_yaml_its_method PASSED" in tested.stdout
    assert tested.returncode == 0, tested.stdout[-3000:]
    for name in ("filtered_bc", "goal_best_of", "huber_sac"):
        assert re.search(rf"test_contract\.py::\S*\[.*{name}.*\] PASSED", tested.stdout)


def test_the_robots_data_becomes_a_dataset(root: Path, tmp_path: Path) -> None:
    ((name, text),) = BLOCK.findall((root / "docs" / "datasets.md").read_text())
    (tmp_path / name).write_text(text)
    generator = np.random.default_rng(0)
    lengths = np.array([30, 20])
    np.savez(
        tmp_path / "log.npz",
        joints=generator.normal(size=(52, 7)),
        torques=generator.uniform(-1.9, 1.9, size=(50, 7)),
        lengths=lengths,
        solved=np.array([True, False]),
    )
    done = subprocess.run(
        [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    dataset = load_minari(tmp_path / "my-robot")
    assert lint.check(dataset) == []
    joints = np.load(tmp_path / "log.npz")["joints"].astype(np.float32)
    for episode, rows in zip(dataset.episodes, (slice(0, 31), slice(31, 52)), strict=True):
        np.testing.assert_array_equal(episode.observations, joints[rows])
    assert [bool(e.terminations[-1]) for e in dataset.episodes] == [True, False]


def test_every_format_is_documented(root: Path) -> None:
    text = (root / "docs" / "datasets.md").read_text()
    for format in list_formats():
        written = re.search(rf"^\| `{format.name}` \|[^|]*\| (yes|no) \|", text, re.MULTILINE)
        assert written is not None, format.name
        assert (written[1] == "yes") is (format.save is not None)


def test_tests_that_the_pages_name_are_there(root: Path) -> None:
    pages = [root / "README.md", *(root / "docs").glob("*.md")]
    named = {name for page in pages for name in re.findall(r"\btests/[\w/]+\.py", page.read_text())}
    assert len(named) > 30
    assert [name for name in sorted(named) if not (root / name).is_file()] == []


def test_links_in_the_documents_lead_somewhere(root: Path) -> None:
    for page in [root / "README.md", *(root / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.fixture(scope="module")
def robot(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the module of ``docs/environments.md``."""
    folder = tmp_path_factory.mktemp("robot")
    ((name, text),) = BLOCK.findall((root / "docs" / "environments.md").read_text())
    (folder / name).write_text(text)
    return folder


def run_with_robot(root: Path, robot: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(root / "src"), str(robot)))
    environment = {**os.environ, "PYTHONPATH": path, "TRIMTAB_FAMILIES": "my_robot"}
    return subprocess.run(
        [sys.executable, "-P", *words], cwd=root, env=environment,
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def test_ones_own_robot_is_listed_and_trains(root: Path, robot: Path) -> None:
    listed = ["list", "env", "tag=goal", "format=json"]
    trained = [
        "train", "env=my_robot/Reach-v0", "algorithm=sac",
        "online_steps=300", "algorithm.warmup_steps=200", "eval_episodes=2", f"out={robot}/runs",
    ]  # fmt: skip
    done = run_with_robot(root, robot, "-c", SEVERAL, json.dumps([listed, trained]))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert [code for code, _ in told] == [0, 0], told
    assert '"my_robot/Reach-v0"' in done.stdout


def test_ones_own_robot_keeps_the_contract(root: Path, robot: Path) -> None:
    tested = run_with_robot(
        root, robot, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-v",
        "tests/envs/test_contract.py", "-k", "my_robot",
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout[-3000:]
    assert len(re.findall(r"\[my_robot/Reach-v0\] PASSED", tested.stdout)) >= 6


FAMILY = """
from trimtab.envs.core.spec import Family, Task
right = {"name": "mine", "install": "x", "packages": (), "tasks": {"a-v0": Task(horizon=9)},
         "build": print, "frames": print}
FAMILY = Family(**{**right, CHANGE})
"""
WRONG_MODULES = {
    "no_such_robot": None,
    "json": None,
    "that_ends": "raise SystemExit(3)",
    "of_a_slash": FAMILY.replace("CHANGE", "'name': 'my/own'"),
    "of_no_tasks": FAMILY.replace("CHANGE", "'tasks': None"),
    "of_a_number": FAMILY.replace("CHANGE", "'tasks': {'a-v0': 5}"),
    "of_no_packages": FAMILY.replace("CHANGE", "'packages': None"),
    "of_no_frames": FAMILY.replace("CHANGE", "'frames': None"),
}


@pytest.mark.parametrize("module", WRONG_MODULES)
def test_a_wrong_module_is_named_in_one_line(
    tmp_path: Path,
    module: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = WRONG_MODULES[module]
    if text is not None:
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(registry.OUTSIDE, module)
    before = set(sys.modules)
    registry._families.cache_clear()
    try:
        with pytest.raises(SystemExit) as ended:
            main(["list", "env"])
    finally:
        registry._families.cache_clear()
        for name in {module} - before:
            sys.modules.pop(name, None)
    shown = capfd.readouterr()
    assert ended.value.code == 2
    assert shown.err.count("\n") == 1 and module in shown.err


def test_the_page_of_online_methods_names_the_adaptations(root: Path) -> None:
    text = " ".join((root / "docs" / "online-methods.md").read_text().split())
    named = re.search(r"settings\. ([^.]*) are adaptations: `trimtab list algorithm`", text)
    assert named is not None
    rows = LISTINGS["algorithm"]("algorithm", "")
    adapted = [row["algorithm"] for row in rows if row["faithful"] == "no"]
    assert re.findall(r"`(\w+)`", named[1]) == adapted
