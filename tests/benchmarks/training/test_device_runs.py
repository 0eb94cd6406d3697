"""Whole runs as on a GPU, on torch's device ``cpu:0``: simulations, rings and rollouts stay there.

All have one task and one number of environments, so JAX compiles few programs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.training import collector as collecting
from trimtab.benchmarks.training import device_evaluate, experience, trials
from trimtab.benchmarks.training.checkpoint import load_checkpoint
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.envs.engines.torch_vector import TorchVectorEnv
from trimtab.envs.vector import make_vec

pytestmark = pytest.mark.slow

TASK = ["env=playground/CartpoleSwingup", "env_options.horizon=21", "eval_episodes=3"]
ACTING = ["num_envs=3", "online_steps=252", "checkpoint_every=100", "algorithm.batch_size=16"]
CHUNKS = ["act_steps=2"]  # the last one of an episode is cut
RING = ["algorithm.hidden=[16]", "algorithm.warmup_steps=30"]
ROLLOUT = ["algorithm.rollout_steps=8", "algorithm.epochs=2"]


@pytest.fixture(scope="module", autouse=True)
def _on_device() -> Iterator[None]:
    """Have simulations on ``cpu:0``, in the classes and programs that a GPU has."""

    def make(id: str, count: int, *, device: str, observations: str, **more: Any) -> Any:
        return TorchVectorEnv(make_vec(id, count, **more), device)

    with pytest.MonkeyPatch.context() as patch:
        for module in (collecting, device_evaluate):
            patch.setattr(module, "make_vec", make)
        for module in (collecting, experience, trials):
            patch.setattr(module, "simulator_device", lambda *_, **__: "cpu:0")
        yield


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of SAC with single actions, whose ring is a dataset."""
    words = [*TASK, *ACTING, *RING, "algorithm=sac"]
    return train(compose_run([*words, f"out={tmp_path_factory.mktemp('gathered')}"])).folder


def clone(policy: str, gathered: Path, out: Path) -> Path:
    """Return the folder of a policy that was cloned from what a run gathered."""
    words = [*TASK, *CHUNKS, "algorithm=bc", f"policy={policy}", f"dataset={gathered}"]
    words += ["policy.hidden=[16]", "policy.sampling_steps=2", "offline_steps=30"]
    return train(compose_run([*words, "algorithm.batch_size=16", f"out={out}"])).folder


@pytest.fixture
def resumed(copied_at: Callable[[int, Path], Any], tmp_path: Path) -> Callable[[list[str]], Path]:
    """Check that a run that is ended and goes on has the bits of a whole one; return its folder."""

    def check(words: list[str]) -> Path:
        with copied_at(170, tmp_path / "ended"):  # behind its first checkpoint
            whole = train(compose_run([*words, f"out={tmp_path / 'whole'}"]))
        ended = train(compose_run([*words, f"out={tmp_path / 'ended'}"]))
        assert not ended.already_done
        weights = [
            (one.folder / "policy" / "model.safetensors").read_bytes() for one in (whole, ended)
        ]
        assert weights[0] == weights[1]
        rows = [one.summary["evaluations"][-1]["return"] for one in (whole, ended)]
        assert rows[0] == rows[1]
        assert whole.summary["updates"] == ended.summary["updates"] > 0
        return ended.folder

    return check


def saved(folder: Path) -> dict[str, Any]:
    """Return the state of a run's buffer."""
    state: Any = load_checkpoint(folder / "checkpoint")
    found: dict[str, Any] = state["experience"]["buffer"]
    return found


@pytest.mark.bits
def test_on_policy_with_a_history(resumed: Callable[[list[str]], Path]) -> None:
    folder = resumed([*TASK, *ACTING, *ROLLOUT, "algorithm=ppo", "history=2"])
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["episodes"], last["restarted"]) == (12, 0)
    assert "tensors" in saved(folder)


@pytest.mark.bits
@pytest.mark.parametrize("more", [["algorithm=sac"], ["algorithm=td3", "history=2"]])
def test_off_policy(more: list[str], resumed: Callable[[list[str]], Path]) -> None:
    folder = resumed([*TASK, *ACTING, *RING, *CHUNKS, *more])
    state = saved(folder)
    assert "device_generator" in state and state["size"] == 252 // 6 + 2  # cut chunks are shorter


