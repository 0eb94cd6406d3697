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
from trimtab.observations import Part
from trimtab.policies.agent import Agent, PolicyInputs
from trimtab.policies.base import Policy
from trimtab.policies.bundle.adjusting import adjustable, adjusted, with_choices
from trimtab.policies.bundle.bundle import load_bundle, save_bundle
from trimtab.policies.bundle.onnx_policy import open_policy
from trimtab.policies.bundle.withheld import withhold_weights
from trimtab.policies.kinds.best_of import BestOfPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.kinds.mixed import MIX, MixedPolicy
from trimtab.policies.registry import build_policy
from trimtab.policies.robot.replay import replay
from trimtab.policies.runtime import NO_LIMITS, load_policy
from trimtab.policies.serving.codec import pack, unpack
from trimtab.policies.serving.server import PolicyServer
from trimtab.types import PolicySpec

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
def tunable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mix of two policies, in two steps or one; they lie beside it, without graphs."""
    folder = tmp_path_factory.mktemp("tunable")
    for seed, name in enumerate(("first", "second")):
        one = diffusion(seed, sampler="ddpm", sampling_steps=2)
        save_bundle(one, folder / name, contract=CONTRACT, onnx=False)
    export_policy(
        str(folder / "first"), str(folder / "out"), mix=str(folder / "second"),
        choices={"sampling_steps": [2, 1]},
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
    deterministic: bool, tunable: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    plain = open_policy(tunable)
    ticket = np.random.default_rng(1).standard_normal((2, 2, 3), np.float32)
    runner = load_policy(tunable, deterministic=deterministic, limits=NO_LIMITS, log=log)
    observations = np.random.default_rng(2).normal(size=(6, 11)).astype(np.float32)
    chosen = {MIX: np.full((1, 1), 0.5), "sampling_steps": np.zeros((1, 1))}
    expected = [
        plain.predict({"obs": obs[None], **chosen}, ticket[None])[0, 0] for obs in observations[::2]
    ]

    def played() -> list[Any]:
        return [runner.step(obs) for obs in observations][::2]

    given = ticket.copy()
    runner.reset(5, noise=given)
    given[:] = 0.0  # the caller's array is the caller's
    runner.reset(5, mix=0.5)
    np.testing.assert_array_equal(played(), expected)
    runner.reset(5)  # as other inputs, it stays until another one is chosen
    np.testing.assert_array_equal(played(), expected)
    runner.reset(5, noise=None)
    free = played()
    assert not np.array_equal(free, expected)
    own = load_policy(tunable, deterministic=deterministic, limits=NO_LIMITS, seed=5)
    np.testing.assert_array_equal(free, [own.step(obs) for obs in observations][::2])
    runner.close()
    assert replay(log).equal and replay(log).ticks == 18


NOISY = PolicyInputs((2, 3))
MIXED = PolicyInputs((2, 3), {"mix": Part((1,), given=0.5)})
CHOOSING = PolicyInputs((2, 3), {"steps": Part((1,), given=0.0, choices=(5, 1))})


@pytest.mark.parametrize(
    ("read", "inputs", "words"),
    [
        (NOISY, {"noise": np.zeros(3)}, r"noise: has shape \(3,\); the policy's is \(2, 3\)"),
        (NOISY, {"noise": np.full((2, 3), np.nan)}, "input noise: must be finite"),
        (NOISY, {"noise": np.zeros((2, 3), object)}, "input noise: give a number"),
        (NOISY, {"noise": "ticket.npy"}, "input noise: give a number"),
        (MIXED, {"mix": True}, "input mix: give a number"),
        (NOISY, {"sampling_steps": 1}, "no input 'sampling_steps'; it has noise"),
        (PolicyInputs(), {"noise": np.zeros(0)}, "no input 'noise'; it has none"),
        (CHOOSING, {"steps": 2}, "steps: 2 is no choice of the policy; take 5, 1"),
        (CHOOSING, {"steps": True}, "steps: True is no choice"),
        (CHOOSING, {"steps": [[5], [5, 1]]}, "is no choice"),
    ],
)
def test_a_policy_that_has_no_such_setting_says_so(
    read: PolicyInputs, inputs: dict[str, Any], words: str
) -> None:
    agent = Agent(lambda obs, noise: noise, 1, read)
    with pytest.raises(TrimtabError, match=words) as caught:
        agent.set_inputs(inputs)
    assert "\n" not in str(caught.value)


def test_fewer_candidates_are_the_first_ones() -> None:
    """Against the best of all draws, each integrated and valued by itself."""
    policy = best_of()
    chosen = with_choices(policy, {"candidates": [5, 2]})
    obs, noise = drawn((5, 2, 3))
    for place, candidates in enumerate((5, 2)):
        with torch.no_grad():
            found = chosen({"obs": obs, "candidates": numbers([place] * 12)}, noise)
            played = []
            for row in range(len(obs)):
                one, chunks, values = obs[row : row + 1], [], []
                for number in range(candidates):
                    chunk, field = noise[row, number : number + 1], policy.base.field(one)
                    for step in range(2):
                        chunk = chunk + field(chunk, torch.tensor([step / 2])) / 2
                    chunks.append(chunk.clamp(-1, 1))
                    values.append(float(policy.value(one, chunks[-1]).min()))
                played.append(int(np.argmax(values)))
                torch.testing.assert_close(found[row], chunks[played[-1]][0])
        assert set(played) == set(range(candidates))


def test_a_graph_has_the_steps_and_the_mix_that_are_chosen(tunable: Path, tmp_path: Path) -> None:
    runner = load_policy(tunable, limits=NO_LIMITS, log=tmp_path / "log")
    first, second = (load_bundle(tunable.parent / name) for name in ("first", "second"))
    obs, noise = drawn((2, 2, 3))
    for weight, end in enumerate((first, second)):
        expected = {}
        for steps in (2, 1):
            with torch.no_grad():
                expected[steps] = adjusted(end.policy, {"sampling_steps": steps})(
                    obs, noise[:, :steps]
                )
            for row in range(3):
                runner.reset(noise=noise[row], mix=weight, sampling_steps=steps)
                np.testing.assert_allclose(
                    runner.step(obs[row]), expected[steps][row, 0], atol=1e-5
                )
        # Rows of a batch choose for themselves.
        rows = {"obs": obs, MIX: numbers([weight] * 12), "sampling_steps": numbers([0, 1, 1] * 4)}
        found = runner.predict(rows, noise)
        for row, steps in enumerate((2, 1, 1) * 4):
            np.testing.assert_allclose(found[row], expected[steps][row], atol=1e-5)
    runner.close()
    assert replay(tmp_path / "log").equal
    # Whoever gives whole rows gives numbers of choices; none is taken for the nearest.
    inside = load_bundle(tunable).policy
    for number in (-1, 0.5, 2):
        rows["sampling_steps"] = torch.full((12, 1), float(number))
        for act in (runner.predict, inside):
            with pytest.raises(
                TrimtabError, match="steps: give the number of a choice, from 0 to 1"
            ):
                act(rows, noise)
    # The weights stand in the graph once.
    names = [one.name for one in onnx.load(tunable / "policy.onnx").graph.initializer]
    assert sum("first.network.obs_layer.weight" in name for name in names) == 1
    assert "2, 1; 2 by default" in (tunable / "README.md").read_text()
    assert load_bundle(tunable).config["training"]["mixed_with"] == second.hash[:10]
    # Without weights, a choice is no setting: its default is a number that means nothing outside.
    box = load_bundle(withhold_weights(tunable, tmp_path / "box")).policy
    assert box.spec.parts["sampling_steps"].choices == (2, 1)
    assert adjustable(box) == {MIX: 0.5}


@pytest.mark.parametrize(
    ("kind", "settings", "choices"),
    [
        ("unet_diffusion", {}, [3, 2]),
        ("unet_diffusion", {"sampler": "ddim"}, [3, 1]),
        ("consistency", {"sampling_steps": 3}, [3, 2]),
        ("ddpm", {}, [4, 2]),
    ],
)
def test_every_sampler_follows_its_choice(
    kind: str, settings: dict[str, Any], choices: list[int], policy_of: Callable[[str], Policy]
) -> None:
    base = adjusted(policy_of(kind), settings)
    policy = with_choices(base, {"sampling_steps": choices})
    obs, noise = drawn(policy.noise_shape, dim=6)
    with torch.no_grad():
        for number, steps in enumerate(choices):
            alone = adjusted(base, {"sampling_steps": steps})
            rows = {"obs": obs, "sampling_steps": numbers([number] * 12)}
            expected = alone(obs, noise[:, : alone.noise_shape[0]])
            assert torch.equal(policy(rows, noise), expected)
            noise = noise + 1.0


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
        (
            lambda: flow(scheduler="euler"),
            {"scheduler_settings": [{"shift": 1.0}, {"shift": 2.0}]},
            "different numbers or texts",
        ),
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
        if weight in (0, 1):
            assert torch.equal(found, policies[int(weight)](obs, noise))
    half = mixed({"obs": obs, MIX: torch.full((12, 1), 0.5)}, noise)
    assert torch.equal(mixed(obs, noise), half)


def test_a_mix_follows_the_mean_of_both_velocities() -> None:
    both, (obs, noise) = (flow(), flow(1)), drawn((2, 3))
    policy = with_choices(MixedPolicy(*map(copy.deepcopy, both)), {"sampling_steps": [1, 2]})
    with torch.no_grad():
        chunk = noise
        for step in range(2):
            one, other = (end.field(obs)(chunk, torch.tensor([step / 2])) for end in both)
            chunk = chunk + (0.7 * one + 0.3 * other) / 2
        rows = {"obs": obs, MIX: torch.full((12, 1), 0.3), "sampling_steps": numbers([1] * 12)}
        torch.testing.assert_close(policy(rows, noise), both[0].normalizer.raw_action(chunk))


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


def test_a_mix_of_a_policy_with_itself_is_built_again() -> None:
    one = flow()
    config = MixedPolicy(one, one).config()
    assert config["first"] == config["second"] == one.config()
    assert build_policy(config).config() == config


def test_evaluate_takes_them(
    tunable: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ticket = drawn((2, 2, 3))[1][0].numpy()
    np.save(tmp_path / "ticket.npy", ticket)
    inputs = f"inputs={{sampling_steps: 1, noise: {tmp_path / 'ticket.npy'}}}"
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(
            ["evaluate", f"policy={tunable}", "episodes=2", "backend=onnx", "format=json", inputs,
             f"out={tmp_path / 'out'}"]
        )  # fmt: skip
    assert ended.value.code == 0
    said = json.loads(capfd.readouterr().out)
    assert said["inputs"] == {"sampling_steps": 1, "noise": ticket.tolist()}
    shown = [episode["return"] for episode in said["episodes"]]
    (name,) = read_episodes(tmp_path / "out" / "episodes.parquet")["policy"].unique().to_pylist()
    assert re.fullmatch("diffusion, mixed, noise=[0-9a-f]{8}, sampling_steps=1", name)

    def returns(noise: Any, **timed: Any) -> list[float]:
        chosen = {"sampling_steps": 1, "noise": noise}
        scores = trimtab.evaluate(tunable, episodes=2, backend="torch", inputs=chosen, **timed)
        return [episode.return_ for episode in scores.episodes]

    alone = returns(ticket)
    np.testing.assert_allclose(alone, shown, rtol=1e-3)
    # One step reads the first noise of the ticket alone.
    assert returns(np.concatenate([ticket[:1], -ticket[1:]])) == alone
    assert returns(-ticket) != alone
    assert returns(ticket, mode="receding") == pytest.approx(alone)  # in simulated time, too
    (tmp_path / "no.npy").write_bytes(b"no array")
    (tmp_path / "header.npy").write_bytes(b"\x93NUMPY\x01\x00\x0b\x00{'descr': (\n")
    for given, words in (
        ("guidance: 1", "no input 'guidance'; it has mix, sampling_steps, noise"),
        (f"noise: {tmp_path}/no.npy", "cannot be read as an array"),
        (f"noise: {tmp_path}/header.npy", "cannot be read as an array"),
    ):
        line = refused("evaluate", f"policy={tunable}", f"inputs={{{given}}}", capfd=capfd)
        assert words in line


@pytest.mark.slow
def test_a_server_begins_with_them_and_a_client_changes_them(tunable: Path) -> None:
    obs, noise = (rows.numpy() for rows in drawn((2, 2, 3)))
    fixed = {"mix": 0.3, "sampling_steps": 1, "noise": noise[0]}
    runner, number = load_policy(tunable, limits=NO_LIMITS), np.full((1, 1), 2, np.float32)
    with running(tunable, inputs=fixed) as served, connect(served.address, proxy=None) as client:
        client.recv(60)
        for changes in ({}, {"mix": 1.0}, {"sampling_steps": 2}):
            fixed |= changes
            runner.reset(**fixed)
            client.send(pack({"obs": obs[1], **changes}))
            answer = client.recv(60)
            assert isinstance(answer, bytes)
            np.testing.assert_array_equal(unpack(answer)["actions"][0], runner.step(obs[1]))
        with pytest.raises(TrimtabError, match="no input 'guidance'; it has mix, sampling_steps"):
            PolicyServer(served.process, inputs={"guidance": 3})
        for wrong, said in (
            ({"obs": obs[1], "sampling_steps": 3}, "input sampling_steps: 3 is no choice of the "
             "policy; take 2, 1"),
            ({"obs": obs[:1], "mix": number, "sampling_steps": number, "noise": noise[:1]},
             "observation part sampling_steps: give the number of a choice, from 0 to 1"),
        ):  # fmt: skip
            with connect(served.address, proxy=None) as other:
                other.recv(60)
                other.send(pack(wrong))
                assert other.recv(60) == f"request: {said}"


def test_export_says_what_it_cannot_make(tunable: Path, tmp_path: Path, capfd: Any) -> None:
    out, one = f"out={tmp_path / 'out'}", f"run={tunable.parent / 'first'}"
    others = {"control_rate": 50.0, "action_names": ["hip", "knee", "foot"]}
    for word in ("control_rate", "action_names"):
        contract = {**CONTRACT, word: others[word]}
        save_bundle(diffusion(1), tunable.parent / word, contract=contract, onnx=False)
    (foreign := tunable.parent / "others.ckpt").touch()
    for words, said in (
        ([f"run={foreign}", f"env={HOPPER}", out, "choices={a: [2, 1]}"], "is no bundle yet"),
        ([one, out, f"mix={tunable.parent / 'control_rate'}"], "the control rate is 125.0 of"),
        ([one, out, f"mix={tunable.parent / 'action_names'}"], "outputs: action is"),
        ([one, out, "choices=[]"], "give lists, such as"),
        ([one, out, "choices={sampling_steps: [2, 1]}", "policy.sampling_steps=3"], "among"),
        ([one, out, "choices={sampling_steps: 2}"], "give lists, such as"),
        ([one, out, "choices={sampling_steps: [2"], "not YAML"),
        ([one, out, f"mix={tunable}"], "a diffusion and a choice policy predict different things"),
        ([one, f"{out}.pt2", f"mix={tunable}"], "a run or bundle alone"),
        ([f"run={tunable}", f"{out}.pt2"], "choices are branches of an ONNX graph"),
        ([f"run={tunable}", out, "policy.sampling_steps=1"], "no such setting"),
    ):
        assert said in refused("export", *words, capfd=capfd)
        assert not list(tmp_path.iterdir())
