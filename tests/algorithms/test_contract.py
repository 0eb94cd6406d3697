"""What every algorithm keeps to; the registry is ``conf/algorithm``, and all of it is tested."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.benchmarks.contracts import methods
from trimtab.benchmarks.contracts.base import difference
from trimtab.benchmarks.contracts.methods import Subject, explores
from trimtab.benchmarks.training.settings.catalog import NO_PAPER, describe_algorithm
from trimtab.benchmarks.training.settings.groups import heading
from trimtab.settings import keywords_of
from trimtab.types import Batch, Rollout, TrimtabError

FILES = sorted((Path(__file__).resolve().parents[2] / "conf" / "algorithm").glob("*.yaml"))
SetupOf = Callable[..., Setup]
BatchOf = Callable[..., Batch]
DataOf = Callable[..., Batch | Rollout]
SMALL = {"hidden": [16, 16], "rollout_steps": 8, "batch_size": 8, "epochs": 2} | {
    "embedding": 16,
    "value_hidden": [16],
    "value_steps": 2,
    "value_rows": 64,
    "pretraining_updates": 0,
    "context": 4,
    "actor_width": 16,
    "critic_width": 16,
    "critic_hidden": [16, 16],
    "target_every": 3,
    "behaviour_epochs": 2,
    "behaviour_minibatches": 4,
    "policy_hidden": [16, 16],
    "student_hidden": [16, 16],
    "actor_hidden": [16, 16],
    "noise_hidden": [16],
    "vae_hidden": [16],
    "train_steps": 5,
    "sampling_steps": 5,
    "diffusion_steps": 4,
    "action_candidates": 4,
    "references": 64,
    "kl_samples": 4,
    "pairs": 4,
}
# What they do looks at numbers by its nature, so that it cannot run where there are none.
LOOKS = {
    "trpo": "its line search compares the surrogate and the divergence of each trial",
    "hnpg": "its line search is trpo's",
    "sb3_ppo": "Stable-Baselines3's own train() makes its tensors from arrays",
    "sb3_sac": "Stable-Baselines3's own train() makes its tensors from arrays",
    "sb3_td3": "Stable-Baselines3's own train() makes its tensors from arrays",
}


def chosen(file: Path) -> tuple[Any, dict[str, Any]]:
    """The class and the keywords of a settings file, with networks cut to a testable width.

    Where one step is the usual number, it stays.
    """
    section: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    keywords = section["algorithm"]
    kind = get_class(keywords.pop("_target_"))
    known = keywords_of(kind)
    small = {key: value for key, value in SMALL.items() if key in known}
    return kind, keywords | {key: value for key, value in small.items() if known[key].default != 1}


def subject_of(file: Path, setup_of: SetupOf, plan: int = 4) -> Subject:
    """The method of one settings file, whose base plans more actions than are executed."""
    kind, keywords = chosen(file)

    def make(seed: int, device: str) -> Algorithm:
        setup = setup_of(kind.needs.required, plan=plan, start=kind.needs.base_kind, device=device)
        torch.manual_seed(seed)
        np.random.seed(seed)
        algorithm: Algorithm = kind(setup, **keywords)
        return algorithm

    return Subject(make, file.stem)


def same(first: Any, second: Any) -> bool:
    """Whether two nested states are equal to the last bit."""
    return difference(first, second) is None


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every value of a nested state with its path."""
    if isinstance(value, Mapping):
        return [leaf for k, v in value.items() for leaf in leaves(v, f"{path}/{k}")]
    if isinstance(value, list | tuple):
        return [leaf for k, v in enumerate(value) for leaf in leaves(v, f"{path}/{k}")]
    return [(path, value)]


