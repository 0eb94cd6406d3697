"""Gradient subspaces: Lanczos against dense eigenvectors, known shares, and runs of PPO and SAC."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian

from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.benchmarks.artefacts.run_subspaces import subspaces_of_run
from trimtab.benchmarks.artefacts.subspaces import (
    Losses,
    Pairs,
    flat,
    leading_eigenvectors,
    overlap,
    share,
    subspaces,
)
from trimtab.benchmarks.cli.main import run as carry_out
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.errors import TrimtabError
from trimtab.files import sha256_file


def dense_hessian(module: nn.Module, loss: Callable[[dict[str, Tensor]], Any]) -> Any:
    """Return the whole Hessian ``[n, n]`` of a loss of a module's weights, by torch.func."""
    weights = {name: one.detach() for name, one in module.named_parameters()}
    sizes = {name: one.numel() for name, one in weights.items()}
    blocks: Any = hessian(loss)(weights)
    rows = [
        torch.cat([blocks[one][other].reshape(sizes[one], sizes[other]) for other in weights], 1)
        for one in weights
    ]
    return torch.cat(rows).double().numpy()


def leading(matrix: Any, count: int) -> tuple[Any, Any]:
    values, vectors = np.linalg.eigh(matrix)
    return values[::-1][:count], vectors[:, ::-1][:, :count]


def small_network() -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    return network, torch.randn(40, 3).double(), torch.randn(40, 2).double()


def test_lanczos_finds_the_leading_eigenvectors_of_the_dense_hessian() -> None:
    network, inputs, wanted = small_network()
    weights = [*network.parameters()]

    def loss(given: dict[str, Tensor]) -> Any:
        return (functional_call(network, given, (inputs,)) - wanted).square().mean()

    whole = dense_hessian(network, loss)
    for count in (1, 4, 12):
        values, vectors = leading_eigenvectors(
            loss(dict(network.named_parameters())), weights, count
        )
        exact, exact_vectors = leading(whole, count)
        np.testing.assert_allclose(values, exact, rtol=1e-3, atol=1e-6)
        assert overlap(exact_vectors, vectors) == pytest.approx(1, abs=1e-3)
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(count), atol=1e-8)


def test_shares_of_minibatches_are_those_of_dense_projections() -> None:
    network, inputs, wanted = small_network()
    weights = [*network.parameters()]

    def squares(rows: slice) -> dict[str, Tensor]:
        return {"loss": (network(inputs[rows]) - wanted[rows]).square().mean()}

    rows = [slice(first, first + 8) for first in range(0, 40, 8)]
    losses, pairs = Losses(squares, {"loss": weights}), Pairs(slice(0, 40), slice(0, 8), rows)
    found = subspaces(losses, pairs, [1, 3, 10, 1000])
    assert [one.pairs for one in found] == ["all", "update"]
    for one, part in zip(found, (slice(0, 40), slice(0, 8)), strict=True):
        assert [*one.shares] == [1, 3, 10]  # 1000 directions are more than there are weights

        def loss(given: dict[str, Tensor], part: slice = part) -> Any:
            error = functional_call(network, given, (inputs[part],)) - wanted[part]
            return error.square().mean()

        whole = dense_hessian(network, loss)
        for k, known in one.shares.items():
            _, vectors = leading(whole, k)
            by_hand = []
            for few in rows:
                gradient = flat(torch.autograd.grad(squares(few)["loss"], weights))
                inside = sum((gradient @ vector) ** 2 for vector in vectors.T)
                by_hand.append(inside / (gradient @ gradient))
            assert known == pytest.approx(np.mean(by_hand), abs=2e-3)
            assert 0 < known < 1


