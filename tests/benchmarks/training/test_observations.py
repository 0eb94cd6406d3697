"""Runs whose observations have parts or a history: gathered, judged, exported, resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from played import evaluate

from trimtab.algorithms.on_policy.pdppo import PDPPO
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.envs.families.robotics.gusts import in_pit
from trimtab.envs.registry import make
from trimtab.policies.bundle.bundle import bundle_hash, load_bundle, save_bundle
from trimtab.policies.opening import load_policy
from trimtab.types import Rollout, TrimtabError

MAZE = "robotics/PointMaze-TwoRoutes-v0"
SMALL = ["algorithm.hidden=[16]", "algorithm.batch_size=16", "num_envs=2", "eval_episodes=2"]
METHODS = {
    "sac": ["algorithm=sac", "algorithm.warmup_steps=16", *SMALL],
    "ppo": ["algorithm=ppo", "algorithm.rollout_steps=8", *SMALL],
    "sb3_sac": ["algorithm=sb3_sac", "algorithm.warmup_steps=16", *SMALL],
}
PARTS = ["observations=dict"]
CASES = {
    "sac-parts": [*METHODS["sac"], *PARTS],
    "sac-history": [*METHODS["sac"], "history=3"],
    "sac-parts-history": [*METHODS["sac"], *PARTS, "history=2"],
    "ppo-parts-history": [*METHODS["ppo"], *PARTS, "history=2"],
    "sb3_sac-parts-history": [*METHODS["sb3_sac"], *PARTS, "history=2"],
}


def words(case: list[str], out: Path) -> list[str]:
    task = [f"env={MAZE}", "env_options.horizon=12", "env_options.terminate_on_success=true"]
    return [*task, *case, "online_steps=64", "checkpoint_every=8", "act_steps=2", f"out={out}"]


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    name: str,
    tmp_path: Path,
    stopped_at: Callable[[int], Any],
    copied_at: Callable[[int, Path], Any],
) -> None:
    with copied_at(20, tmp_path / "stopped"):
        whole = train(compose_run(words(CASES[name], tmp_path / "whole")))
    stopped = compose_run(words(CASES[name], tmp_path / "stopped"))
    with stopped_at(50):
        train(stopped)
    again = train(stopped)
    assert bundle_hash(again.folder / "policy") == bundle_hash(whole.folder / "policy")
    returns = [
        read_episodes(one.folder / "episodes.parquet")["return"].to_pylist()
        for one in (whole, again)
    ]
    assert returns[0] == returns[1]


def test_the_robot_acts_as_the_judge_does(tmp_path: Path) -> None:
    """A plain loop over a dictionary environment, by the bundle alone, scores the same."""
    result = train(compose_run(words(CASES["sac-parts-history"], tmp_path)))
    policy = load_bundle(result.folder / "policy").policy
    assert policy.spec.history == 2
    assert list(policy.spec.parts) == ["observation", "desired_goal", "achieved_goal"]
    contract = {"env": MAZE, "control_rate": 10.0, "act_steps": 2}
    runner = load_policy(save_bundle(policy, tmp_path / "bundle", contract=contract))
    options = {"horizon": 12, "terminate_on_success": True}
    scores = evaluate(policy, MAZE, episodes=3, seed=50, act_steps=2, options=options)
    env = make(MAZE, observations="dict", **options)
    for score in scores.episodes:
        obs, _ = env.reset(seed=score.eval_seed)
        runner.reset(score.eval_seed)
        total, length, ended = 0.0, 0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(runner.step(obs))
            total, length, ended = total + float(reward), length + 1, terminated or truncated
        assert (total, length) == (pytest.approx(score.return_, abs=1e-4), score.length)
    env.close()


def test_parts_and_flat_vectors_hold_the_same_numbers(tmp_path: Path) -> None:
    """Cloned with its parts, a policy sees the dataset's entries, and is steered as it is."""
    cloned = [
        f"env={MAZE}", "algorithm=bc", "policy=gaussian", "policy.hidden=[8]", "dataset=two_routes",
        "dataset.episodes=3", "offline_steps=20", "eval_episodes=1", "act_steps=2",
        "observations=dict", "history=2", f"out={tmp_path}",
    ]  # fmt: skip
    result = train(compose_run(cloned))
    normalizer = load_bundle(result.folder / "policy").policy.normalizer
    flat = train(compose_run([*cloned[:-3], "history=1", cloned[-1]]))
    plain = load_bundle(flat.folder / "policy").policy.normalizer
    env = make(MAZE)
    entries = [i for part in env.obs_parts.values() for i in part]
    env.close()
    # Each part has its two observations one after the other.
    sizes = [len(part) for part in make(MAZE).obs_parts.values()]
    ends = np.cumsum([2 * size for size in sizes])
    newest = np.concatenate(
        [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    )
    assert normalizer.obs_shift[newest].tolist() == plain.obs_shift[entries].tolist()
    assert result.summary["config_hash"] != flat.summary["config_hash"]

    steering = [
        f"env={MAZE}", "algorithm=frozen", f"base={result.folder}", "eval_episodes=1",
        f"out={tmp_path}",
    ]  # fmt: skip
    assert train(compose_run(steering)).summary["episodes"] == 1
    for wrong, told in (
        ("observations=flat", r"one vector \(observations=flat\); write observations=dict, or"),
        ("history=3", "history=3: base .* reads 2; leave it out"),
        ("act_steps=1", "act_steps=1: base .* decisions, 2 steps apart; leave act_steps out"),
    ):
        with pytest.raises(TrimtabError, match=told):
            train(compose_run([*steering, wrong]))
    for wrong in ("observations=tree", "history=0"):
        with pytest.raises(TrimtabError, match=wrong.partition("=")[0]):
            compose_run([*cloned, wrong])


def test_what_is_usual_is_no_other_run(tmp_path: Path) -> None:
    usual = words(METHODS["sac"], tmp_path)
    hashes = {
        checked_plan(compose_run([*usual, *more])).config_hash
        for more in ([], ["observations=flat"], ["history=1"])
    }
    assert len(hashes) == 1
    other = checked_plan(compose_run([*usual, "history=2"])).config_hash
    assert other not in hashes


@pytest.mark.parametrize(
    ("own", "more", "told"),
    [
        ("batch_spec = BatchSpec(history=2)", [], "wants a history of 2, its policy reads 1"),
        (
            "batch_spec = BatchSpec(history=2)",
            ["history=3"],
            "wants a history of 2, its policy reads 3",
        ),
        (
            "def __init__(self, setup, **sac):\n"
            "        spec = setup.spec.with_history(2)\n"
            "        super().__init__(replace(setup, spec=spec), **sac)",
            ["history=3"],
            "history=3: the policy of sac reads 2",
        ),
        ("batch_spec = BatchSpec(sequence=3)", ["history=2"], "its observations have no history"),
    ],
)
def test_a_history_that_a_method_does_not_read_is_refused(
    own: str, more: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"remembering_{abs(hash((own, *more)))}"
    (tmp_path / f"{name}.py").write_text(
        "from dataclasses import replace\n\n"
        "from trimtab.algorithms.off_policy.sac import SAC\nfrom trimtab.types import BatchSpec\n\n"
        'class Own(SAC):\n    """Of a test.\n\n    Args:\n        setup: any.\n    """\n\n'
        f"    {own}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    case = [*METHODS["sac"], f"algorithm._target_={name}.Own", *more]
    with pytest.raises(TrimtabError, match=told):
        train(compose_run(words(case, tmp_path / "runs")))
    assert not list(tmp_path.rglob("provenance.json"))


def test_the_post_decision_state_of_every_decision_reaches_its_critic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Rollout, Any]] = []
    samples = PDPPO.samples

    def watched(self: PDPPO, data: Rollout) -> Any:
        seen.append((data, samples(self, data)))
        return seen[-1][1]

    monkeypatch.setattr(PDPPO, "samples", watched)
    case = ["algorithm=pdppo", "algorithm.rollout_steps=50", "algorithm.epochs=1", *SMALL]
    case += ["algorithm.normalize_observations=false", "online_steps=400", f"out={tmp_path}"]
    train(compose_run(["env=robotics/PointMaze-Gusts-v0", *case]))
    ended, gusts = 0, []
    for data, found in seen:
        after: Any = data.next_obs
        assert torch.equal(found.post, after["post_decision"].flatten(0, 1))
        state, post = after["observation"], after["post_decision"]
        assert torch.equal(state[..., :2], post[..., :2])  # a gust moves nothing yet
        gusts.append((state - post)[..., 2:].flatten())
        failed = data.discount == 0
        places = post[failed].tolist()
        ended += len(places)
        # Of an episode that ended, it is the last decision's, and not the next episode's first one.
        assert all(in_pit(x, y) or np.hypot(x - 3.0, y + 1.5) <= 0.45 for x, y, *_ in places)
    assert len(seen) == 4 and ended > 0
    assert torch.cat(gusts).std() == pytest.approx(1.0, abs=0.15)
