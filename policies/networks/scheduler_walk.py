"""One walk through a scheduler of diffusers with unit vectors, which gives its table of numbers.

A deterministic scheduler is linear in its noise and in what the network has said so far: the k-th
input of the network is ``a_k0 noise + a_k1 e_0 + ... + a_kk e_(k-1)``, and so is the result. ``e``
are estimates of the clean chunk, or a flow's velocities. A walk with unit vectors in their places
gives all ``a``. A second one, with numbers drawn at random, shows that the scheduler is linear and
draws no noise of its own.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.policies.defaults import OwnDraws
from trimtab.policies.networks.samplers import Table

__all__ = [
    "SHORT", "Output", "PredictionType", "Walk", "clean", "epsilon", "in_a_line", "preconditioned",
    "velocity",
]  # fmt: skip

SHORT: Mapping[str, str] = MappingProxyType(
    {
        "ddim": "DDIMScheduler",
        "deis": "DEISMultistepScheduler",
        "dpmsolver++": "DPMSolverMultistepScheduler",
        "dpmsolver++2s": "DPMSolverSinglestepScheduler",
        "edm": "EDMEulerScheduler",
        "edm_dpmsolver++": "EDMDPMSolverMultistepScheduler",
        "euler": "EulerDiscreteScheduler",
        "flow_euler": "FlowMatchEulerDiscreteScheduler",
        "flow_heun": "FlowMatchHeunDiscreteScheduler",
        "heun": "HeunDiscreteScheduler",
        "ipndm": "IPNDMScheduler",
        "kdpm2": "KDPM2DiscreteScheduler",
        "lms": "LMSDiscreteScheduler",
        "pndm": "PNDMScheduler",
        "unipc": "UniPCMultistepScheduler",
    }
)
"""Short names of schedulers; the name of any other class of diffusers can be given as it is."""

_MOST_CALLS = 1000
_STEPS_OF_TRIAL = 4  # with fewer, some schedulers have no place to draw noise in

Output = Callable[[Any, int, Tensor, Tensor], Tensor]
"""(scheduler, number of the call, state, estimate) to what ``step`` takes for the estimate."""


class PredictionType(Exception):
    """A scheduler does not take this prediction type."""


class Walk:
    """One way through a scheduler, as diffusers' pipelines go.

    Args:
        where: what errors call the scheduler.
        kind: its class.
        settings: of its constructor.
        steps: what ``set_timesteps`` is given.
        output: what ``step`` takes for an estimate.
    """

    def __init__(
        self, where: str, kind: type[Any], settings: dict[str, Any], steps: int, output: Output
    ) -> None:
        self.where, self.kind, self.output, self.steps = where, kind, output, steps
        takes = inspect.signature(kind).parameters
        for key in settings:
            if key not in takes:
                raise TrimtabError(
                    f"{where}: has no setting {key!r}; scheduler_settings takes "
                    f"{', '.join(sorted(takes))}"
                )
        self.settings = settings
        self.scheduler = self._fresh(steps)
        calls = len(self.scheduler.timesteps)
        if not 1 <= calls <= _MOST_CALLS:
            raise TrimtabError(f"{where}: calls the network {calls} times; at most {_MOST_CALLS}")
        unit = torch.eye(1 + calls, dtype=torch.float64)[:, None, None, None]
        self.rows, self.levels = self._go(self.scheduler, unit[0], unit[1:])
        self._check_chance()
        self._check_linear()

    def _fresh(self, steps: int) -> Any:
        """Return a new scheduler with its timesteps set.

        Raises:
            TrimtabError: with what diffusers says.
        """
        try:
            with _quiet():
                scheduler = self.kind(**self.settings)
                scheduler.set_timesteps(steps)
                len(scheduler.timesteps)
        except Exception as error:  # diffusers raises many types, of anybody's settings
            raise TrimtabError(
                f"{self.where}: diffusers says {in_a_line(error)}; with sampling_steps={steps}"
            ) from error
        if hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(0)  # a timestep may be there twice
        return scheduler

    def _go(
        self, scheduler: Any, noise: Tensor, estimates: Tensor
    ) -> tuple[Tensor, list[tuple[float, float]]]:
        """Return the network's inputs ``[K + 1, N]``, the result last, and the level of each call.

        A level is how much signal and how much noise is in a state. The network was trained on
        inputs whose squares of both add up to 1.

        Args:
            scheduler: a fresh one.
            noise: ``[1, 1, 1, N]``.
            estimates: of every call ``[K, 1, 1, N]``.
        """
        try:
            with _quiet():
                state = noise * float(getattr(scheduler, "init_noise_sigma", 1.0))
                inputs, levels = [], []
                for call, time in enumerate(scheduler.timesteps):
                    seen = state
                    if hasattr(scheduler, "scale_model_input"):  # some count on the call
                        seen = scheduler.scale_model_input(state, time)
                    levels.append(_level(scheduler, call, time))
                    if hasattr(scheduler, "precondition_outputs"):  # scaled for EDM's networks
                        seen = state / math.hypot(*levels[-1])
                    inputs.append(seen)
                    given = self.output(scheduler, call, state, estimates[call])
                    state = scheduler.step(given, time, state).prev_sample.to(torch.float64)
                inputs.append(state)
        except Exception as error:  # as above
            if "prediction_type" in str(error).lower() or "prediction type" in str(error).lower():
                raise PredictionType from error
            raise TrimtabError(
                f"{self.where}: is no sampler of one network with one latent ({in_a_line(error)}); "
                f"take one of {', '.join(SHORT)}"
            ) from error
        if any(one.shape != noise.shape for one in inputs):
            raise TrimtabError(f"{self.where}: changes the shape of what it samples; take another")
        return torch.cat(inputs)[:, 0, 0], levels

    def _numbers(self, steps: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return noise and estimates drawn at random ``[1 + K, N]``, and the inputs with them."""
        scheduler = self._fresh(steps)
        generator = torch.Generator().manual_seed(0)
        shape = (1 + len(scheduler.timesteps), 1, 1, 1, 8)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        with OwnDraws(seed):  # a scheduler that draws noise draws from it
            inputs, _ = self._go(scheduler, drawn[0], drawn[1:])
        return drawn[:, 0, 0, 0], inputs

    def _check_chance(self) -> None:
        """Refuse a scheduler that draws noise; it may not do so in its last steps."""
        steps = self.steps
        if steps < _STEPS_OF_TRIAL:
            with contextlib.suppress(TrimtabError):  # there may be fewer levels than that
                self._fresh(_STEPS_OF_TRIAL)
                steps = _STEPS_OF_TRIAL
        first, second = (self._numbers(steps, seed)[1] for seed in (0, 1))
        if not torch.equal(first.nan_to_num(), second.nan_to_num()):
            raise TrimtabError(
                f"{self.where}: draws noise in its steps, and a policy acts by one latent; take "
                f"one of {', '.join(SHORT)}, and no algorithm_type=sde-…"
            )

    def _check_linear(self) -> None:
        drawn, inputs = self._numbers(self.steps, 0)
        expected = self.rows @ drawn
        error = (inputs - expected).abs() / expected.abs().clamp_min(1.0)
        if not bool(self.rows.isfinite().all()):
            raise TrimtabError(
                f"{self.where}: its numbers are not finite with {self.steps} steps; take another "
                "number of them"
            )
        if not float(error.max()) < 1e-4:
            raise TrimtabError(
                f"{self.where}: is not linear in what the network says, so it has no table; check "
                f"its settings, or take one of {', '.join(SHORT)}"
            )

    def table(self, alpha: Sequence[float], *, on_levels: bool) -> Table:
        """Return the table of a network that predicts noise at the levels ``alpha``.

        Args:
            alpha: of the trained levels.
            on_levels: whether the scheduler's timesteps are numbers of these levels; if they are
                not, a level's time is found by its noise, linearly in its logarithm.
        """
        trained = np.sqrt((1 - np.array(alpha)) / np.array(alpha))
        signal, noise = np.array(self.levels).T
        # A level beyond the noisiest one has no signal to tell of; it is taken for that one.
        sigma = np.minimum(noise / np.maximum(signal, 1e-12), trained[-1])
        times = np.interp(np.log(sigma), np.log(trained), np.arange(len(alpha)))
        if on_levels:
            told = np.array([float(time) for time in self.scheduler.timesteps])
            times = told if np.abs(told - times).max() <= 1.0 + 1e-6 else times
        root = 1 / np.sqrt(1 + sigma**2)
        return Table(
            times=tuple((times / len(alpha)).tolist()), rows=_triangle(self.rows),
            signal=tuple(root.tolist()), noise=tuple((root * sigma).tolist()),
        )  # fmt: skip

    def velocities(self) -> Table:
        """Return the table of a network of velocities."""
        most = float(self.scheduler.config.get("num_train_timesteps", math.nan))
        times = tuple(1.0 - float(time) / most for time in self.scheduler.timesteps)
        return Table(times=times, rows=_triangle(self.rows))