GORL = [
    "policy=flow", "policy.hidden=[16]", "policy.sampling_steps=2", "algorithm.stage_lengths=[1,1]",
    "algorithm.collect_share=0.2", "algorithm.decoder_updates=6", "algorithm.decoder_batch_size=8",
    "algorithm.kept_decisions=64", "algorithm.validate_every=2", "algorithm.score_episodes=2",
]  # fmt: skip


@pytest.mark.bits
@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("reppo", [*ROLLOUT, "algorithm.embedding=16", "algorithm.hidden=[16]"]),
        ("fpo", [*ROLLOUT, "algorithm.actor_hidden=[16]", "algorithm.hidden=[16]"]),
        ("gorl", [*ROLLOUT, "algorithm.hidden=[16]", *GORL]),
        ("flash_sac", ["algorithm.critic_width=16", "algorithm.actor_width=16", RING[-1]]),
    ],
)
def test_generative_policies_and_learners_of_today(
    algorithm: str, more: list[str], resumed: Callable[[list[str]], Path]
) -> None:
    folder = resumed([*TASK, *ACTING, *more, f"algorithm={algorithm}"])
    assert ("tensors" if more[0] in ROLLOUT else "device_generator") in saved(folder)


@pytest.mark.bits
@pytest.mark.parametrize(
    ("algorithm", "policy", "more"),
    [
        ("dsrl_sac", "flow", RING),
        ("dsrl_na", "diffusion", RING),
        ("nft", "flow", RING),
        ("dppo", "diffusion", ROLLOUT),
    ],
)
def test_a_frozen_base_is_steered_and_tuned(
    algorithm: str,
    policy: str,
    more: list[str],
    gathered: Path,
    resumed: Callable[[list[str]], Path],
    tmp_path: Path,
) -> None:
    base = clone(policy, gathered, tmp_path / "base")
    before = (base / "policy" / "model.safetensors").read_bytes()
    words = [*TASK, *ACTING, *CHUNKS, *more, f"algorithm={algorithm}", f"base={base}"]
    folder = resumed(words)
    assert ("device_generator" if more[0] in RING else "tensors") in saved(folder)
    assert (base / "policy" / "model.safetensors").read_bytes() == before


def test_trials_of_a_base_are_judged_at_once(gathered: Path, tmp_path: Path) -> None:
    base = clone("flow", gathered, tmp_path / "base")
    words = [*TASK, *CHUNKS, "algorithm=golden_ticket", f"base={base}", "algorithm.tickets=2"]
    words += ["algorithm.episodes=3", "online_steps=200"]
    played: list[int] = []
    judge = device_evaluate.DeviceEvaluator.judge_policy

    def noted(evaluator: Any, *given: Any, **more: Any) -> Any:
        played.append(len(evaluator.seeds))
        return judge(evaluator, *given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_evaluate.DeviceEvaluator, "judge_policy", noted)
        result = train(compose_run([*words, f"out={tmp_path}"]))
    assert len(played) > 2 and {*played} == {3}
    assert result.summary["env_steps"] >= 2 * 3 * 21


def test_what_a_ring_on_a_device_lacks_is_kept_in_memory(gathered: Path, tmp_path: Path) -> None:
    """Cal-QL asks for returns to the end of an episode, which only the ring in memory knows."""
    words = [*TASK, *ACTING, *RING, "algorithm=cal_ql", f"dataset={gathered}", "offline_steps=10"]
    folder = train(compose_run([*words, f"out={tmp_path}"])).folder
    assert "generator" in saved(folder) and "device_generator" not in saved(folder)


def test_batches_are_shared_with_a_dataset(gathered: Path, tmp_path: Path) -> None:
    words = [*TASK, *ACTING, *RING, "algorithm=sac", f"dataset={gathered}", "offline_share=0.5"]
    result = train(compose_run([*words, f"out={tmp_path}"]))
    assert result.summary["updates"] > 100 and "device_generator" in saved(result.folder)
