"""Any deterministic scheduler of diffusers as a sampler: a table of numbers.

The table is found by one walk through the scheduler (``scheduler_walk.py``) and saved with its
policy. It is the sampler then. So diffusers is needed only to make a table, and neither to load a
policy nor on a robot.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.errors import TrimtabError, nearest
from trimtab.files import read_json
from trimtab.policies.networks.samplers import Euler, Table, TableSampler
from trimtab.policies.networks.scheduler_walk import (
    SHORT,
    Output,
    PredictionType,
    Walk,
    clean,
    epsilon,
    in_a_line,
    preconditioned,
    velocity,
)

__all__ = [
    "LEVELS", "check_alone", "diffusion_sampler", "diffusion_table", "flow_sampler", "flow_table",
    "readjusted_scheduler", "settled_scheduler",
]  # fmt: skip

logger = logging.getLogger(__name__)

LEVELS = ("beta_schedule", "beta_start", "beta_end", "trained_betas", "rescale_betas_zero_snr")
"""Settings that decide on which noise levels the network is trained."""

Numbers = Mapping[str, Any]
"""A saved table, as JSON."""

_OWN = {
    "clip_sample": (True, "clean estimates are always clipped"),
    "clip_sample_range": (1.0, "clean estimates are always clipped to 1"),
    "thresholding": (False, "clean estimates are clipped to 1 in its place"),
    "prediction_type": ("epsilon", "the network of a diffusion policy predicts the noise"),
    "use_flow_sigmas": (False, "is for policy=flow"),
}
"""What scheduler_config.json may say of a diffusion policy's own part, and why no more."""
_FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
_MOSTLY_CLEAN = 0.9  # share of the signal at the first call