def _triangle(rows: Tensor) -> tuple[tuple[float, ...], ...]:
    """Return the numbers of a table, row k with those of the noise and of k estimates."""
    return tuple(tuple(row[: 1 + k]) for k, row in enumerate(rows.tolist()))


def _level(scheduler: Any, call: int, time: Tensor) -> tuple[float, float]:
    """Return how much signal and how much noise is in a state, before its step."""
    between = getattr(scheduler, "sigmas_interpol", None)
    if between is not None and not scheduler.state_in_first_order:
        return 1.0, float(between[scheduler.step_index])
    if not hasattr(scheduler, "add_noise"):
        if hasattr(scheduler, "scale_noise"):
            return 1.0, 1.0  # a flow's levels are its times
        if not hasattr(scheduler, "alphas"):
            raise ValueError("it does not say its noise levels")
        return float(scheduler.alphas[call]), float(scheduler.betas[call])
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    times = time.reshape(1)
    signal, noise = (
        float(scheduler.add_noise(a * one, b * one, times)) for a, b in ((1, 0), (0, 1))
    )
    return signal, noise


def clean(scheduler: Any, call: int, state: Tensor, estimate: Tensor) -> Tensor:
    """Return what a scheduler takes that is given clean estimates: the estimate itself."""
    return estimate


