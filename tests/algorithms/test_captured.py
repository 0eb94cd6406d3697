"""Updates that a GPU replays: what may not be captured is noticed, and what may keeps its bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.editing.pa_rl import PARL
from trimtab.algorithms.finetuning.diffusion_ql import DiffusionQL
from trimtab.algorithms.finetuning.reinflow import ReinFlow
from trimtab.algorithms.off_policy.aprl import APRL
from trimtab.algorithms.off_policy.mdpo_sac import MDPOSAC
from trimtab.algorithms.off_policy.td3 import TD3
from trimtab.algorithms.offline.oap import OAP
from trimtab.algorithms.offline_to_online.rl_100 import RL100
from trimtab.algorithms.offline_to_online.uni_o4 import UniO4
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.benchmarks.contracts.base import Broken
from trimtab.benchmarks.contracts.made_up import make_setup
from trimtab.benchmarks.contracts.methods import Subject, check_captured
from trimtab.benchmarks.contracts.recorded_graph import RecordedGraph
from trimtab.benchmarks.training.graphs import CapturedUpdate, is_capturable
from trimtab.errors import TrimtabError
from trimtab.policies.kinds.black_box import BlackBoxPolicy
from trimtab.types import Batch, Metrics

BatchOf = Callable[..., Batch]


class Falling(TD3):
    """Its loss falls with a number of Python's."""

    capturable = True

    def critic_loss(self, value: Tensor, backup: Tensor) -> Tensor:
        """Return the loss."""
        return super().critic_loss(value, backup) / (1 + self.updates)


class Undeclared(TD3):
    """Its actor learns at another time than it says."""

    capturable = True

    @property
    def actor_due(self) -> bool:
        """Say what changes with the second update on."""
        return self.updates > 1

    @property
    def branch(self) -> int:
        """Say that all updates are alike."""
        return 0


class ReadsBack(TD3):
    """It decides by a number of a tensor."""

    capturable = True

    def critic_loss(self, value: Tensor, backup: Tensor) -> Tensor:
        """Return the loss, or twice the loss."""
        loss = super().critic_loss(value, backup)
        return loss if loss > 1e9 else 2 * loss


class Masks(TD3):
    """It picks rows by a mask."""

    capturable = True

    def critic_loss(self, value: Tensor, backup: Tensor) -> Tensor:
        """Return the loss over some of the rows."""
        return (value - backup)[(value - backup).abs() > 1e-9].square().mean()


class Fresh(TD3):
    """It makes a tensor of a number of Python's."""

    capturable = True

    def critic_loss(self, value: Tensor, backup: Tensor) -> Tensor:
        """Return twice the loss."""
        return torch.tensor(2.0) * super().critic_loss(value, backup)


class Rebinds(TD3):
    """It keeps a new tensor where the old one was."""

    capturable = True

    kept: Tensor | None = None

    def critic_loss(self, value: Tensor, backup: Tensor) -> Tensor:
        """Return the loss, and a share of that of the update before."""
        before = torch.zeros(()) if self.kept is None else self.kept
        self.kept = super().critic_loss(value, backup).detach()
        return super().critic_loss(value, backup) * (1 + before)


def subject(kind: type[Algorithm], **keywords: Any) -> Subject:
    """Return a method with small networks."""

    def make(seed: int, device: str) -> Algorithm:
        torch.manual_seed(seed)
        start = kind.needs.base_kind
        setup: Setup = make_setup({"base", "dataset"}, start=start, device=device)
        return kind(setup, hidden=[16, 16], **keywords)

    return Subject(make, kind.__name__)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Falling, "critic_loss differs where the kernels of update"),
        (Undeclared, "differs where the kernels of update"),
        (ReadsBack, "reads numbers back"),
        (Masks, "a mask as an index"),
        (Fresh, r"torch.tensor\(\)"),
        (Rebinds, "critic_loss differs"),
    ],
)
def test_what_a_gpu_would_not_replay_is_noticed(kind: type[Algorithm], told: str) -> None:
    with pytest.raises(Broken, match=told):
        check_captured(subject(kind))


def test_answers_that_grow_are_branches() -> None:
    """OAP asks now and then, and draws of what was answered so far."""
    assert "same bits" in check_captured(subject(OAP, query_every=2, queries=4, kept=12))


