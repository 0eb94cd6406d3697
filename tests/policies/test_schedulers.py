"""Schedulers of diffusers as tables, against diffusers' own loops."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.policies.bundle.bundle import check_bundle, load_bundle, save_bundle
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.networks.samplers import Table, TableSampler, cosine_alphas, cosine_schedule
from trimtab.policies.networks.scheduler_walk import SHORT
from trimtab.policies.networks.schedulers import diffusion_table, flow_table
from trimtab.types import PolicySpec

SHAPE = (3, 2)
SPEC = PolicySpec(4, *SHAPE, (-2.0, 0.0), (2.0, 3.0))
CONTRACT = {"env": "robotics/PointMaze_UMaze-v3", "control_rate": None, "act_steps": 1}
DIFFUSION = [
    "CogVideoXDDIMScheduler", "DDIMParallelScheduler", "DDIMScheduler", "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler", "DPMSolverSinglestepScheduler", "EDMDPMSolverMultistepScheduler",
    "EDMEulerScheduler", "EulerDiscreteScheduler", "HeunDiscreteScheduler", "IPNDMScheduler",
    "KDPM2DiscreteScheduler", "LMSDiscreteScheduler", "PNDMScheduler", "UniPCMultistepScheduler",
]  # fmt: skip
FLOW = [
    "DPMSolverMultistepScheduler", "DPMSolverSinglestepScheduler", "FlowMapEulerDiscreteScheduler",
    "FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler", "UniPCMultistepScheduler",
]  # fmt: skip
NOISE = ("EDM", "Heun", "KDPM2", "PNDM")
CHANCE = [
    "DDPMParallelScheduler", "DDPMScheduler", "DPMSolverSDEScheduler",
    "EulerAncestralDiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "LCMScheduler",
    "TCDScheduler", "UnCLIPScheduler", "FlowMatchLCMScheduler",
]  # fmt: skip


def sampler_of(table: Table) -> TableSampler:
    """Return a sampler of 64 bits, so that only diffusers' own constants have 32."""
    torch.set_default_dtype(torch.float64)
    try:
        return TableSampler(table)
    finally:
        torch.set_default_dtype(torch.float32)


def class_of(name: str) -> Any:
    return getattr(importlib.import_module("diffusers.schedulers"), name)


def guess(x: Tensor, time: Tensor) -> Tensor:
    """Return a nonlinear estimate that depends on time and is often outside what is clipped."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(6, 6, generator=generator, dtype=x.dtype)
    return (2 * torch.tanh(0.3 * x.flatten(1) @ weight + torch.sin(5 * time))).reshape(x.shape)


def noise(seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, *SHAPE, generator=generator, dtype=torch.float64)


def level_time(sigma: float, levels: int) -> float:
    trained = np.sqrt(1 / np.array(cosine_alphas(levels)) - 1)
    return float(np.interp(np.log(sigma), np.log(trained), np.arange(levels)))


def own_loop(scheduler: Any, start: Tensor, levels: int) -> Tensor:
    """Sample as diffusers' pipelines do, with :func:`guess` for the clean chunk, clipped."""
    state = start.reshape(16, 1, *SHAPE) * float(getattr(scheduler, "init_noise_sigma", 1.0))
    for call, t in enumerate(scheduler.timesteps):
        if hasattr(scheduler, "precondition_outputs"):
            scheduler.scale_model_input(state, t)
            sigma, data = float(scheduler.sigmas[call]), scheduler.config.sigma_data
            time = level_time(sigma, levels)
            clean = said(state / (1 + sigma**2) ** 0.5, time / levels)
            both = sigma**2 + data**2
            output = (clean - data**2 / both * state) / (sigma * data / both**0.5)
        elif not hasattr(scheduler, "add_noise"):  # IPNDM, whose networks predict velocities
            signal, rest = float(scheduler.alphas[call]), float(scheduler.betas[call])
            time = level_time(min(rest / max(signal, 1e-12), 1e9), levels)
            clean = said(state, time / levels)
            output = (signal * state - clean) / rest
        else:
            seen = scheduler.scale_model_input(state, t)
            output = clean = said(seen, float(t) / levels)
            if hasattr(scheduler, "state_in_first_order"):  # Heun and KDPM2 take noise
                first = scheduler.state_in_first_order or not hasattr(scheduler, "sigmas_interpol")
                sigmas = scheduler.sigmas if first else scheduler.sigmas_interpol
                output = (state - clean) / float(sigmas[scheduler.step_index])
            elif scheduler.config.prediction_type == "epsilon":
                alpha = float(scheduler.alphas_cumprod[int(t)])
                output = (state - alpha**0.5 * clean) / (1 - alpha) ** 0.5
        state = scheduler.step(output, t, state).prev_sample.double()
    return state[:, 0]


