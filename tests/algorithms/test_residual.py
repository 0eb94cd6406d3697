"""Bounded corrections of a frozen base's chunks, each loss by hand."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from loading import load_module
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.schedules import Progress
from trimtab.algorithms.editing.residual import Residual
from trimtab.policies.base import Policy
from trimtab.policies.kinds.edited import CHUNK, EditedPolicy, editor_of
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import Batch, PolicySpec, TrimtabError

follows = load_module(Path(__file__).with_name("small.py")).follows

# The run executes two of the four actions that the base plans.
RUN = PolicySpec(3, 2, 2, (-2.0, -1.0), (2.0, 1.0))
PLAN = PolicySpec(3, 4, 2, (-2.0, -1.0), (2.0, 1.0))


class Wavering(Policy):
    """Plans half of its noise, whatever it sees, in its own normalised units."""

    def __init__(self, spec: PolicySpec = PLAN) -> None:
        super().__init__(spec, (spec.horizon, spec.action_dim))
        self.normalizer.action_scale.mul_(0.5)
        self.normalizer.obs_shift.fill_(0.3)

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Return raw actions."""
        return self.normalizer.raw_action(0.5 * noise)


def made(**keywords: Any) -> Residual:
    torch.manual_seed(0)
    settings = {"hidden": (24, 24), "learning_rate": 3e-3, "scale": 0.4, **keywords}
    return Residual(Setup(RUN, base=Wavering()), **settings)


def few(algorithm: Residual, rows: int = 7) -> Batch:
    torch.manual_seed(5)
    low, high = torch.tensor(RUN.action_low), torch.tensor(RUN.action_high)
    valid = torch.ones(rows, 2, dtype=torch.bool)
    valid[2, 1] = False
    return Batch(
        obs=torch.randn(rows, 3),
        action=low + (high - low) * torch.rand(rows, 2, 2),
        reward=torch.randn(rows),
        next_obs=torch.randn(rows, 3),
        discount=0.9 * (torch.rand(rows) < 0.7).float(),
        valid=valid,
        aux={"base": algorithm.drawn(torch.zeros(rows, 3))},
    )


def by_hand(editor: Policy, obs: Tensor, plan: Tensor, noise: Tensor, scale: float) -> Any:
    """One row's corrected chunk in the base's normalised units, and its log-density."""
    base = Wavering().normalizer
    scaled = (plan - base.action_shift) / base.action_scale
    seen = {"obs": obs[None], CHUNK: scaled.flatten()[None]}
    shown: Any = seen if CHUNK in editor.spec.parts else obs[None]
    mean, log_std = editor.distribution(shown)  # type: ignore[operator]
    raw = mean[0] + log_std[0].exp() * noise
    density = torch.distributions.Normal(mean[0], log_std[0].exp()).log_prob(raw)
    density = (density - torch.log(1 - torch.tanh(raw).square())).sum()
    action = torch.empty(2, 2)
    for step in range(2):
        for dim in range(2):
            wanted = base.action_scale[dim] * (
                scaled[step, dim] + scale * torch.tanh(raw[step, dim])
            )
            limit = RUN.action_high[dim]
            action[step, dim] = wanted.clamp(-limit, limit) / base.action_scale[dim]
    return action, density


def queue_of_noise(monkeypatch: pytest.MonkeyPatch, *noise: Tensor) -> None:
    """Make ``torch.randn`` give the actor's noises, one after another."""
    drawn = iter(noise)
    monkeypatch.setattr(torch, "randn", lambda *shape, **_: next(drawn))