def test_there_are_settings_files() -> None:
    assert {"bc", "sac", "dsrl_sac", "dsrl_na", "frozen"} <= {file.stem for file in FILES}
    assert LOOKS.keys() <= {file.stem for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_settings_file_names_a_method(file: Path) -> None:
    kind, _ = chosen(file)
    assert issubclass(kind, Algorithm) and kind.__module__.startswith("trimtab.algorithms.")
    target = f"{kind.__module__}.{kind.__qualname__}"
    _, paper = describe_algorithm(target, heading("algorithm", file.stem))
    assert paper != NO_PAPER, f'{kind.__module__}: cite its paper as "Title" (arXiv NNNN.NNNNN)'


def test_a_gpu_replays_what_learns_from_batches_or_minibatches() -> None:
    kinds = {file.stem: chosen(file)[0] for file in FILES}
    # A class says so for itself; what a parent says does not count.
    replayed = {name for name, kind in kinds.items() if vars(kind).get("capturable", False)}
    nothing = {"frozen", "golden_ticket", "repeated_noise", "zero_noise"}
    whole = {"diffusion_rwr", "mdpo"}  # they learn from rollouts as a whole
    assert not replayed & (nothing | whole | LOOKS.keys())
    assert len(replayed) >= 80


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(name, marks=[] if name == "device" else pytest.mark.bits)
        for name in methods.CHECKS
        if name != "export"
    ],
)
@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_it_keeps_the_contract(file: Path, check: str, setup_of: SetupOf) -> None:
    """That its policy becomes a whole bundle is tested once for each kind of policy.

    The device that is checked has shapes and no numbers, so no processor decides what is found.
    """
    if check == "device" and file.stem in LOOKS:
        return
    assert methods.CHECKS[check](subject_of(file, setup_of))


@pytest.mark.bits
@pytest.mark.parametrize("check", ["seeds", "exploring"])
@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_it_keeps_the_contract_with_a_base_that_plans_no_further(
    file: Path, check: str, setup_of: SetupOf
) -> None:
    assert methods.CHECKS[check](subject_of(file, setup_of, plan=2))


@pytest.mark.parametrize("plan", [2, 4])
@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_what_is_judged_is_rebuilt(file: Path, plan: int, setup_of: SetupOf) -> None:
    subject = subject_of(file, setup_of, plan)
    policy = methods.rebuilt(subject.taught(0, 1).policy, subject.spec)
    assert (policy.spec.action_low, policy.spec.action_high) == ((-1.0, -0.5), (1.0, 2.0))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_state_is_plain(file: Path, setup_of: SetupOf) -> None:
    for path, value in leaves(subject_of(file, setup_of).taught(0, 1).state_dict()):
        assert value is None or isinstance(value, torch.Tensor | int | float | str), path


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_one_that_cannot_explore_says_so(file: Path, setup_of: SetupOf, batch_of: BatchOf) -> None:
    algorithm = subject_of(file, setup_of).make(0, "cpu")
    if not explores(algorithm):
        with pytest.raises(TrimtabError, match="online_steps=0"):
            algorithm.explore(batch_of(algorithm).obs, warmup=False)


@pytest.mark.parametrize(
    "file", [f for f in FILES if "base" in chosen(f)[0].needs.required], ids=lambda f: f.stem
)
def test_leaves_the_base_as_it_is(file: Path, setup_of: SetupOf) -> None:
    algorithm = subject_of(file, setup_of).taught(0, 3)
    given = setup_of({"base"}).base
    assert given is not None
    # A student's weights are its own: the base that it learns from is its teacher.
    held = getattr(algorithm, "teacher", algorithm.policy).state_dict()
    for name, value in given.state_dict().items():
        assert torch.equal(held[name] if name in held else held[f"base.{name}"], value), name


@pytest.mark.parametrize(
    "file", [f for f in FILES if "start" in chosen(f)[0].needs.required], ids=lambda f: f.stem
)
def test_learns_on_a_copy_of_its_start(data_of: DataOf, setup_of: SetupOf, file: Path) -> None:
    kind, keywords = chosen(file)
    setup = setup_of({"start"}, start=kind.needs.base_kind)
    assert setup.base is not None
    before = copy.deepcopy(setup.base.state_dict())
    algorithm = kind(setup, **keywords)
    for step in range(3):
        algorithm.update(data_of(algorithm, seed=step))
    assert same(before, setup.base.state_dict())