def said(x: Tensor, time: float) -> Tensor:
    return guess(x, torch.full((1,), time, dtype=x.dtype)).clamp(-1, 1)


def by_table(table: Any, start: Tensor) -> Tensor:
    """Sample by the table with a network whose noise leaves :func:`guess` for the clean chunk."""
    calls = iter(zip(table.signal, table.noise, strict=True))

    def field(x: Tensor, time: Tensor) -> Tensor:
        root, rest = next(calls)
        return (x - root * guess(x, time)) / rest

    return sampler_of(table)(field, start)


@pytest.mark.parametrize("steps", [5, 8])
@pytest.mark.parametrize("levels", [20, 100])
@pytest.mark.parametrize("name", DIFFUSION)
def test_a_table_is_the_schedulers_own_loop(name: str, levels: int, steps: int) -> None:
    kind, cosine = class_of(name), cosine_alphas(levels)
    takes = inspect.signature(kind).parameters
    settings = {
        "num_train_timesteps": levels, "beta_schedule": "squaredcos_cap_v2", "clip_sample": False,
        "prediction_type": "epsilon" if name.startswith(NOISE) else "sample",
        "sigma_min": (1 / cosine[0] - 1) ** 0.5, "sigma_max": (1 / cosine[-1] - 1) ** 0.5,
    }  # fmt: skip
    if not name.startswith("EDM"):
        del settings["sigma_min"], settings["sigma_max"]
    theirs = kind(**{key: value for key, value in settings.items() if key in takes})
    theirs.set_timesteps(steps)
    table, alpha = diffusion_table(name, {}, steps=steps, cosine=cosine)
    assert [len(row) for row in table.rows] == [*range(1, len(theirs.timesteps) + 2)]
    assert list(alpha) == (cosine if "Cog" not in name else theirs.alphas_cumprod.tolist())
    difference = by_table(table, noise()) - own_loop(theirs, noise(), levels)
    assert difference.abs().max() < 1e-6


@pytest.mark.parametrize("steps", [1, 4, 7])
@pytest.mark.parametrize("name", FLOW)
def test_a_flows_table_is_the_schedulers_own_loop(name: str, steps: int) -> None:
    kind = class_of(name)
    flow = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
    theirs = kind(**flow) if "use_flow_sigmas" in inspect.signature(kind).parameters else kind()
    theirs.set_timesteps(steps)
    state = noise().reshape(16, 1, *SHAPE)
    for t in theirs.timesteps:
        velocity = guess(state, torch.full((1,), 1 - float(t) / 1000))
        state = theirs.step(-velocity, t, state).prev_sample.double()
    sampler = sampler_of(flow_table(name, {}, steps=steps))
    assert (sampler(guess, noise()) - state[:, 0]).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dpmsolver++", {"solver_order": 3, "use_karras_sigmas": True}),
        ("unipc", {"solver_order": 3, "timestep_spacing": "leading"}),
        ("heun", {"use_karras_sigmas": True}),
        ("ddim", {"timestep_spacing": "linspace", "set_alpha_to_one": False}),
        ("deis", {"solver_order": 3, "beta_schedule": "linear", "beta_end": 0.5}),
        ("pndm", {"skip_prk_steps": True}),
        ("edm", {"sigma_schedule": "exponential", "final_sigmas_type": "sigma_min"}),
    ],
)
def test_settings_are_those_of_the_class(name: str, settings: dict[str, Any]) -> None:
    cosine = cosine_alphas(20)
    table, alpha = diffusion_table(name, settings, steps=6, cosine=cosine)
    plain, _ = diffusion_table(name, {}, steps=6, cosine=cosine)
    assert table != plain
    assert (list(alpha) == cosine) == ("beta_schedule" not in settings)


