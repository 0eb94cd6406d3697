"""Methods that learn online, through the real loop: shares of offline data, and that they learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks import train as loop
from trimtab.benchmarks.config import compose_run
from trimtab.benchmarks.train import train
from trimtab.datasets.mixture import Mixture
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
        (["algorithm=sac", "offline_share=1.5"], "must be a number from 0 to 1"),
    ],
)
def test_what_cannot_be_learned_from_is_named(
    words: list[str], expected: str, tiny: Any, tmp_path: Path
) -> None:
    given = [] if "offline_share=1.5" in words else [f"dataset={tiny.dataset}"]
    with pytest.raises(TrimtabError, match=expected) as error:
        train(compose_run([*tiny.task(tmp_path), *words, *given]))
    assert "\n" not in str(error.value)


def test_an_offline_share_needs_data() -> None:
    with pytest.raises(
        TrimtabError, match=r"offline_share=0.5: rlpd needs dataset=…; trimtab list dataset"
    ):
        loop.build.components(compose_run(["env=gym/Hopper-v5", "algorithm=rlpd"]))


@pytest.mark.parametrize(
    ("algorithm", "steps", "least", "words"),
    [
        ("ppo", 24_576, 900, ["algorithm.rollout_steps=128", "algorithm.decay_steps=null"]),
        ("sac", 2_500, 30, ["algorithm.hidden=[64,64]", "algorithm.warmup_steps=500"]),
        ("td3", 4_000, 30, ["algorithm.hidden=[64,64]", "algorithm.warmup_steps=1000"]),
    ],
)
def test_balances_a_pendulum(
    algorithm: str, steps: int, least: float, words: list[str], tmp_path: Path
) -> None:
    """A random policy keeps it up for about 6 steps of 1,000."""
    words = [*words, f"algorithm={algorithm}", f"online_steps={steps}", f"out={tmp_path}"]
    words += ["env=gym/InvertedPendulum-v5", "algorithm.learning_rate=1e-3", "seed=1"]
    result = train(compose_run([*words, "eval_episodes=5"]))
    assert result.summary["return"] > least
