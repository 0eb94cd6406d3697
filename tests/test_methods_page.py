"""The page on methods follows from the registry, and every command of its table works."""

from __future__ import annotations

from pathlib import Path

import pytest
from loading import load_module

from trimtab.benchmarks.suites.suite import load_suite
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings.constructors import keywords
from trimtab.benchmarks.training.settings.groups import load_group
from trimtab.benchmarks.training.train import train
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.types import TrimtabError

ROOT = Path(__file__).resolve().parent.parent


PAGE = load_module(ROOT / "scripts" / "methods.py")
CELLS = [
    (learner, kind, cell)
    for learner, cells in PAGE.cross_product().items()
    for kind, cell in cells.items()
]
TASK = [
    "env=robotics/PointMaze-TwoRoutes-v0", "env_options.horizon=28", "other_task=true",
    "act_steps=4", "eval_episodes=2",
]  # fmt: skip
SMALL = {
    "hidden": "[16]", "student_hidden": "[16]", "noise_hidden": "[16]", "batch_size": "16",
    "rollout_steps": "9", "warmup_steps": "48", "epochs": "2",
    "distill_updates": "40",
}  # fmt: skip


def test_the_page_is_what_the_script_writes() -> None:
    assert PAGE.PAGE.read_text(encoding="utf-8") == PAGE.page()


def test_every_method_of_the_arena_is_described_in_full() -> None:
    said = PAGE.sentences()
    words = [word for job in load_suite("arena", "runs").jobs for word in job.overrides]
    names = {word.partition("=")[2] for word in words if word.startswith("algorithm=")}
    assert names - {"bc", "sac", "ppo"} <= said.keys()
    for name, what in said.items():
        assert set(what) == {"idea", "when", "needs", "cost", "paper"}, name
        assert 2 <= what["idea"].count(". ") + 1 <= 2, f"{name}: two sentences"


def test_every_cell_is_a_command_or_a_reason() -> None:
    assert {learner for learner, _, _ in CELLS} == {"PPO", "SAC", "TD3+BC", "DSRL"}
    for learner, kind, cell in CELLS:
        assert kind in PAGE.KINDS
        assert ("command" in cell) != ("reason" in cell), (learner, kind)


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny clone of each kind of policy."""
    out = tmp_path_factory.mktemp("clones")
    words = [*TASK, f"out={out}", "dataset=two_routes", "dataset.episodes=4", "algorithm=bc"]
    words += ["offline_steps=20", "algorithm.batch_size=16", "policy.hidden=[16]"]
    quick = {kind: ["policy.sampling_steps=2"] for kind in ("flow", "diffusion")}
    return {
        kind: train(compose_run([*words, f"policy={kind}", *quick.get(kind, [])])).folder
        for kind in PAGE.KINDS
    }


@pytest.mark.parametrize(
    ("learner", "kind", "command"),
    [(learner, kind, cell["command"]) for learner, kind, cell in CELLS if "command" in cell],
)
def test_every_command_of_the_table_works(
    learner: str, kind: str, command: str, clones: dict[str, Path], tmp_path: Path
) -> None:
    algorithm, *given = command.split()
    group = load_group("algorithm", algorithm.partition("=")[2])
    known = keywords(group["algorithm"]["_target_"])
    words = [*TASK, f"out={tmp_path}", algorithm]
    words += [f"algorithm.{key}={value}" for key, value in SMALL.items() if key in known]
    if "base" in given:
        words += [f"base={clones[kind]}"]
    if "dataset" in given:
        words += ["dataset=two_routes", "dataset.episodes=4", "offline_steps=40"]
    if "td3_bc" not in command:
        words += ["num_envs=2", "online_steps=160"]
    folder = train(compose_run(words)).folder
    assert load_bundle(folder / "policy").policy.spec.horizon == 4


def test_a_gaussian_has_no_consistency_student(clones: dict[str, Path], tmp_path: Path) -> None:
    words = [*TASK, f"out={tmp_path}", "algorithm=consistency_distillation", "dataset=two_routes"]
    words += ["dataset.episodes=4", f"base={clones['gaussian']}", "offline_steps=10"]
    with pytest.raises(TrimtabError, match="gaussian") as caught:
        train(compose_run(words))
    assert "\n" not in str(caught.value)