def test_levels_are_those_of_the_noise_that_is_in_a_state() -> None:
    cosine = cosine_alphas(20)
    for name in ("ddim", "dpmsolver++", "unipc", "euler", "heun", "kdpm2", "lms"):
        table, _ = diffusion_table(name, {}, steps=5, cosine=cosine)
        for time, root, rest in zip(table.times, table.signal, table.noise, strict=True):
            assert level_time(rest / root, 20) / 20 == pytest.approx(time, abs=0.04), name
            assert root**2 + rest**2 == pytest.approx(1)


def test_ddim_of_diffusers_is_the_one_written_out() -> None:
    table, _ = diffusion_table("ddim", {}, steps=5, cosine=cosine_alphas(20))
    ours = cosine_schedule("ddim", 20, 5)
    difference = sampler_of(table)(guess, noise()) - ours(guess, noise())
    assert difference.abs().max() < 1e-6


@pytest.mark.parametrize("name", [*CHANCE, "dpmsolver++"])
def test_chance_is_refused_with_what_to_take(name: str) -> None:
    settings = {"algorithm_type": "sde-dpmsolver++"} if name == "dpmsolver++" else {}
    for steps in (2, 5):
        with pytest.raises(TrimtabError, match="draws noise") as caught:
            if "Flow" in name:
                flow_table(name, settings, steps=steps)
            else:
                diffusion_table(name, settings, steps=steps, cosine=cosine_alphas(100))
        assert name in str(caught.value) and "\n" not in str(caught.value)


def test_every_scheduler_has_a_table_or_one_line() -> None:
    library = importlib.import_module("diffusers.schedulers")
    names = [name for name in dir(library) if name.endswith("Scheduler")]
    assert len(names) > 30
    tables: dict[str, list[str]] = {"diffusion": [], "flow": []}
    makers: dict[str, Callable[[str], object]] = {
        "diffusion": lambda name: diffusion_table(name, {}, steps=5, cosine=cosine_alphas(20)),
        "flow": lambda name: flow_table(name, {}, steps=5),
    }
    for kind, make in makers.items():
        for name in names:
            try:
                make(name)
                tables[kind].append(name)
            except TrimtabError as error:
                assert "\n" not in str(error) and name in str(error)
    # SASolver has its noise between the timesteps 200 and 800, which 20 levels do not reach.
    assert [name for name in tables["diffusion"] if name != "SASolverScheduler"] == DIFFUSION
    assert tables["flow"] == FLOW
    assert {class_of(name).__name__ for name in SHORT.values()} <= {*DIFFUSION, *FLOW}


@pytest.mark.parametrize(
    ("policy", "keywords", "word"),
    [
        (DiffusionPolicy, {"scheduler": "unpc"}, "did you mean unipc"),
        (DiffusionPolicy, {"scheduler": "ddpm"}, "policy.sampler=ddpm"),
        (DiffusionPolicy, {"scheduler": "flow_euler"}, "policy=flow"),
        (DiffusionPolicy, {"scheduler": "DDIMInverseScheduler"}, "finite|clean action"),
        (DiffusionPolicy, {"scheduler": "unipc", "sampler": "ddpm"}, "sampler=ddpm"),
        (DiffusionPolicy, {"scheduler_settings": {"solver_order": 3}}, "policy.scheduler"),
        (DiffusionPolicy, {"scheduler": "unipc", "scheduler_settings": {"oder": 3}}, "'oder'"),
        (DiffusionPolicy, {"scheduler": "ddim", "sampling_steps": 30}, "30"),
        (
            DiffusionPolicy,
            {"scheduler": "ddim", "scheduler_settings": {"clip_sample": False}},
            "clip_sample=False: clean estimates are always clipped",
        ),
        (
            DiffusionPolicy,
            {"scheduler": "ddim", "scheduler_settings": {"num_train_timesteps": 50}},
            "policy.train_steps=20",
        ),
        (
            DiffusionPolicy,
            {"scheduler": "ddim", "scheduler_settings": {"prediction_type": "v_prediction"}},
            "predicts the noise",
        ),
        (
            DiffusionPolicy,
            {"scheduler": "ddim", "scheduler_settings": {"rescale_betas_zero_snr": True}},
            "rescale_betas_zero_snr",
        ),
        (
            DiffusionPolicy, {"scheduler": "pndm", "sampling_steps": 3},
            "sampling_steps=3",
        ),
        (DiffusionPolicy, {"scheduler": "no.json"}, "no.json does not exist"),
        (FlowPolicy, {"scheduler": "ddim"}, "policy=diffusion"),
        (FlowPolicy, {"scheduler": "lcm"}, "no such scheduler"),
    ],
)  # fmt: skip
def test_wrong_schedulers_are_said_in_one_line(
    policy: Any, keywords: dict[str, Any], word: str
) -> None:
    with pytest.raises(TrimtabError, match=word) as caught:
        policy(SPEC, hidden=(8,), **keywords)
    assert "\n" not in str(caught.value)