def epsilon(scheduler: Any, call: int, state: Tensor, estimate: Tensor) -> Tensor:
    """Return the noise that a clean estimate leaves of a state."""
    signal, noise = _level(scheduler, call, scheduler.timesteps[call])
    return (state - signal * estimate) / noise


def velocity(scheduler: Any, call: int, state: Tensor, estimate: Tensor) -> Tensor:
    """Return ``signal * noise - noise's share * clean``, of a clean estimate."""
    signal, noise = _level(scheduler, call, scheduler.timesteps[call])
    return (signal * state - estimate) / noise


def preconditioned(scheduler: Any, call: int, state: Tensor, estimate: Tensor) -> Tensor:
    """Return what EDM's network says (Karras et al., arXiv 2206.00364, equation 7)."""
    sigma = scheduler.sigmas[scheduler.step_index]
    one, zero = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    skip = scheduler.precondition_outputs(one, zero, sigma)
    out = scheduler.precondition_outputs(zero, one, sigma)
    said: Tensor = (estimate - skip * state) / out
    return said


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let diffusers compute as usual, and hide what it says of its future and of settings."""
    logger = logging.getLogger("diffusers")
    level, kind = logger.level, torch.get_default_dtype()
    with warnings.catch_warnings(action="ignore"):
        try:
            logger.setLevel(logging.ERROR)
            torch.set_default_dtype(torch.float32)  # of which diffusers makes its constants
            yield
        finally:
            torch.set_default_dtype(kind)
            logger.setLevel(level)


def in_a_line(error: BaseException) -> str:
    """Return an error's type and text as one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
