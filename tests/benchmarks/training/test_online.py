"""Methods that learn online, through the real loop: shares of offline data, and that they learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.benchmarks.training import run as loop
from trimtab.benchmarks.training.callbacks import Callback, RunProgress
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.datasets.sources.mixture import Mixture
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.types import Batch, TrimtabError


def test_half_of_a_batch_comes_from_the_dataset(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*tiny.online(tmp_path, "rlpd"), f"dataset={tiny.dataset}"]
    words += ["algorithm.actor_every=2", "algorithm.updates_per_decision=2"]
    sizes: set[tuple[int, ...]] = set()
    sample = Mixture.sample

    def noted(mixture: Mixture, batch_size: int) -> Batch:
        sizes.add(mixture.shares(batch_size))
        batch = sample(mixture, batch_size)
        assert len(batch) == batch_size and batch.action.shape[1] == 4
        return batch

    monkeypatch.setattr(Mixture, "sample", noted)
    result = train(compose_run(words))
    assert sizes == {(8, 8)}
    assert result.summary["updates"] > 100


@pytest.mark.bits
def test_offline_then_online_goes_on_from_the_same_learner(tiny: Any, tmp_path: Path) -> None:
    words = [*tiny.online(tmp_path, "td3_bc"), f"dataset={tiny.dataset}", "offline_steps=30"]
    result = train(compose_run([*words, "offline_share=0.5", "algorithm.warmup_steps=0"]))
    assert result.summary["env_steps"] >= 320
    assert result.summary["updates"] > 30 + 70


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["algorithm=ppo", "offline_steps=5"], "learns from its own rollouts"),
        (["algorithm=ppo", "offline_share=0.5"], "learns from its own rollouts"),
        (["algorithm=sac", "offline_share=1.5"], "must be from 0 to 1"),
        (["algorithm=sac", "online_steps=80"], "only begins to learn after its warm-up of 5000"),
        (
            ["algorithm=ppo", "algorithm.rollout_steps=10", "num_envs=2", "online_steps=79"],
            "learns after every 80 steps",
        ),
        (["algorithm=td3", "algorithm.exploration_noise=-1"], "algorithm.exploration_noise=-1"),
        (["algorithm=ppo", "algorithm.hidden=[0]"], r"hidden=\[0\]"),
    ],
)
def test_what_cannot_be_learned_from_is_named(
    words: list[str], expected: str, tiny: Any, tmp_path: Path
) -> None:
    given = [f"dataset={tiny.dataset}"] if any("offline" in word for word in words) else []
    with pytest.raises(TrimtabError, match=expected) as error:
        train(compose_run([*tiny.task(tmp_path), *words, *given]))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())  # nothing half written


def test_rollouts_may_follow_offline_phases_with_updates_of_their_own(
    tiny: Any, tmp_path: Path
) -> None:
    words = [
        *tiny.task(tmp_path), "algorithm=rl_100", "policy=diffusion", "policy.hidden=[16]",
        "policy.sampling_steps=2", f"dataset={tiny.dataset}", "algorithm.hidden=[16]",
        "algorithm.student_hidden=[16]", "algorithm.batch_size=16", "algorithm.rollout_steps=9",
        "num_envs=2", "offline_steps=20", "online_steps=160",
    ]  # fmt: skip
    result = train(compose_run(words))
    assert result.summary["updates"] == 20 + 160 // (9 * 2 * 4)
    with pytest.raises(TrimtabError, match="offline_share=0.5: rl_100 learns from its own"):
        train(compose_run([*words, "offline_share=0.5"]))


def test_shared_batches_pair_rows_by_chance(tiny: Any, tmp_path: Path) -> None:
    """Two sources that drew by equal generators would pair rows of the same age."""
    words = [*tiny.online(tmp_path, "sac"), f"dataset={tiny.dataset}", "offline_share=0.5"]
    config = compose_run(words)
    plan = checked_plan(config)
    run = loop.Run(plan, tmp_path, lambda share, text: None)
    assert run.experience is not None and run.dataset_source is not None
    sources = run.experience.buffer, run.dataset_source
    draws = [source._generator.random(2000) for source in sources]
    run.close()
    assert abs(np.corrcoef(draws)[0, 1]) < 0.1


@pytest.mark.parametrize("act_steps", [1, 4])
def test_schedules_end_with_the_run(act_steps: int, tiny: Any, tmp_path: Path) -> None:
    words = [*tiny.online(tmp_path, "ppo"), f"act_steps={act_steps}", "online_steps=720"]
    result = train(compose_run(words))
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    rates = [json.loads(line)["learning_rate"] for line in lines if "learning_rate" in line]
    updates = 720 // (9 * 2 * act_steps)  # rollouts of 9 decisions in two environments
    expected = 3e-4 * (1 - np.arange(updates) / updates)
    np.testing.assert_allclose(rates[:updates], expected, rtol=1e-6)


def test_an_offline_share_needs_data() -> None:
    with pytest.raises(
        TrimtabError, match=r"offline_share=0.5: rlpd needs dataset=…; trimtab list dataset"
    ):
        checked_plan(compose_run(["env=gym/Hopper-v5", "algorithm=rlpd"]))


@pytest.mark.parametrize(
    ("algorithm", "steps", "least", "words"),
    [
        ("ppo", 16_384, 900, ["algorithm.rollout_steps=64", "algorithm.decay_steps=null"]),
        ("sac", 1_600, 30, ["algorithm.hidden=[64,64]", "algorithm.warmup_steps=400"]),
        ("td3", 2_500, 30, ["algorithm.hidden=[64,64]", "algorithm.warmup_steps=800"]),
    ],
)
def test_balances_a_pendulum(
    algorithm: str, steps: int, least: float, words: list[str], tmp_path: Path
) -> None:
    """A random policy keeps it up for about 6 steps of 1,000."""
    words = [*words, f"algorithm={algorithm}", f"online_steps={steps}", f"out={tmp_path}"]
    words += ["env=gym/InvertedPendulum-v5", "algorithm.learning_rate=3e-3", "seed=1"]
    result = train(compose_run([*words, "eval_episodes=5"]))
    assert result.summary["return"] > least


@pytest.mark.bits
def test_dppo_learns_from_nothing_and_goes_on_after_it_was_killed(
    tiny: Any, tmp_path: Path
) -> None:
    """Neither a base nor a dataset; its running statistics of observations are a part of it."""

    class Killed(BaseException):
        pass

    class Kill(Callback):
        def on_step(self, now: RunProgress) -> None:
            if now.position >= 200:
                raise Killed

    def words(name: str) -> list[str]:
        task = [word for word in tiny.task(tmp_path / name) if not word.startswith("other_task")]
        small = ["policy.hidden=[16]", "policy.sampling_steps=2", "algorithm.hidden=[16]"]
        small += ["algorithm.rollout_steps=9", "algorithm.batch_size=16", "algorithm.epochs=2"]
        steps = ["num_envs=2", "online_steps=320", "checkpoint_every=60"]
        return [*task, "algorithm=dppo", "policy=diffusion", *small, *steps]

    whole = train(compose_run(words("whole")))
    with pytest.raises(Killed):
        train(compose_run(words("killed")), callbacks=[Kill()])
    again = train(compose_run(words("killed")))
    assert whole.summary["updates"] == again.summary["updates"] > 3
    weights = [one.folder / "policy" / "model.safetensors" for one in (whole, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    normalizer = load_bundle(whole.folder / "policy").policy.normalizer
    assert isinstance(normalizer, RunningNormalizer)
    assert normalizer.count == whole.summary["updates"] * 9 * 2


def test_only_what_says_so_starts_from_a_policy_alone(tmp_path: Path) -> None:
    env = "env=robotics/PointMaze-TwoRoutes-v0"
    words = [env, "algorithm=dppo", "policy=diffusion", f"out={tmp_path}"]
    assert "offline" not in checked_plan(compose_run(words)).identity
    with pytest.raises(TrimtabError, match="not one of kind flow; .*, or policy=diffusion$"):
        _ = checked_plan(compose_run([*words[:2], "policy=flow"])).identity
    with pytest.raises(TrimtabError, match="reinflow needs dataset=…"):
        checked_plan(compose_run([env, "algorithm=reinflow", "policy=flow"]))
    with pytest.raises(TrimtabError, match="or policy=… dataset=…, or policy=diffusion alone$"):
        checked_plan(compose_run(words[:2]))
    with pytest.raises(TrimtabError, match="or policy=… dataset=…$"):
        checked_plan(compose_run([env, "algorithm=reinflow"]))