def settled_scheduler(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's settings with those of a ``scheduler_config.json`` in place of its path.

    Args:
        settings: ``scheduler`` is a short name, a class of diffusers, a path, or None;
            ``scheduler_settings`` are those that differ from the class's, or from the file's.

    Raises:
        TrimtabError: if the file cannot be read or names no class.
    """
    name = settings.get("scheduler")
    if not (isinstance(name, str) and name.endswith(".json")):
        empty = settings.get("scheduler_settings") == {}
        return {**settings, "scheduler_settings": None} if empty else dict(settings)
    found = read_json(Path(name).expanduser(), f"policy.scheduler={name}")
    known = found.get("_class_name") if isinstance(found, dict) else None
    if not isinstance(known, str) or known.endswith(".json"):
        raise TrimtabError(
            f"policy.scheduler={name}: names no scheduler as _class_name; give the file that "
            "save_pretrained of a scheduler of diffusers wrote"
        )
    own = {key: value for key, value in found.items() if not key.startswith("_")}
    own |= settings.get("scheduler_settings") or {}
    return {**settings, "scheduler": known, "scheduler_settings": own}


def readjusted_scheduler(
    config: dict[str, Any], before: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the config of a trained policy with the scheduler's settings put right.

    Another scheduler takes over none of the old one's settings but those of the noise levels that
    the policy was trained on (:data:`LEVELS`); the same one keeps those that are not changed.

    Args:
        config: with the changes in it.
        before: without them.
        changes: to ``scheduler``, ``scheduler_settings`` and others.

    Raises:
        TrimtabError: as :func:`settled_scheduler`.
    """
    kept = dict(before.get("scheduler_settings") or {})
    if "scheduler" in changes:
        kept = {key: value for key, value in kept.items() if key in LEVELS}
    config["scheduler_settings"] = {**kept, **(changes.get("scheduler_settings") or {})}
    if config.get("scheduler") is None and not changes.get("scheduler_settings"):
        config.pop("scheduler_settings")
    return settled_scheduler(config)


def diffusion_sampler(
    steps: int,
    scheduler: str,
    settings: Mapping[str, Any] | None,
    saved: Numbers | None,
    cosine: Sequence[float],
) -> tuple[TableSampler, Sequence[float], dict[str, Any]]:
    """Return a sampler for a network that predicts noise.

    Args:
        steps: sampling steps; schedulers of second order call the network more often.
        scheduler: as for :func:`settled_scheduler`.
        settings: likewise.
        saved: the table, where it was made before.
        cosine: ``alpha`` of the levels that the network is trained on, the share of the signal's
            variance that is left, from the cleanest on; unless the settings say others
            (:data:`LEVELS`).

    Returns:
        The sampler, ``alpha``, and the keywords with which a policy makes it again.

    Raises:
        TrimtabError: if diffusers is missing, there is no such scheduler or setting, it draws
            noise, or is no sampler of such a network.
    """
    name, given = _settled(scheduler, settings)
    if saved is None:
        table, alpha = diffusion_table(name, given, steps=steps, cosine=cosine)
        if table.signal[0] > _MOSTLY_CLEAN:
            logger.warning(
                "policy.scheduler=%s: with sampling_steps=%d it begins at a level that is %.0f%% "
                "signal, and not with noise; with policy.scheduler_settings.timestep_spacing="
                "trailing it begins with noise", name, steps, 100 * table.signal[0],
            )  # fmt: skip
    else:
        table, alpha = Table.of(saved), saved.get("alpha", cosine)
    if len(alpha) != len(cosine) or not table.signal:
        raise TrimtabError("policy.table: is of another policy; leave it out")
    keywords = _keywords(name, given, table, saved)
    if list(alpha) != list(cosine):
        keywords["table"]["alpha"] = list(alpha)
    return TableSampler(table), alpha, keywords


def flow_sampler(
    steps: int,
    scheduler: str | None,
    settings: Mapping[str, Any] | None,
    saved: Numbers | None,
) -> tuple[Euler | TableSampler, dict[str, Any]]:
    """Return what integrates a velocity, and the keywords with which a policy makes it again.

    Args:
        steps: sampling steps.
        scheduler: as for :func:`settled_scheduler`; None: Euler's method in equal steps.
        settings: likewise.
        saved: the table, where it was made before.

    Raises:
        TrimtabError: as :func:`diffusion_sampler`, or if there are settings and no scheduler.
    """
    if scheduler is None:
        check_alone(settings, saved)
        return Euler(steps), {}
    name, given = _settled(scheduler, settings)
    table = flow_table(name, given, steps=steps) if saved is None else Table.of(saved)
    if table.signal:
        raise TrimtabError("policy.table: is of another policy; leave it out")
    return TableSampler(table), _keywords(name, given, table, saved)


def check_alone(settings: Mapping[str, Any] | None, saved: Numbers | None) -> None:
    """Refuse what belongs to a scheduler where there is none.

    Raises:
        TrimtabError: if there are settings or a table.
    """
    if settings or saved:
        raise TrimtabError("policy.scheduler_settings: are of a scheduler; give policy.scheduler=…")


def _settled(scheduler: str, settings: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    found = settled_scheduler({"scheduler": scheduler, "scheduler_settings": settings})
    return found["scheduler"], dict(found["scheduler_settings"] or {})


def _keywords(
    name: str, settings: Mapping[str, Any], table: Table, saved: Numbers | None
) -> dict[str, Any]:
    made_by = importlib.metadata.version("diffusers") if saved is None else saved.get("diffusers")
    told = {**table.to_json(), "diffusers": made_by}
    return {"scheduler": name, "scheduler_settings": dict(settings) or None, "table": told}


def diffusion_table(
    name: str, settings: Mapping[str, Any], *, steps: int, cosine: Sequence[float]
) -> tuple[Table, Sequence[float]]:
    """Return a scheduler's table for a network that predicts noise, and the levels' ``alpha``.

    Args:
        name: a short name, or a class of diffusers.
        settings: of the class.
        steps: what ``set_timesteps`` is given.
        cosine: as for :func:`diffusion_sampler`.

    Raises:
        TrimtabError: as :func:`diffusion_sampler`.
    """
    where, kind = f"policy.scheduler={name}", _class_of(name)
    takes = inspect.signature(kind).parameters
    if not hasattr(kind, "add_noise") and hasattr(kind, "scale_noise"):
        raise TrimtabError(f"{where}: carries velocities, as policy=flow has; take euler or heun")
    given, train_steps = dict(settings), len(cosine)
    for key, (only, why) in {
        **_OWN,
        "num_train_timesteps": (train_steps, f"policy.train_steps={train_steps} says it"),
    }.items():
        if given.pop(key, only) != only:
            raise TrimtabError(f"{where}: {key}={settings[key]}: {why}; leave it out")
    sigma = [((1 - alpha) / alpha) ** 0.5 for alpha in cosine]
    ours = {
        "num_train_timesteps": train_steps, "beta_schedule": "squaredcos_cap_v2",
        "clip_sample": False, "original_inference_steps": train_steps,
    }  # fmt: skip
    if edm := hasattr(kind, "precondition_outputs"):  # its levels are not those of the network
        ours |= {"sigma_min": sigma[0], "sigma_max": max(sigma)}
    kept = {key: value for key, value in ours.items() if key in takes}
    ways: list[tuple[dict[str, Any], Output]] = [({}, preconditioned if edm else velocity)]
    if not edm and "prediction_type" in takes:
        ways = [({"prediction_type": "sample"}, clean), ({"prediction_type": "epsilon"}, epsilon)]
    walk = _first_walk(where, kind, {**kept, **given}, steps, ways)
    levels = getattr(walk.scheduler, "alphas_cumprod", None)
    alpha = cosine if levels is None else levels.tolist()
    if min(alpha) <= 0 or max(alpha) >= 1:
        raise TrimtabError(
            f"{where}: has a level without noise or without signal, of which the network's noise "
            "tells no clean action; leave rescale_betas_zero_snr out, and take other betas"
        )
    table = walk.table(alpha, on_levels=levels is not None)
    rest, *shares = table.rows[-1]
    if not (abs(rest) < 0.5 and 0.25 < sum(shares) < 1.75):
        raise TrimtabError(
            f"{where}: does not go from noise to a clean action: with {len(shares)} calls the "
            f"result has {rest:.2f} of the noise and {sum(shares):.2f} of the clean action; take "
            f"other settings, or one of {', '.join(SHORT)}"
        )
    return table, alpha


def _first_walk(
    where: str,
    kind: type[Any],
    settings: Mapping[str, Any],
    steps: int,
    ways: Sequence[tuple[dict[str, Any], Output]],
) -> Walk:
    """Return the walk with the first type of prediction that the scheduler takes."""
    for more, output in ways:
        try:
            return Walk(where, kind, {**settings, **more}, steps, output)
        except PredictionType:
            continue
    raise TrimtabError(f"{where}: takes neither clean estimates nor noise; take another one")


def flow_table(name: str, settings: Mapping[str, Any], *, steps: int) -> Table:
    """Return a scheduler's table for a network of velocities from noise (time 0) to action (1).

    Args:
        name: a short name, or a class of diffusers: one for flow matching, or one that takes
            ``use_flow_sigmas``. ``euler`` and ``heun`` are those for flow matching.
        settings: of the class.
        steps: what ``set_timesteps`` is given.

    Raises:
        TrimtabError: as :func:`diffusion_sampler`.
    """
    where, kind = f"policy.scheduler={name}", _class_of(name, SHORT.get(f"flow_{name}"))
    given = dict(settings)
    if "use_flow_sigmas" in inspect.signature(kind).parameters:
        for key, only in _FLOW.items():
            if given.setdefault(key, only) != only:
                raise TrimtabError(f"{where}: {key}={given[key]}: a flow policy has {key}={only}")
    elif not hasattr(kind, "scale_noise"):
        raise TrimtabError(
            f"{where}: is for noise levels, as policy=diffusion has; a flow policy takes euler, "
            "heun, or a scheduler with use_flow_sigmas, such as dpmsolver++ or unipc"
        )
    # diffusers' time runs from the action (0) to the noise (1), so its velocity is minus ours.
    table = Walk(where, kind, given, steps, lambda _, call, state, field: -field).velocities()
    kept, *shares = table.rows[-1]
    if not (abs(kept - 1) < 0.1 and abs(sum(shares) - 1) < 0.1 and math.isfinite(table.times[0])):
        raise TrimtabError(f"{where}: does not carry noise along the whole path; take another one")
    return table


def _class_of(name: str, known: str | None = None) -> type[Any]:
    """Return the class of diffusers that ``name`` means; ``known`` if it is given.

    Raises:
        TrimtabError: if diffusers is not installed, or has no such scheduler.
    """
    where, known = f"policy.scheduler={name}", known or SHORT.get(name, name)
    try:
        library = importlib.import_module("diffusers.schedulers")
    except Exception as error:  # a broken installation raises anything
        raise TrimtabError(
            f"{where}: diffusers makes its table, and cannot be imported ({in_a_line(error)}); "
            "pip install 'trimtab[diffusers]'"
        ) from error
    if known in ("ddpm", "DDPMScheduler"):
        raise TrimtabError(
            f"{where}: draws noise in its steps; take policy.sampler=ddpm, whose noise is the "
            "whole path, or the deterministic ddim"
        )
    names = [one for one in dir(library) if one.endswith("Scheduler")]
    if known not in names:
        hint = nearest(name, [*SHORT, *names])
        raise TrimtabError(f"{where}: diffusers has no such scheduler; {hint}")
    found: Any = getattr(library, known, None)
    try:
        usable = all(callable(getattr(found, part, None)) for part in ("step", "set_timesteps"))
    except ImportError as error:  # the two that need torchsde solve stochastic equations
        raise TrimtabError(f"{where}: draws noise in its steps; take dpmsolver++") from error
    if not usable:
        raise TrimtabError(f"{where}: has other steps; take one of {', '.join(SHORT)}")
    chosen: type[Any] = found
    return chosen
