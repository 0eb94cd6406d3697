"""Settings of a policy that runs: a fixed noise, choices of its settings, a mix of two policies."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from serving import running
from torch import Tensor, nn
from websockets.sync.client import connect

import trimtab
from trimtab.benchmarks.artefacts.export import export_policy
from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.bundle.adjusting import adjusted, with_choices
from trimtab.policies.bundle.bundle import load_bundle, save_bundle
from trimtab.policies.bundle.onnx_policy import open_policy
from trimtab.policies.kinds.best_of import BestOfPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.kinds.mixed import MIX, MixedPolicy
from trimtab.policies.robot.replay import replay
from trimtab.policies.runtime import NO_LIMITS, load_policy
from trimtab.policies.serving.codec import pack, unpack
from trimtab.policies.serving.server import PolicyServer
from trimtab.types import PolicySpec

BundleOf = Callable[[str], Path]
HOPPER = "gym/Hopper-v5"
SPEC = PolicySpec(11, 2, 3, (-1.0,) * 3, (1.0,) * 3)
CONTRACT = {
    "env": HOPPER, "env_options": {"horizon": 30}, "control_rate": 125.0, "act_steps": 2,
}  # fmt: skip


def flow(seed: int = 0, spec: PolicySpec = SPEC, **settings: Any) -> FlowPolicy:
    torch.manual_seed(seed)
    return FlowPolicy(spec, **{"hidden": (16,), "sampling_steps": 2, **settings}).eval()


def diffusion(seed: int = 0, **settings: Any) -> DiffusionPolicy:
    torch.manual_seed(seed)
    return DiffusionPolicy(SPEC, **{"hidden": (16,), "sampling_steps": 4, **settings}).eval()


def best_of() -> BestOfPolicy:
    base = flow()
    for weight in base.parameters():
        weight.data *= 2.0  # so that candidates differ
    return BestOfPolicy(base, candidates=5, hidden=(16,)).eval()


def drawn(shape: tuple[int, ...], dim: int = SPEC.obs_dim) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(12, *size, generator=generator) for size in ((dim,), shape))


def numbers(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The best of five draws or of two."""
    folder = tmp_path_factory.mktemp("chosen")
    save_bundle(best_of(), folder / "best", contract=CONTRACT, onnx=False)
    export_policy(str(folder / "best"), str(folder / "out"), choices={"candidates": [5, 2]})
    return folder / "out"