@pytest.mark.parametrize("sees_base", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
def test_losses_by_a_loop_over_rows(
    sees_base: bool, entropy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = made(
        sees_base=sees_base, backup_entropy=entropy, reward_offset=0.5, critics=3, target_critics=2
    )
    data = few(algorithm)
    for _ in range(3):
        algorithm.update(data)
    old = copy.deepcopy(algorithm)
    scale, rows = 0.4, len(data)
    next_noise, cut_noise, actor_noise = (torch.randn(rows, 2, 2) for _ in range(3))
    next_plan = 3 * torch.rand(rows, 2, 2) - 1.5
    monkeypatch.setattr(algorithm, "drawn", lambda obs: next_plan)
    monkeypatch.setattr(algorithm.target, "drawn", lambda _: torch.tensor([2, 0]))
    queue_of_noise(monkeypatch, next_noise, cut_noise, actor_noise)
    metrics = algorithm.update(data)

    editor, normalizer = old.policy.editor, old.policy.normalizer
    alpha = old.temperature().item()
    critic_loss, actor_loss, densities = 0.0, 0.0, []
    with torch.no_grad():
        for row in range(rows):
            obs, next_obs = data.obs[row], data.next_obs[row]  # type: ignore[index]
            action, density = by_hand(editor, next_obs, next_plan[row], next_noise[row], scale)
            values = old.target((next_obs - 0.3)[None], action[None])[:, 0]
            value = min(values[2], values[0]) - (alpha * density if entropy else 0.0)
            counted = data.reward[row] - 0.5 * data.valid[row].sum()
            backup = counted + data.discount[row] * value
            stored = normalizer.normalize_action(data.action[row])
            goes_on, _ = by_hand(editor, obs, data.aux["base"][row], cut_noise[row], scale)
            for step in range(2):
                if not data.valid[row, step]:
                    stored[step] = goes_on[step]
            error = old.critic((obs - 0.3)[None], stored[None])[:, 0] - backup
            critic_loss += 0.5 * float(error.square().sum()) / rows
            # The actor climbs the critics as they are after their step of this update.
            action, density = by_hand(editor, obs, data.aux["base"][row], actor_noise[row], scale)
            worth = algorithm.critic((obs - 0.3)[None], action[None]).min()
            actor_loss += float(alpha * density - worth) / rows
            densities.append(float(density))
    assert metrics["critic_loss"] == pytest.approx(critic_loss, rel=1e-4)
    assert metrics["actor_loss"] == pytest.approx(actor_loss, rel=1e-4, abs=1e-5)
    assert metrics["entropy"] == pytest.approx(-sum(densities) / rows, rel=1e-4)
    # The temperature's gradient by its logarithm is -mean(log pi + H_target); Adam's first steps
    # go its way.
    raises = sum(densities) / rows - 4.0 > 0  # H_target is -4: two steps of two numbers
    assert (algorithm.temperature() > old.temperature()).item() is raises


def test_the_actor_waits_and_the_target_follows_at_its_rate() -> None:
    algorithm = made(actor_every=2, tau=0.1)
    data = few(algorithm)
    moves = []
    for _ in range(4):
        target = copy.deepcopy(algorithm.target)
        editor, alpha = copy.deepcopy(algorithm.policy.editor), algorithm.temperature().item()
        algorithm.update(data)
        pairs = zip(editor.parameters(), algorithm.policy.editor.parameters(), strict=True)
        moves.append(not all(torch.equal(was, now) for was, now in pairs))
        assert (algorithm.temperature().item() != alpha) is moves[-1]
        follows(algorithm.target, target, algorithm.critic, 0.1)
    assert moves == [False, True, False, True]


def test_actor_on_the_mean_of_the_critics(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = made(critics=4, pessimistic_actor=False)
    data = few(algorithm)
    noise = torch.randn(7, 2, 2)
    queue_of_noise(monkeypatch, noise)
    before = copy.deepcopy(algorithm.policy)
    obs = algorithm.policy.normalizer.obs(data.obs)
    metrics = algorithm.update_actor(data.obs, obs, data.aux["base"], torch.tensor(0.7))
    expected = 0.0
    with torch.no_grad():
        for row in range(7):
            action, density = by_hand(
                before.editor,
                data.obs[row],
                data.aux["base"][row],
                noise[row],
                0.4,  # type: ignore[index]
            )
            worth = algorithm.critic(obs[row : row + 1], action[None]).mean()
            expected += float(0.7 * density - worth) / 7
    assert metrics["actor_loss"] == pytest.approx(expected, rel=1e-4)


def test_progress_counts_decisions_of_all_environments() -> None:
    algorithm = made(explore_decisions=400)
    obs = torch.zeros(100, 3)
    shares = []
    for _ in range(6):
        assert float(algorithm.progress()) == min(len(shares) / 4, 1.0)
        action, aux = algorithm.explore(obs, warmup=False)
        changed = (action != aux["base"]).flatten(1).any(1)
        shares.append(float(changed.float().mean()))
    assert shares[0] == 0.0 and shares[4] == shares[5] == 1.0
    for share, chance in zip(shares[1:4], (0.25, 0.5, 0.75), strict=True):
        assert abs(share - chance) < 0.17  # more than three standard deviations
    assert int(algorithm.progress.decisions) == 600
    algorithm.update(few(algorithm))  # learning asks for plans, and those are no decisions
    assert int(algorithm.progress.decisions) == 600
    again = made(explore_decisions=400)
    again.load_state_dict(algorithm.state_dict())
    assert int(again.progress.decisions) == 600
    assert float(Progress(0)()) == 1.0 and bool(Progress(0).coins(50).all())


@pytest.mark.parametrize("warmup", [True, False])
def test_an_uncorrected_chunk_is_stored_as_it_was_played(warmup: bool) -> None:
    algorithm = made(explore_decisions=4000)
    algorithm.progress.decisions.fill_(2000)
    action, aux = algorithm.explore(torch.randn(2000, 3), warmup=warmup)
    moved = algorithm.policy.normalizer.normalize_action(action) - (
        algorithm.policy.normalizer.normalize_action(aux["base"])
    )
    untouched = (moved.abs() < 1e-6).flatten(1).all(1)
    assert abs(float(untouched.float().mean()) - 0.5) < 0.05
    assert moved.abs().max() <= 0.4 + 1e-6
    inside = (action.abs() < torch.tensor(RUN.action_high)).flatten(1).all(1) & ~untouched
    edit = moved[inside] / 0.4
    if warmup:  # uniform in its box
        assert abs(float(edit.std()) - 3**-0.5) < 0.02 and abs(float(edit.mean())) < 0.02


def test_it_is_judged_at_the_mode_and_the_rest_of_the_plan_stays() -> None:
    algorithm = made(sees_base=True)
    for _ in range(5):
        algorithm.update(few(algorithm))
    policy = algorithm.policy
    obs, noise = torch.randn(6, 3), torch.randn(6, *policy.noise_shape)
    with torch.no_grad():
        plan, action = policy.base(obs, noise), policy(obs, noise)
        assert action.shape == plan.shape == (6, 4, 2) and torch.equal(action[:, 2:], plan[:, 2:])
        for row in range(6):
            editor = copy.deepcopy(policy.editor)
            chunk, _ = by_hand(editor, obs[row], plan[row, :2], torch.zeros(2, 2), 0.4)
            expected = policy.normalizer.raw_action(chunk)
            assert torch.allclose(action[row, :2], expected, atol=1e-6)
    assert not torch.allclose(action[:, :2], plan[:, :2], atol=1e-4)
    assert not policy.evaluate_deterministic  # the base is sampled, as without corrections


def test_it_hardly_edits_at_first_and_sees_what_the_base_sees() -> None:
    policy = made(sees_base=True).policy
    obs, noise = torch.randn(50, 3), torch.randn(50, *policy.noise_shape)
    with torch.no_grad():
        assert (policy(obs, noise) - policy.base(obs, noise)).abs().max() < 0.02
    shown = policy.editor.normalizer.obs(policy.seen(obs, policy.base(obs, noise)))
    assert torch.equal(shown[:, :3], policy.base.normalizer.obs(obs))
    assert torch.allclose(
        shown[:, 3:], policy.normalizer.normalize_action(policy.base(obs, noise))[:, :2].flatten(1)
    )


@pytest.mark.parametrize(("settings", "moves"), [({}, True), ({"initial_temperature": 1.0}, False)])
def test_learns_which_way_to_correct(settings: dict[str, float], moves: bool) -> None:
    """At the published temperature the entropy outweighs the reward for longer than this."""
    algorithm = made(scale=0.4, explore_decisions=100, **settings)
    torch.manual_seed(1)

    def play(count: int, *, warmup: bool) -> Batch:
        obs = torch.randn(count, 3)
        action, aux = algorithm.explore(obs, warmup=warmup)
        return Batch(
            obs=obs,
            action=action,
            reward=action[:, 0, 0] * obs[:, 0].sign(),  # push the way that the first number says
            next_obs=obs,
            discount=torch.zeros(count),
            valid=torch.ones(count, 2, dtype=torch.bool),
            aux=aux,
            whole=True,
        )

    before = copy.deepcopy(algorithm.policy.base.state_dict())
    for _ in range(250):
        algorithm.update(play(128, warmup=True))
    obs, noise = torch.randn(500, 3), torch.randn(500, *algorithm.policy.noise_shape)
    with torch.no_grad():
        gain = (algorithm.policy(obs, noise) - algorithm.policy.base(obs, noise))[:, 0, 0]
    gain = gain * obs[:, 0].sign()
    if moves:
        assert float((gain > 0).float().mean()) > 0.9
        assert float(gain.mean()) > 0.25  # of 0.4 at most
    else:
        assert float(gain.mean()) < 0.15
    for name, value in algorithm.policy.base.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_demonstrations_have_no_stored_chunk() -> None:
    algorithm = made()
    data = few(algorithm)
    bare = Batch(**{**vars(data), "aux": {}})
    torch.manual_seed(3)
    first, second = algorithm.plans(bare)
    torch.manual_seed(3)
    both = algorithm.drawn(torch.zeros(14, 3))
    assert torch.equal(torch.cat([first, second]), both)
    algorithm.update(bare)
    kept, _ = algorithm.plans(data)
    assert torch.equal(kept, data.aux["base"])
    mixed = made(store_base=False)
    assert algorithm.aux_shapes and not mixed.aux_shapes
    assert not mixed.explore(data.obs, warmup=True)[1]


def test_settings_that_do_not_fit_are_refused() -> None:
    for wrong in (
        {"scale": 0.0}, {"explore_decisions": -1},
        {"n_step": 3, "reward_offset": 1.0}, {"n_step": 0}, {"actor_every": 0},
    ):  # fmt: skip
        with pytest.raises(TrimtabError):
            made(**wrong)
    told = r"algorithm.target_critics=3: must be from 1 to 2 \(algorithm.critics is a limit\)$"
    with pytest.raises(TrimtabError, match=told):
        made(critics=2, target_critics=3)
    with pytest.raises(TrimtabError, match="act_steps=5"):
        editor_of(Wavering(), 5, sees_chunk=False, hidden=(8,))
    other = FlowPolicy(PolicySpec(4, 4, 2, (-1.0, -1.0), (1.0, 1.0)), hidden=(8,))
    with pytest.raises(TrimtabError, match="does not fit"):
        EditedPolicy(Wavering(), editor_of(other, 2, sees_chunk=False, hidden=(8,)))
    assert made(n_step=3).batch_spec.n_step == 3