def test_a_file_of_diffusers_is_read_with_its_settings(tmp_path: Path) -> None:
    theirs = class_of("UniPCMultistepScheduler")(
        num_train_timesteps=20, beta_schedule="squaredcos_cap_v2", solver_order=3
    )
    theirs.save_pretrained(tmp_path)
    file = str(tmp_path / "scheduler_config.json")
    policy = DiffusionPolicy(SPEC, hidden=(8,), scheduler=file)
    named = DiffusionPolicy(
        SPEC, hidden=(8,), scheduler="unipc", scheduler_settings={"solver_order": 3}
    )
    assert policy.sampler.table == named.sampler.table
    assert policy.config()["scheduler"] == "UniPCMultistepScheduler"
    assert DiffusionPolicy.settled({"scheduler": file})["scheduler_settings"]["solver_order"] == 3
    Path(file).write_text(json.dumps({"solver_order": 3}))
    with pytest.raises(TrimtabError, match="_class_name"):
        DiffusionPolicy(SPEC, hidden=(8,), scheduler=file)


def test_few_steps_that_do_not_begin_with_noise_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    DiffusionPolicy(SPEC, hidden=(8,), scheduler="euler", sampling_steps=1)
    assert "timestep_spacing=trailing" in caplog.text
    caplog.clear()
    trailing = {"timestep_spacing": "trailing"}
    DiffusionPolicy(
        SPEC, hidden=(8,), scheduler="euler", sampling_steps=1, scheduler_settings=trailing
    )
    assert not caplog.text


WITHOUT_DIFFUSERS = """
import sys
sys.modules["diffusers"] = None  # an import of it fails
from trimtab.errors import TrimtabError
from trimtab.policies.bundle.bundle import check_bundle, load_bundle
from trimtab.policies.kinds.diffusion import DiffusionPolicy
for folder in sys.argv[1:]:
    assert check_bundle(folder).keys() == {"torch", "onnx"}
spec = load_bundle(folder).policy.spec
try:
    DiffusionPolicy(spec, scheduler="unipc")
except TrimtabError as error:
    assert "pip install 'trimtab[diffusers]'" in str(error), error
else:
    raise AssertionError("a table was made")
"""


def test_a_saved_policy_opens_and_replays_without_diffusers(tmp_path: Path) -> None:
    made = {
        "linear": DiffusionPolicy(
            SPEC, hidden=(16,), scheduler="unipc", sampling_steps=3,
            scheduler_settings={"beta_schedule": "linear", "beta_end": 0.4},
        ),
        "flow": FlowPolicy(SPEC, hidden=(16,), scheduler="heun", sampling_steps=2),
    }  # fmt: skip
    for name, policy in made.items():
        errors = check_bundle(save_bundle(policy, tmp_path / name, contract=CONTRACT))
        assert errors["onnx"] < 1e-3  # and within what the bundle itself allows
        again = load_bundle(tmp_path / name).policy
        assert isinstance(again, DiffusionPolicy | FlowPolicy)
        assert again.sampler.table == policy.sampler.table
    loaded = load_bundle(tmp_path / "linear").policy
    assert torch.equal(loaded.alpha, made["linear"].alpha)
    assert loaded.alpha[-1] != DiffusionPolicy(SPEC, hidden=(16,)).alpha[-1]
    folders = [str(tmp_path / name) for name in made]
    subprocess.run([sys.executable, "-c", WITHOUT_DIFFUSERS, *folders], check=True)