@pytest.fixture(scope="module")
def mixed(bundle_of: BundleOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mix of two flows, in three steps or one; the second one lies beside it."""
    folder = tmp_path_factory.mktemp("mixed")
    first = load_bundle(bundle_of("flow"))
    for weight in first.policy.parameters():
        weight.data = 1.5 * weight.data.flip(0)
    contract = {"env": "x/y", "control_rate": 10.0, "act_steps": 3}
    save_bundle(first.policy, folder / "second", contract=contract)
    export_policy(
        str(bundle_of("flow")), str(folder / "out"), mix=str(folder / "second"),
        choices={"sampling_steps": [3, 1]},
    )  # fmt: skip
    return folder / "out"


def refused(*words: str, capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    return line


@pytest.mark.bits
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_fixed_noise_is_that_of_every_decision(
    deterministic: bool, bundle_of: BundleOf, tmp_path: Path
) -> None:
    folder, log = bundle_of("flow"), tmp_path / "log"
    plain = open_policy(folder)
    ticket = np.random.default_rng(1).standard_normal((4, 2), np.float32)
    runner = load_policy(folder, deterministic=deterministic, limits=NO_LIMITS, log=log)
    observations = np.random.default_rng(2).normal(size=(9, 6)).astype(np.float32)
    expected = [plain.predict(obs[None], ticket[None])[0, 0] for obs in observations[::3]]

    def played() -> list[Any]:
        return [runner.step(obs) for obs in observations][::3]

    runner.reset(5, noise=ticket)
    np.testing.assert_array_equal(played(), expected)
    runner.reset(5)  # as other inputs, it stays until another one is chosen
    np.testing.assert_array_equal(played(), expected)
    runner.reset(5, noise=None)
    free = played()
    assert not np.array_equal(free, expected)
    own = load_policy(folder, deterministic=deterministic, limits=NO_LIMITS, seed=5)
    np.testing.assert_array_equal(free, [own.step(obs) for obs in observations][::3])
    runner.close()
    assert replay(log).equal and replay(log).ticks == 27


@pytest.mark.parametrize(
    ("kind", "inputs", "words"),
    [
        ("flow", {"noise": np.zeros(2)}, r"noise: has shape \(2,\); the policy's is \(4, 2\)"),
        ("flow", {"noise": np.full((4, 2), np.nan)}, "input noise: must be finite"),
        ("flow", {"noise": "ticket.npy"}, "input noise: give a number"),
        ("flow", {"sampling_steps": 1}, "no input 'sampling_steps'; it has noise"),
        ("flow", {"mix": 0.5}, "no input 'mix'; it has noise"),
        ("deterministic", {"noise": np.zeros(0)}, "no input 'noise'; it has none"),
    ],
)
def test_a_bundle_that_has_no_such_setting_says_so(
    kind: str, inputs: dict[str, Any], words: str, bundle_of: BundleOf
) -> None:
    runner = load_policy(bundle_of(kind), limits=NO_LIMITS)
    with pytest.raises(TrimtabError, match=words) as caught:
        runner.reset(**inputs)
    assert "\n" not in str(caught.value)


@pytest.mark.bits
def test_fewer_candidates_are_chosen_while_it_runs(chosen: Path, tmp_path: Path) -> None:
    """Against the best of all draws, each integrated and valued by itself."""
    policy, runner = best_of(), load_policy(chosen, limits=NO_LIMITS, log=tmp_path / "log")
    obs, noise = drawn((5, 2, 3))
    played = []
    for candidates in (5, 2):
        runner.reset(candidates=candidates)
        for row in range(len(obs)):
            one, chunks, values = obs[row : row + 1], [], []
            with torch.no_grad():
                for number in range(candidates):
                    chunk, field = noise[row, number : number + 1], policy.base.field(one)
                    for step in range(2):
                        chunk = chunk + field(chunk, torch.tensor([step / 2])) / 2
                    chunks.append(chunk.clamp(-1, 1))
                    values.append(float(policy.value(one, chunks[-1]).min()))
            played.append(int(np.argmax(values)))
            runner.reset(noise=noise[row])
            action = runner.step(obs[row])
            np.testing.assert_allclose(action, chunks[played[-1]][0, 0], atol=1e-5)
    assert set(played[:12]) == set(range(5)) and set(played[12:]) == {0, 1}
    runner.close()
    assert replay(tmp_path / "log").equal
    with pytest.raises(TrimtabError, match="candidates: 3 is no choice of the policy; take 5, 2"):
        load_policy(chosen, limits=NO_LIMITS).reset(candidates=3)
    # The weights stand in the graph once.
    names = [one.name for one in onnx.load(chosen / "policy.onnx").graph.initializer]
    assert sum("obs_layer.weight" in name for name in names) == 1
    assert "5, 2; 5 by default" in (chosen / "README.md").read_text()


def test_rows_of_a_batch_choose_for_themselves() -> None:
    """Steps and schedulers, in torch: each row is that of a policy with its settings alone."""
    base = diffusion()
    choices = {"scheduler": [None, "unipc"], "sampling_steps": [4, 2]}
    policy = with_choices(base, choices)
    obs, noise = drawn((2, 3))
    scheduler, steps = numbers([0, 1] * 6), numbers([0, 0, 1, 1] * 3)
    with torch.no_grad():
        found = policy({"obs": obs, "scheduler": scheduler, "sampling_steps": steps}, noise)
        default = policy(obs, noise)
        for one, name in enumerate((None, "unipc")):
            for other, count in enumerate((4, 2)):
                alone = adjusted(base, {"scheduler": name, "sampling_steps": count})
                rows = (scheduler[:, 0] == one) & (steps[:, 0] == other)
                assert rows.sum() == 3
                assert torch.equal(found[rows], alone(obs, noise)[rows])
        assert torch.equal(default, base(obs, noise))
    assert policy.spec.parts["scheduler"].choices == ("none", "unipc")
    trailing = {"scheduler_settings": {"timestep_spacing": "trailing"}}
    own = with_choices(adjusted(base, {"scheduler": "unipc", **trailing}), {
        "scheduler": ["unipc", "ddim", None],
    })  # fmt: skip
    for one, name in enumerate(("unipc", "ddim", None)):
        alone = adjusted(base, {"scheduler": name, **(trailing if name else {})})
        assert own.variants[one].config() == alone.config()
    # One set of weights, also in a copy, and also after others are loaded.
    saved = {f"base.{name}" for name in base.state_dict()}
    saved |= {f"normalizer.{name}" for name in base.normalizer.state_dict()}
    assert policy.state_dict().keys() == saved
    policy = copy.deepcopy(policy)
    policy.load_state_dict({n: 1.5 * x for n, x in policy.state_dict().items()})
    for one in policy.variants:
        assert torch.equal(one.network.obs_layer.weight, policy.base.network.obs_layer.weight)


@pytest.mark.parametrize(
    ("policy", "choices", "words"),
    [
        (flow, {"samplingsteps": [1, 2]}, "did you mean sampling_steps"),
        (flow, {"candidates": [1, 2]}, "no such setting"),
        (flow, {"sampling_steps": [2, 2]}, "different numbers or texts"),
        (flow, {"sampling_steps": [2]}, "make 1 combinations; give 2 to 32"),
        (flow, {"sampling_steps": list(range(1, 40))}, "make 39 combinations; give 2 to 32"),
        (flow, {"sampling_steps": [2, 0]}, "from 1 to"),
        (diffusion, {"sampler": ["ddim", "ddpm"]}, "noise of different kinds"),
        (lambda: MixedPolicy(flow(), flow(1)), {MIX: [0.0, 1.0]}, "mix: is an input already"),
    ],
)
def test_choices_that_cannot_be(policy: Any, choices: dict[str, Any], words: str) -> None:
    with pytest.raises(TrimtabError, match=words) as caught:
        with_choices(policy(), choices)
    assert "\n" not in str(caught.value)


class GaussianVelocity(nn.Module):
    """The exact velocity of straight paths to a normal distribution: mean m, deviation s.

    ``E[a - e | x] = m + (t s^2 - (1 - t)) / ((1 - t)^2 + t^2 s^2) (x - t m)``.
    """

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.mean, self.variance = mean, deviation**2

    def condition(self, features: Tensor) -> Tensor:
        return features

    def forward(self, x: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        gain = (time * self.variance - (1 - time)) / ((1 - time) ** 2 + time**2 * self.variance)
        velocity: Tensor = self.mean + gain * (x - time * self.mean)
        return velocity


def test_a_mix_of_two_normal_distributions() -> None:
    """With one deviation, the mix is normal, and its mean lies between, in closed form."""
    policies: list[Policy] = []
    for mean in (-0.6, 0.5):
        policy = flow(sampling_steps=400)
        policy.network = GaussianVelocity(mean, 0.1)  # type: ignore[assignment]
        policies.append(policy)
    obs, noise = drawn((2, 3))
    mixed = MixedPolicy(*policies)
    for weight in (0.0, 0.3, 0.8, 1.0):
        mean = (1 - weight) * -0.6 + weight * 0.5
        found = mixed({"obs": obs, MIX: torch.full((12, 1), weight)}, noise)
        torch.testing.assert_close(found, (mean + 0.1 * noise).clamp(-1, 1), atol=5e-3, rtol=0)
    half = mixed({"obs": obs, MIX: torch.full((12, 1), 0.5)}, noise)
    assert torch.equal(mixed(obs, noise), half)


@pytest.mark.bits
def test_the_ends_of_a_mix_are_the_two_policies(
    mixed: Path, bundle_of: BundleOf, tmp_path: Path
) -> None:
    """Bit for bit as their own bundles, in as many steps."""
    runner = load_policy(mixed, limits=NO_LIMITS, log=tmp_path / "log")
    folders = bundle_of("flow"), mixed.parent / "second"
    obs, noise = drawn((4, 2), dim=6)
    for weight, folder in enumerate(folders):
        end = load_policy(folder, limits=NO_LIMITS)
        for row in range(len(obs)):
            runner.reset(noise=noise[row], mix=weight)
            end.reset(noise=noise[row])
            np.testing.assert_array_equal(runner.step(obs[row]), end.step(obs[row]))
    runner.reset(mix=0.3, sampling_steps=1)
    runner.step(obs[0])
    runner.close()
    assert replay(tmp_path / "log").equal
    # Between them, a single step follows the mean of both velocities.
    one, other = (load_bundle(folder).policy for folder in folders)
    with torch.no_grad():
        both = [policy.field(obs)(noise, torch.zeros(1)) for policy in (one, other)]
        expected = one.normalizer.raw_action(noise + 0.7 * both[0] + 0.3 * both[1])
    rows = {"obs": obs, MIX: numbers([3] * 12) / 10, "sampling_steps": numbers([1] * 12)}
    np.testing.assert_allclose(open_policy(mixed).predict(rows, noise), expected, atol=1e-5)
    assert load_bundle(mixed).config["training"]["mixed_with"] == load_bundle(folders[1]).hash[:10]


def scaled(policy: FlowPolicy) -> FlowPolicy:
    policy.normalizer.action_scale.mul_(0.5)
    return policy


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (flow, diffusion, "a flow and a diffusion policy predict different things"),
        (lambda: GaussianPolicy(SPEC), lambda: GaussianPolicy(SPEC), "two flow policies"),
        (flow, lambda: flow(spec=PolicySpec(11, 4, 3, (-1.0,) * 3, (1.0,) * 3)), "one length"),
        (flow, lambda: scaled(flow(1)), "scale actions differently"),
        (diffusion, lambda: diffusion(train_steps=10), "different noise levels"),
    ],
)
def test_policies_that_cannot_be_mixed(first: Any, second: Any, words: str) -> None:
    with pytest.raises(TrimtabError, match=words) as caught:
        MixedPolicy(first(), second())
    assert "\n" not in str(caught.value)


def test_a_mix_of_diffusion_policies_ends_at_both() -> None:
    one, other = diffusion(), diffusion(1)
    mixed = MixedPolicy(one, other)
    obs, noise = drawn((2, 3))
    for weight, end in ((0, one), (1, other)):
        assert torch.equal(mixed({"obs": obs, MIX: numbers([weight] * 12)}, noise), end(obs, noise))


def test_evaluate_takes_them(
    chosen: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ticket = drawn((5, 2, 3))[1][0].numpy()
    np.save(tmp_path / "ticket.npy", ticket)
    inputs = f"inputs={{candidates: 2, noise: {tmp_path / 'ticket.npy'}}}"
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(
            ["evaluate", f"policy={chosen}", "episodes=2", "backend=onnx", "format=json", inputs,
             f"out={tmp_path / 'out'}"]
        )  # fmt: skip
    assert ended.value.code == 0
    said = json.loads(capfd.readouterr().out)
    assert said["inputs"] == {"candidates": 2, "noise": ticket.tolist()}
    shown = [episode["return"] for episode in said["episodes"]]
    (name,) = read_episodes(tmp_path / "out" / "episodes.parquet")["policy"].unique().to_pylist()
    assert re.fullmatch("flow, noise=[0-9a-f]{8}, candidates=2", name)

    def returns(**chosen_inputs: Any) -> list[float]:
        scores = trimtab.evaluate(chosen, episodes=2, backend="torch", inputs=chosen_inputs)
        return [episode.return_ for episode in scores.episodes]

    np.testing.assert_allclose(returns(candidates=2, noise=ticket), shown, rtol=1e-3)
    # Two of the candidates are those of the ticket's first two noises alone.
    other = np.concatenate([ticket[:2], -ticket[2:]])
    np.testing.assert_array_equal(
        returns(candidates=2, noise=other), returns(candidates=2, noise=ticket)
    )
    assert returns(noise=-ticket) != returns(noise=ticket)
    (tmp_path / "no.npy").write_bytes(b"no array")
    for given, words in (
        ("sampling_steps: 1", "no input 'sampling_steps'; it has candidates, noise"),
        (f"noise: {tmp_path}/no.npy", "cannot be read as an array"),
    ):
        line = refused("evaluate", f"policy={chosen}", f"inputs={{{given}}}", capfd=capfd)
        assert words in line


@pytest.mark.slow
def test_a_server_begins_with_them_and_a_client_changes_them(mixed: Path) -> None:
    obs, noise = (rows.numpy() for rows in drawn((4, 2), dim=6))
    fixed = {"mix": 0.3, "sampling_steps": 1, "noise": noise[0]}
    runner = load_policy(mixed, limits=NO_LIMITS)
    with running(mixed, inputs=fixed) as served, connect(served.address, proxy=None) as client:
        client.recv(60)
        for changes in ({}, {"mix": 1.0}, {"sampling_steps": 3}):
            fixed |= changes
            runner.reset(**fixed)
            client.send(pack({"obs": obs[1], **changes}))
            answer = client.recv(60)
            assert isinstance(answer, bytes)
            np.testing.assert_array_equal(unpack(answer)["actions"][0], runner.step(obs[1]))
        client.send(pack({"obs": obs[1], "sampling_steps": 2}))
        assert client.recv(60) == (
            "request: input sampling_steps: 2 is no choice of the policy; take 3, 1"
        )
        with pytest.raises(TrimtabError, match="no input 'guidance'; it has mix, sampling_steps"):
            PolicyServer(served.process, inputs={"guidance": 3})


def test_export_says_what_it_cannot_make(
    chosen: Path, mixed: Path, bundle_of: BundleOf, tmp_path: Path, capfd: Any
) -> None:
    out, one = f"out={tmp_path / 'out'}", f"run={bundle_of('flow')}"
    for words, said in (
        ([one, out, "choices={sampling_steps: 2}"], "give lists, such as"),
        ([one, out, "choices={sampling_steps: [2"], "not YAML"),
        ([one, out, f"mix={mixed}"], "a flow and a choice policy predict different things"),
        ([one, f"{out}.pt2", f"mix={mixed}"], "a run or bundle alone"),
        ([f"run={chosen}", f"{out}.pt2"], "choices are branches of an ONNX graph"),
        ([f"run={chosen}", out, "policy.candidates=1"], "no such setting"),
    ):
        assert said in refused("export", *words, capfd=capfd)
        assert not list(tmp_path.iterdir())
