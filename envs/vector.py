"""Make copies of a task that are stepped together; the rest of the suite gets them only here."""

from __future__ import annotations

from typing import Any, Literal, overload

from trimtab.envs.engines.dict_vector import DictVectorEnv
from trimtab.envs.engines.episodes import EpisodeSeed, EpisodeVectorEnv
from trimtab.envs.engines.process_vector import ProcessVectorEnv
from trimtab.envs.engines.sync_vector import SyncVectorEnv
from trimtab.envs.engines.torch_vector import TorchVectorEnv
from trimtab.envs.registry import check_observations, own_vector
from trimtab.errors import TrimtabError

__all__ = ["make_vec", "make_vec_elsewhere", "simulator_device", "why_on_processor"]


def simulator_device(id: str, device: str, **options: Any) -> str:
    """Return where the simulations of a run on ``device`` are: there too if they can, or ``"cpu"``.

    Args:
        id: ``family/task``.
        device: torch's name of the run's device.
        options: as :func:`trimtab.envs.registry.make`.

    Raises:
        TrimtabError: as :func:`trimtab.envs.registry.make`.
    """
    own = own_vector(id, **options)
    return "cpu" if own is None else own.device_for(device)


def why_on_processor(id: str, device: str, **options: Any) -> str | None:
    """Return why the simulations of a run on a GPU are not there, if others of their kind can be.

    Args:
        id: as :func:`simulator_device`, with those that follow.
        device: as there.
        options: as there.

    Raises:
        TrimtabError: as there.
    """
    own, kind = own_vector(id, **options), device.split(":")[0]
    if own is None or kind not in own.devices or own.device_for(device) == device:
        return None
    if device not in own.devices:
        return f"{id} can be simulated on {', '.join(own.devices)}, and not on {device}"
    return f"{id} could be simulated on {device}, but JAX sees none here; install jax[cuda12]"


@overload
def make_vec(
    id: str,
    num_envs: int,
    *,
    seed: int,
    act_steps: int = ...,
    discount: float = ...,
    device: Literal["cpu"] = ...,
    episode_seed: EpisodeSeed | None = ...,
    threads: int | None = ...,
    observations: Literal["flat"] = ...,
    **options: Any,
) -> EpisodeVectorEnv: ...
@overload
def make_vec(
    id: str, num_envs: int, *, seed: int, device: Literal["cuda"], **more: Any
) -> TorchVectorEnv: ...
@overload
def make_vec(
    id: str, num_envs: int, *, seed: int, act_steps: int, device: str, **options: Any
) -> EpisodeVectorEnv | TorchVectorEnv: ...
@overload
def make_vec(
    id: str, num_envs: int, *, seed: int, observations: Literal["dict"], **more: Any
) -> DictVectorEnv: ...
@overload
def make_vec(
    id: str, num_envs: int, *, seed: int, observations: str, **more: Any
) -> EpisodeVectorEnv | DictVectorEnv: ...
def make_vec(
    id: str,
    num_envs: int,
    *,
    seed: int,
    act_steps: int = 1,
    discount: float = 1.0,
    device: str = "cpu",
    episode_seed: EpisodeSeed | None = None,
    threads: int | None = None,
    observations: str = "flat",
    **options: Any,
) -> EpisodeVectorEnv | DictVectorEnv | TorchVectorEnv:
    """Make ``num_envs`` copies of a task, stepped together.

    If the family has a vector environment of its own that knows the options, it is used. It gives
    the same trajectories to the last bit, and is faster.

    Args:
        id: ``family/task``.
        num_envs: number of copies N.
        seed: seed of all episodes: the seed of episode e of copy i is drawn from
            ``SeedSequence([seed, i, e])``.
        act_steps: actions per step; actions are always [N, act_steps, A].
        discount: discount of the rewards for each environment step inside a chunk.
        device: where the simulator runs: ``"cpu"``, or ``"cuda"`` if the family can run on a GPU.
            With ``"cuda"``, torch tensors on the GPU take the place of arrays.
        episode_seed: function that gives the seeds instead: ``episode_seed(i, e) -> int``.
        threads: number of threads that step the simulators, if the family's own vector environment
            has threads; with None it chooses the number. No result depends on it.
        observations: ``"flat"`` for [N, O], ``"dict"`` for a dictionary of the parts that
            ``EnvSpec.obs_parts`` names, such as goals.
        options: options of the environment, as in :func:`trimtab.envs.registry.make`.

    Returns:
        An ``EpisodeVectorEnv``; with ``device="cuda"`` a ``TorchVectorEnv``; with
        ``observations="dict"`` a ``DictVectorEnv``.

    Raises:
        TrimtabError: if an argument is out of range or unknown, or a package is not installed.
    """
    own = own_vector(id, **options)
    devices = ("cpu",) if own is None else own.devices
    if str(device) not in devices:
        raise TrimtabError(
            f"{id} runs on the {' or the '.join(devices)} only, got device={str(device)!r}; "
            f"use device={devices[0]}"
        )
    if threads is not None and (
        isinstance(threads, bool) or not isinstance(threads, int) or threads < 1
    ):
        raise TrimtabError(f"threads must be a whole number >= 1, got {threads!r}")
    arguments: dict[str, Any] = {
        "seed": seed,
        "act_steps": act_steps,
        "discount": discount,
        "episode_seed": episode_seed,
        "options": options,
    }
    check_observations(id, observations)
    if str(device) != "cpu":
        if observations == "dict":
            raise TrimtabError(f"{id}: observations=dict needs device=cpu, got {str(device)!r}")
        arguments["device"] = str(device)
    envs = (
        SyncVectorEnv(id, num_envs, **arguments)
        if own is None
        else own.make(id, num_envs, threads=threads, **arguments)
    )
    if observations == "dict":
        assert isinstance(envs, EpisodeVectorEnv)  # the devices were looked at above
        return DictVectorEnv(envs)
    assert isinstance(envs, EpisodeVectorEnv | TorchVectorEnv)
    return envs


def make_vec_elsewhere(
    id: str,
    num_envs: int,
    *,
    seed: int,
    global_seed: int,
    torch_threads: int,
    act_steps: int = 1,
    observations: str = "flat",
    **options: Any,
) -> ProcessVectorEnv:
    """Make copies of a task as :func:`make_vec` does, in another process, on its processors.

    That process has the environment variables and the import path of this one, so that it finds
    the same families and plug-ins. A task that a program registers by itself has to be in a module
    that its id names.

    Args:
        id: ``family/task``.
        num_envs: number of copies N.
        seed: seed of all episodes.
        global_seed: seed of the global generators of NumPy and torch in the process, for
            simulators that draw from them.
        torch_threads: number of threads that torch uses there.
        act_steps: actions per step; actions are always [N, act_steps, A].
        observations: ``"flat"`` or ``"dict"``.
        options: options of the environment.

    Raises:
        TrimtabError: as :func:`make_vec`, or if the process ends.
    """
    return ProcessVectorEnv(
        make_vec,
        id,
        num_envs,
        seed=seed,
        act_steps=act_steps,
        observations=observations,
        options=options,
        global_seed=global_seed,
        torch_threads=torch_threads,
    )
