"""One update of each offline method, drawing its batch from a dataset included.

The peer is d3rlpy, whose pins do not fit ours: it runs in a process and an environment of its own,
whose Python ``TRIMTAB_D3RLPY`` names. Where both have a method, both have two hidden layers of 256
units in every network and batches of 256, and otherwise the settings of their own defaults.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.offline.a2pr import A2PR
from trimtab.algorithms.offline.awac import AWAC
from trimtab.algorithms.offline.cal_ql import CalQL
from trimtab.algorithms.offline.cfgrl import CFGRL
from trimtab.algorithms.offline.cfpi import CFPI
from trimtab.algorithms.offline.cql import CQL
from trimtab.algorithms.offline.decision_transformer import DecisionTransformer
from trimtab.algorithms.offline.edac import EDAC
from trimtab.algorithms.offline.guided_td3_bc import GuidedTD3BC
from trimtab.algorithms.offline.iql import IQL
from trimtab.algorithms.offline.ogsrl import OGSRL
from trimtab.algorithms.offline.oppo import OPPO
from trimtab.algorithms.offline.rebrac import ReBRAC
from trimtab.algorithms.offline.td3_bc import TD3BC
from trimtab.benchmarks.speed import d3rlpy_side
from trimtab.benchmarks.speed.cases.shared import (
    ACTION_DIM,
    BATCH,
    EPISODE,
    HIDDEN,
    OBS_DIM,
    hopper,
    transitions,
)
from trimtab.benchmarks.speed.measure import BEST_OF_BOTH, Pair, Side, Stage, Work, repeated
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.types import Statistics

STORED = 100_000
UPDATES, SLOW, SLOWEST = 300, 60, 20
"""Updates of a turn: of most methods, of those with ensembles or transformers, and of CQL."""
PEER = "d3rlpy"
PYTHON_OF_PEER = "TRIMTAB_D3RLPY"


@cache
def dataset() -> Dataset:
    """Return the random transitions of the other rows as a dataset."""
    values = transitions(STORED)
    episodes = []
    for first in range(0, STORED, EPISODE):
        part = slice(first, first + EPISODE)
        ends = np.arange(EPISODE) == EPISODE - 1
        episodes.append(
            Episode(
                observations=np.concatenate([values["obs"][part], values["next_obs"][part][-1:]]),
                actions=values["action"][part],
                rewards=values["reward"][part],
                terminations=ends,
                truncations=np.zeros_like(ends),
                infos={"cost": np.zeros(EPISODE, np.float32)},
            )
        )
    limits = (1.0,) * ACTION_DIM
    return Dataset(
        id="speed/hopper-v0",
        env="gym/Hopper-v5",
        env_options={},
        action_low=tuple(-one for one in limits),
        action_high=limits,
        episodes=episodes,
    )


def setup() -> Setup:
    """Return what an offline method is made with."""
    zero, one = torch.zeros(OBS_DIM), torch.ones(ACTION_DIM)
    return Setup(
        spec=hopper(), statistics=Statistics(zero, zero + 1, zero - 3, zero + 3, -one, one)
    )


def ours(make: Callable[[Setup], Algorithm], updates: int, batch: int) -> Side:
    """Return our side: a method, and the batches it wants."""

    def side(stage: Stage) -> Work:
        algorithm = make(setup())
        source = ReplayBuffer.from_dataset(dataset(), batch_spec=algorithm.batch_spec)
        return repeated(lambda: algorithm.update(source.sample(batch)), stage.amount(updates))

    return side


def theirs(name: str, updates: int) -> Side:
    """Return d3rlpy's side: a process that updates when it is told to."""

    def side(stage: Stage) -> Work:
        python = os.environ.get(PYTHON_OF_PEER)
        if not python:
            raise ModuleNotFoundError(f"{PYTHON_OF_PEER} does not name the Python that has d3rlpy")
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        process = stage.exits.enter_context(
            subprocess.Popen(
                [python, str(Path(d3rlpy_side.__file__)), name, str(STORED), str(HIDDEN[0]),
                 str(BATCH)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, env=environment,
            )
        )  # fmt: skip
        stage.exits.callback(process.kill)
        _expect(process, "ready")
        count = stage.amount(updates)

        def work() -> float:
            assert process.stdin is not None
            process.stdin.write(f"{count} {torch.get_num_threads()}\n")
            process.stdin.flush()
            _expect(process, "done")
            return count

        return work

    return side


def _expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    answer = process.stdout.readline().strip()
    if answer != word:
        raise RuntimeError(f"d3rlpy's process answered {answer!r} and not {word!r}")


def pair(
    name: str,
    make: Callable[..., Algorithm],
    peer: str | None = None,
    updates: int = UPDATES,
    batch: int = BATCH,
) -> Pair:
    """Return the row of a method."""
    return Pair(
        f"{name}_update",
        "offline",
        "updates/s",
        ours(make, updates, batch),
        None if peer is None else theirs(peer, updates),
        None if peer is None else PEER,
        threads=BEST_OF_BOTH,
    )


PAIRS = [
    pair("td3_bc", partial(TD3BC, hidden=HIDDEN), "TD3PlusBC"),
    pair("iql", partial(IQL, hidden=HIDDEN), "IQL"),
    # The multiplier of the penalty is learned, as d3rlpy's is.
    pair("cql", partial(CQL, hidden=HIDDEN, lagrange_gap=10.0), "CQL", SLOWEST),
    pair("cal_ql", partial(CalQL, hidden=HIDDEN, lagrange_gap=10.0), "CalQL", SLOWEST),
    pair("awac", partial(AWAC, hidden=HIDDEN), "AWAC"),
    pair("rebrac", partial(ReBRAC, hidden=HIDDEN), "ReBRAC"),
    pair("edac", partial(EDAC, hidden=HIDDEN), updates=SLOW),
    pair("sac_n", partial(EDAC, hidden=HIDDEN, diversity=0.0), updates=SLOW),
    pair("a2pr", partial(A2PR, hidden=HIDDEN), updates=SLOW),
    pair("guided_td3_bc", partial(GuidedTD3BC, hidden=HIDDEN)),
    pair("cfpi", partial(CFPI, hidden=HIDDEN), updates=SLOW),
    pair("cfgrl", partial(CFGRL, hidden=HIDDEN), updates=SLOW),
    # Sixteen sequences of twenty decisions.
    pair("decision_transformer", partial(DecisionTransformer, embedding=64), None, SLOW, 16),
    pair("oppo", partial(OPPO, embedding=64), None, SLOW, 16),
    pair("ogsrl", partial(OGSRL, hidden=HIDDEN)),
]
