"""Methods that climb a critic learn what is rewarded, from starts that they can clone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from loading import load_module
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.finetuning.diffusion_ql import DiffusionQL
from trimtab.algorithms.finetuning.fql import FQL
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.types import PolicySpec, TrimtabError

small = load_module(Path(__file__).with_name("small.py"))
RUN, bandit = small.RUN, small.bandit


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (FQL, {"alpha": 0.3, "normalize_q": True}),
        (DiffusionQL, {"eta": 2.0, "ema_start": 0, "ema_every": 1, "ema_decay": 0.9, "tau": 0.05}),
    ],
)
def test_learns_the_rewarded_end_of_what_it_clones(
    kind: Callable[..., Any], settings: dict[str, Any]
) -> None:
    """The data goes anywhere; what is far along the observation's sign is worth most."""
    torch.manual_seed(0)
    spec = PolicySpec(1, 1, 1, (-2.0,), (2.0,))
    base = FlowPolicy(spec, hidden=(32, 32), sampling_steps=2)
    algorithm = kind(
        Setup(spec, base=base), **{"hidden": (32, 32), "learning_rate": 3e-3, **settings}
    )

    def rewarded(obs: Tensor, action: Tensor) -> Tensor:
        return action[:, 0, 0] * obs[:, 0].sign() / 2

    obs = (torch.randint(2, (1000, 1)) * 2.0 - 1.0) * (0.5 + torch.rand(1000, 1))
    action = 4 * torch.rand(1000, 1, 1) - 2
    reward = rewarded(obs, action)
    assert abs(float(reward.mean())) < 0.1
    for _ in range(400):
        rows = torch.randint(1000, (128,))
        algorithm.update(bandit(obs[rows], action[rows], reward[rows]))
    assert float(rewarded(obs, algorithm.policy.act(obs)).mean()) > 0.5
    # It is the critic that does it: the cloned flow of the same run goes anywhere still.
    if kind is FQL:
        assert abs(float(rewarded(obs, algorithm.flow.act(obs)).mean())) < 0.2


@pytest.mark.parametrize("kind", [FQL, DiffusionQL])
def test_a_start_that_cannot_be_cloned_is_refused(kind: Callable[..., Any]) -> None:
    with pytest.raises(TrimtabError, match="no behaviour-cloning loss"):
        kind(Setup(RUN, base=TanhGaussianPolicy(RUN, hidden=(8,))))


def test_a_flow_whose_noise_is_a_path_cannot_be_distilled() -> None:
    base = DiffusionPolicy(RUN, hidden=(8,), sampler="ddpm")
    with pytest.raises(TrimtabError, match=r"distillation: .* not that of one latent chunk"):
        FQL(Setup(RUN, base=base))
