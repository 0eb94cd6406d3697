"""Open the policy of a run or a bundle, as a robot runs it."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

from trimtab.errors import TrimtabError, one_line_on_wrong_arguments
from trimtab.policies import runtime
from trimtab.policies.bundle.files import (
    CONFIG,
    GOLDEN,
    MODEL,
    ONNX,
    Contract,
    read_files,
    read_golden,
)
from trimtab.policies.runtime import NO_LIMITS, PolicyRunner

__all__ = ["bundle_folder", "load_policy"]


@one_line_on_wrong_arguments
def load_policy(
    policy: str | os.PathLike[str],
    *,
    seed: int = 0,
    deterministic: bool | None = None,
    **settings: Any,
) -> PolicyRunner:
    """Open a bundle, or the policy of a run, check all of it, and return it ready to run.

    A bundle that ``trimtab export`` made needs numpy and onnxruntime alone. A run's own policy has
    no graph; it is made in memory, which takes seconds and needs torch. A bundle need not state
    limits here; where it does, ``step`` keeps them.

    Args:
        policy: folder of a bundle or of a run, or what ``trimtab.train`` returned.
        seed: seed of the noise.
        deterministic: zero noise if True, sampled if False; None takes the setting with which the
            policy is judged.
        **settings: of how the policy acts, that differ from its training, such as
            ``sampling_steps=2``. They need torch and a bundle with weights.

    Raises:
        TrimtabError: if there is no policy, a file is missing or was changed, or onnxruntime does
            not give the golden actions within 1e-4.

    Example:
        >>> runner = trimtab.load_policy("runs/gym/Hopper-v5/sac/1a2b3c4d5e/seed0")
        >>> runner.reset(action=positions)  # needed where the bundle limits rates
        >>> action = runner.step(observation)
    """
    folder = bundle_folder(policy)
    of_robots = sorted(settings.keys() & inspect.signature(runtime.load_policy).parameters.keys())
    if of_robots:
        raise TrimtabError(
            f"load_policy: {of_robots[0]}: is a setting of a robot; export a bundle, and open it "
            "by trimtab.policies.runtime.load_policy"
        )
    if settings:
        from trimtab.policies.bundle.adjusting import adjusted_graph
        from trimtab.policies.bundle.bundle import open_bundle

        contract, graph, golden = adjusted_graph(open_bundle(folder), settings)
        runner = PolicyRunner(
            contract, graph, f"bundle {folder}", seed=seed, deterministic=deterministic
        )
        runner.check(golden)
        return runner
    if (folder / ONNX).is_file() or not (folder / MODEL).is_file():
        return runtime.load_policy(folder, seed=seed, deterministic=deterministic, limits=NO_LIMITS)
    config, files = read_files(folder)
    contract = Contract.parse(config, f"bundle {folder}")
    graph = _graph_of(folder)
    runner = PolicyRunner(
        contract, graph, f"bundle {folder}", seed=seed, deterministic=deterministic
    )
    runner.check(read_golden(files[GOLDEN], contract, str(folder / GOLDEN)))
    return runner


def _graph_of(folder: Path) -> bytes:
    """Return the graph of a bundle that has none."""
    try:
        from trimtab.policies.bundle.bundle import open_bundle
        from trimtab.policies.bundle.onnx_export import export_onnx
        from trimtab.policies.defaults import torch_defaults
    except ModuleNotFoundError as error:
        raise TrimtabError(
            f"{folder}: has no {ONNX}, and {error.name}, which would make it, is not installed; "
            "make a complete bundle by trimtab export where the run was trained"
        ) from error
    with torch_defaults():
        return export_onnx(open_bundle(folder).policy, {})


def bundle_folder(policy: str | os.PathLike[str]) -> Path:
    """Return the folder of a bundle that a path names, itself or a run's.

    Raises:
        TrimtabError: if there is none.
    """
    if not isinstance(policy, str | os.PathLike):
        raise TrimtabError(
            f"load_policy: policy is of type {type(policy).__name__}; give the folder of a bundle "
            "or of a run"
        )
    folder = Path(policy)
    if not folder.is_dir():
        raise TrimtabError(
            f"load_policy: there is no folder {folder}; give the folder of a bundle or of a run"
        )
    inside = folder / "policy"
    if not (inside / CONFIG).is_file():
        if (folder / "provenance.json").is_file():
            raise TrimtabError(f"{folder} is a run that has no policy yet; finish it first")
        return folder
    return inside