def test_an_update_that_is_not_captured_leaves_its_metrics_to_the_next() -> None:
    class Rests(TD3):
        """Its fourth update, in which its actor learns, is not captured."""

        capturable = True

        @property
        def branch(self) -> bool | None:
            return None if self.updates == 3 else self.actor_due

    assert "same bits" in check_captured(subject(Rests))


def test_branches_that_never_come_again_are_let_go(batch_of: BatchOf) -> None:
    class Restless(TD3):
        @property
        def branch(self) -> int:
            return self.updates // 3

    made = subject(Restless).make(0, "cpu")
    update = CapturedUpdate(made, made.update, RecordedGraph, warmup=1)
    for _ in range(300):
        update(batch_of(made))
    assert made.updates == 300 and update.branches == 32


def test_metrics_of_one_update_stay_when_the_next_is_replayed(batch_of: BatchOf) -> None:
    made = subject(TD3).make(0, "cpu")
    update = CapturedUpdate(made, made.update, RecordedGraph, warmup=1)
    found: list[Metrics] = [update(batch_of(made)) for _ in range(12)]
    # Read at once, all of them after the last update.
    losses = [float(one["critic_loss"]) for one in found]
    assert len({*losses}) == 12
    # The actor learns every other time; in between its latest metrics are shown.
    actor = [float(one["actor_loss"]) for one in found]
    assert actor[0] == 0.0 and actor[1::2][:-1] == actor[2::2] and len({*actor[1::2]}) == 6


class Weakening(PPO):
    """Its loss falls with a number of Python's, from rollout to rollout."""

    capturable = True

    def value_loss(self, part: Samples) -> Tensor:
        """Return the loss of V."""
        return super().value_loss(part) / (1 + self.updates)


ROLLOUTS = {"rollout_steps": 8, "batch_size": 8, "epochs": 2}


def test_minibatches_are_replayed_with_a_rate_that_falls() -> None:
    falling = subject(PPO, decay_steps=1000, entropy_weight=0.01, **ROLLOUTS)
    assert "same bits" in check_captured(falling)
    with pytest.raises(Broken, match="differs where the kernels of update"):
        check_captured(subject(Weakening, **ROLLOUTS))


def test_a_warm_up_and_what_follows_are_branches() -> None:
    tuned = subject(ReinFlow, critic_warmup=3, decay_steps=400, **ROLLOUTS)
    assert "same bits" in check_captured(tuned)


def test_kernels_that_cannot_be_captured_end_the_run_in_one_line(batch_of: BatchOf) -> None:
    class Refuses(RecordedGraph):
        def capture(self, function: Callable[[], None]) -> None:
            raise RuntimeError("CUDA error: operation not permitted\nwhen stream is capturing")

    made = subject(TD3).make(0, "cpu")
    update = CapturedUpdate(made, made.update, Refuses, warmup=0)
    with pytest.raises(TrimtabError, match=r"TD3: .* \(CUDA error: operation not permitted\); use"):
        update(batch_of(made))


def test_a_child_says_for_itself_that_it_is_capturable() -> None:
    class Child(TD3):
        """It may do anything."""

    assert "does not say" in check_captured(subject(Child))


def test_a_policy_whose_actions_come_from_outside_is_not_captured() -> None:
    made = subject(TD3).make(0, "cpu")
    assert is_capturable(made)
    vars(made)["oracles"] = [nn.Sequential(BlackBoxPolicy(made.policy.spec, (1, 2), 8))]
    assert not is_capturable(made)


@pytest.mark.parametrize(
    ("kind", "keywords"),
    [
        (MDPOSAC, {"old_policy_updates": 2}),
        (APRL, {"surprise_window": 2, "updates_per_decision": 1.0}),
        (DiffusionQL, {"ema_start": 2, "ema_every": 2}),
        (PARL, {"base_every": 2}),
        (RL100, {"gate_every": 2, "gate_decisions": 3, **ROLLOUTS}),
        (UniO4, {"gate_every": 2, "gate_decisions": 3, **ROLLOUTS}),
    ],
)
def test_rare_branches_are_replayed(kind: type[Algorithm], keywords: dict[str, Any]) -> None:
    assert "same bits" in check_captured(subject(kind, **keywords))