def test_shares_and_overlaps_that_are_known() -> None:
    torch.manual_seed(1)
    basis, _ = torch.linalg.qr(torch.randn(30, 4).double())
    weights = [nn.Parameter(torch.randn(30).double())]
    curvature = torch.tensor([4.0, 3.0, 2.0, 1.0]).double()
    loss = 0.5 * (curvature * (weights[0] @ basis).square()).sum()  # rank 4
    values, vectors = leading_eigenvectors(loss, weights, 4)
    np.testing.assert_allclose(values, curvature.numpy(), rtol=1e-4)
    gradient = flat(torch.autograd.grad(loss, weights))[None]
    assert share(gradient, vectors) == pytest.approx(1, abs=1e-6)
    assert share(gradient, vectors[:, :1]) < 1
    assert overlap(vectors, vectors) == pytest.approx(1)
    other = np.linalg.svd(vectors.T)[2][4:8].T  # orthogonal to all of them
    assert overlap(vectors, other) == pytest.approx(0, abs=1e-12)
    assert share(gradient, other) == pytest.approx(0, abs=1e-6)
    # Random directions hold k / n, within four standard errors.
    rng = np.random.default_rng(0)
    random, _ = np.linalg.qr(rng.standard_normal((200, 20)))
    gradients = rng.standard_normal((4000, 200))
    spread = np.sqrt(2 * 20 * 180 / 200**2 / 202) / np.sqrt(4000)
    assert share(gradients, random) == pytest.approx(20 / 200, abs=4 * spread)
    assert np.isnan(share(np.zeros((3, 200)), random))
    assert share(np.concatenate([gradients, np.zeros((9, 200))]), random) == pytest.approx(
        share(gradients, random)
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders of tiny runs: PPO at two points of one path, and SAC."""
    out = tmp_path_factory.mktemp("subspaces")
    task = ["env=gym/InvertedPendulum-v5", "eval_episodes=1", f"out={out}"]
    on_policy = [*task, "algorithm=ppo", "num_envs=2", "algorithm.rollout_steps=32"]
    on_policy += ["algorithm.decay_steps=100000", "algorithm.hidden=[6]"]
    on_policy += ["algorithm.entropy_weight=0.01"]
    off_policy = [*task, "algorithm=sac", "algorithm.hidden=[6]", "algorithm.warmup_steps=50"]
    off_policy += ["algorithm.batch_size=32", "online_steps=150"]
    return {
        "early": train(compose_run([*on_policy, "online_steps=128"])).folder,
        "late": train(
            compose_run([*on_policy, "online_steps=256", "eval_every=128", "keep_policies=true"])
        ).folder,
        "sac": train(compose_run(off_policy)).folder,
    }


def digests(folder: Path) -> dict[str, str]:
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    return {str(one): sha256_file(one) for one in files}


def test_runs_of_one_seed_are_points_of_one_path(runs: dict[str, Path]) -> None:
    early = runs["early"] / "policy" / "model.safetensors"
    there = runs["late"] / "policies" / "128" / "model.safetensors"
    assert early.read_bytes() == there.read_bytes()


def perceptron(given: dict[str, Tensor], start: str, x: Tensor) -> Tensor:
    """Return what a network of one hidden layer gives, by hand."""
    hidden = torch.tanh(x @ given[f"{start}0.weight"].T + given[f"{start}0.bias"])
    return hidden @ given[f"{start}2.weight"].T + given[f"{start}2.bias"]


def test_ppo_is_measured_at_a_ratio_of_one_on_what_it_would_gather_next(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digests(runs["early"])
    seen: list[tuple[PPO, Samples]] = []
    samples = PPO.samples

    def watched(self: PPO, data: Any) -> Samples:
        seen.append((self, samples(self, data)))
        return seen[-1][1]

    monkeypatch.setattr(PPO, "samples", watched)
    measured = subspaces_of_run(runs["early"], [1, 2, 5], 150)
    assert digests(runs["early"]) == before and measured.env_steps == 128
    assert len(seen) == 3  # rollouts of 64 decisions
    assert [one.loss for one in measured.found] == ["policy loss", "value loss"] * 2
    learner = seen[0][0]
    for rollouts, (of_policy, of_value) in zip(
        (seen, seen[:1]), (measured.found[:2], measured.found[2:]), strict=True
    ):
        obs, action, advantage, old, target = (
            torch.cat([getattr(one, name) for _, one in rollouts])
            for name in ("obs", "action", "advantage", "log_prob", "target")
        )
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

        def surrogate(
            given: dict[str, Tensor],
            obs: Tensor = obs,
            action: Tensor = action,
            scaled: Tensor = scaled,
            old: Tensor = old,
        ) -> Any:
            # One action a decision. Without a clip: where the ratio is 1, there is none.
            log_std = given["log_std"].squeeze()
            error = (
                action.flatten() - perceptron(given, "network.", obs).flatten()
            ) / log_std.exp()
            log_prob = -0.5 * error.square() - log_std - 0.5 * np.log(2 * np.pi)
            entropy = log_std + 0.5 * np.log(2 * np.pi * np.e)
            return -((log_prob - old).exp() * scaled).mean() - 0.01 * entropy

        def squares(given: dict[str, Tensor], obs: Tensor = obs, target: Tensor = target) -> Tensor:
            return 0.25 * (perceptron(given, "", obs).squeeze(-1) - target).square().mean()

        for found, module, loss in (
            (of_policy, learner.actor, surrogate),
            (of_value, learner.critic, squares),
        ):
            values, vectors = leading(dense_hessian(module, loss), 5)
            np.testing.assert_allclose(found.values, values, rtol=2e-3, atol=1e-5)
            assert overlap(vectors[:, :2], found.vectors[:, :2]) == pytest.approx(1, abs=1e-2)


def test_sac_is_measured_on_its_replay_buffer(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digests(runs["sac"])
    seen: list[tuple[SAC, Any, Tensor, Tensor]] = []
    next_value = SAC.next_value

    def watched(self: SAC, data: Any, alpha: Tensor) -> Tensor:
        seen.append((self, data, data.reward, next_value(self, data, alpha)))
        return seen[-1][3]

    monkeypatch.setattr(SAC, "next_value", watched)
    found = subspaces_of_run(runs["sac"], [1, 5, 20], 100).found
    assert digests(runs["sac"]) == before
    assert [one[1].reward.numel() for one in seen] == [32, 32, 32, 32, 128, 32]
    for one in found:
        shares = [*one.shares.values()]
        assert 0 < shares[0] <= shares[1] <= shares[2] <= 1 + 1e-9
    for (learner, data, reward, following), measured in zip(
        (seen[4], seen[5]), (found[1], found[3]), strict=True
    ):
        target = reward + data.discount * following
        inputs = torch.cat([data.obs, (data.action / 3).flatten(1)], 1)  # its limits are -3 and 3

        def squares(
            given: dict[str, Tensor], inputs: Tensor = inputs, target: Tensor = target
        ) -> Tensor:
            total = torch.zeros(())
            for member in range(2):
                w1, b1, w2, b2 = (given[name][member] for name in given)
                value = torch.relu(inputs @ w1 + b1) @ w2 + b2
                total = total + 0.5 * (value.squeeze(-1) - target).square().mean()
            return total

        values, vectors = leading(dense_hessian(learner.critic, squares), 20)
        np.testing.assert_allclose(measured.values, values, rtol=2e-3, atol=1e-4)
        assert overlap(vectors[:, :1], measured.vectors[:, :1]) == pytest.approx(1, abs=1e-2)


def test_the_same_run_gives_the_same_numbers(runs: dict[str, Path]) -> None:
    once, again = (subspaces_of_run(runs["early"], [1, 5], 100) for _ in range(2))
    for one, other in zip(once.found, again.found, strict=True):
        np.testing.assert_array_equal(one.values, other.values)
        assert one.shares == other.shares


def test_the_command_prints_and_writes_shares_and_overlaps(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "shares.csv"
    both = f"run={runs['early']},{runs['late']}"
    words = ["subspace", both, "dimensions=5,1", "pairs=100"]
    assert carry_out([*words, f"out={table}", "format=json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 2 * 2 * 2 * 2 and len(table.read_text().splitlines()) == 1 + len(rows)
    for row in rows:
        weights = {"policy loss": 4 * 6 + 6 + 6 + 1 + 1, "value loss": 4 * 6 + 6 + 6 + 1}
        assert row["random"] == row["k"] / weights[row["loss"]]
        assert row["random"] < row["share"] <= 1 + 1e-9
        same = row["run"] == str(runs["early"])
        assert (row["overlap"] == pytest.approx(1)) is same and 0 < row["overlap"] < 1 + 1e-9
        assert row["env_steps"] == (128 if same else 256)
    assert carry_out(["subspace", f"run={runs['sac']}", "dimensions=1", "pairs=32"]) == 0
    shown = capsys.readouterr().out
    assert "policy" in shown and "value" in shown and "overlap" not in shown


def test_what_cannot_be_measured_is_told_in_one_line(runs: dict[str, Path], tmp_path: Path) -> None:
    task = ["env=gym/InvertedPendulum-v5", "online_steps=64", f"out={tmp_path}", "eval_episodes=1"]
    task += ["num_envs=1", "algorithm.rollout_steps=32", "algorithm.hidden=[6]"]
    props, mdpo = (
        train(compose_run([*task, f"algorithm={name}"])).folder for name in ("props", "mdpo")
    )
    for words, told in (
        ([f"run={tmp_path}"], "is not the folder of a run"),
        (["run=,"], "names no run"),
        ([f"run={props}"], "a run of PROPS cannot be measured"),
        ([f"run={mdpo}"], "a run of MDPO cannot be measured"),
        ([f"run={runs['early']}", "dimensions=1,x"], "must be whole numbers of at least 1"),
        ([f"run={runs['early']}", "dimensions=500"], "too few weights for 500 directions"),
        ([f"run={runs['early']},{runs['sac']}", "dimensions=1", "pairs=32"], "weights of the"),
        ([f"run={runs['early']}", f"out={tmp_path}"], "is there already"),
    ):
        with pytest.raises(TrimtabError, match=told):
            carry_out(["subspace", *words])
