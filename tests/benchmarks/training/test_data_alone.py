"""What a dataset must have for its method, and that nothing but the dataset is learned from."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.benchmarks.cli.main import run as trimtab
from trimtab.benchmarks.training.result import Result
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import check, train
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.datasets.formats.minari.writer import save as save_minari
from trimtab.types import TrimtabError


def test_rewards_that_tell_nothing_are_refused(tiny: Any, tmp_path: Path) -> None:
    recorded = load_minari(tiny.dataset)

    def checked(reward: float, terminated: bool, *words: str) -> None:
        episodes = tuple(
            dataclasses.replace(
                episode,
                rewards=np.full(len(episode), reward, np.float32),
                terminations=(np.arange(len(episode)) == len(episode) - 1) & terminated,
            )
            for episode in recorded.episodes
        )
        folder = tmp_path / "data" / f"{reward:g}-{terminated}"
        if not folder.exists():
            save_minari(dataclasses.replace(recorded, episodes=episodes), folder)
        task = tiny.task(tmp_path / "runs")
        check(compose_run([*task, f"dataset={folder}", "offline_steps=9", *words]))

    learner = ["algorithm=td3_bc", "algorithm.hidden=[8]"]
    said = "every reward is {}, so td3_bc has nothing to learn; choose data with rewards, or clone"
    for reward, terminated in ((0.0, False), (0.0, True), (1.0, False)):
        with pytest.raises(TrimtabError, match=re.escape(said.format(f"{reward:g}"))):
            checked(reward, terminated, *learner)
    checked(-1.0, True, *learner)  # how soon an episode ends
    checked(0.0, False, *learner, "online_steps=2000")  # other rewards are to come
    checked(0.0, False, "algorithm=bc", "policy=gaussian", "policy.hidden=[8]")
    # The sum of what follows ends with the episode, so it tells how long that went on.
    checked(-1.0, True, "algorithm=oppo", "algorithm.embedding=8")
    with pytest.raises(TrimtabError, match="every reward is -1, so oppo has nothing to learn"):
        checked(-1.0, False, "algorithm=oppo", "algorithm.embedding=8")
    with pytest.raises(TrimtabError, match="discount=0.9: OPPO's teacher sums rewards that are no"):
        checked(-1.0, True, "algorithm=oppo", "algorithm.embedding=8", "discount=0.9")
    # A classifier of success learns from the data alone, whatever comes later.
    for reward, which in ((0.0, "no step"), (1.0, "every step")):
        told = f"{which} of it has a reward of at least 1, so serl cannot learn what a success is"
        with pytest.raises(TrimtabError, match=told):
            checked(reward, False, "algorithm=serl", "algorithm.hidden=[8]", "online_steps=2000")


def test_data_of_single_decisions_has_no_next_actions(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = load_minari(tiny.dataset)
    for kept, name in ((3, "short"), (9, "longer")):
        episodes = tuple(
            dataclasses.replace(
                episode,
                observations=episode.observations[: kept + 1],
                actions=episode.actions[:kept],
                rewards=np.arange(kept, dtype=np.float32),
                terminations=np.zeros(kept, bool),
                truncations=np.arange(kept) == kept - 1,
                infos={key: value[:kept] for key, value in episode.infos.items()},
            )
            for episode in recorded.episodes[:1]
        )
        save_minari(dataclasses.replace(recorded, episodes=episodes), tmp_path / name)
    words = [*tiny.task(tmp_path / "runs"), "algorithm=rebrac", "algorithm.hidden=[8]"]
    words += ["offline_steps=9"]
    told = "each of its 1 episodes is cut off within its first decision .4 steps., so no next"
    with pytest.raises(TrimtabError, match=told):
        check(compose_run([*words, f"dataset={tmp_path / 'short'}"]))
    assert not (tmp_path / "runs").exists()
    caplog.clear()
    check(compose_run([*words, f"dataset={tmp_path / 'longer'}"]))
    assert caplog.text.count("is a single episode") == 1


@pytest.mark.parametrize("name", ["td3_bc", "iql", "cql", "rebrac", "cfgrl"])
def test_what_is_learned_from_data_does_not_depend_on_the_judge(
    name: str, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No environment is stepped to learn, and other evaluations leave the same weights."""

    def gather(*_: object, **__: object) -> None:
        raise AssertionError("a run of data alone gathers")

    monkeypatch.setattr("trimtab.benchmarks.training.collector.make_vec", gather)
    words = tiny.online(tmp_path, name)
    words = [word for word in words if not word.startswith(("eval_", "offline_steps"))]
    words += ["online_steps=0", "offline_share=0", "offline_steps=12"]
    judged = (
        ["eval_every=4", "eval_episodes=3", "eval_seed=7"],
        ["eval_every=null", "eval_episodes=1"],
    )
    weights = [
        (train(compose_run([*words, *more])).folder / "policy" / "model.safetensors").read_bytes()
        for more in judged
    ]
    assert weights[0] == weights[1]


def test_a_run_that_is_done_is_known_without_its_recorded_data(
    tmp_path: Path, in_this_process: str
) -> None:
    words = ["env=robotics/PointMaze-TwoRoutes-v0", "dataset=two_routes", "algorithm=bc"]
    words += ["policy=gaussian", "policy.hidden=[8]", "offline_steps=2", "eval_episodes=1"]

    def carried_out(episodes: int) -> Result:
        given = [*words, f"dataset.episodes={episodes}", f"out={tmp_path}"]
        return train(compose_run(given))

    first = carried_out(1)
    assert not first.already_done and (tmp_path / "datasets").is_dir()
    shutil.rmtree(tmp_path / "datasets")
    again = carried_out(1)
    assert again.already_done and again.summary == first.summary
    assert not (tmp_path / "datasets").exists()
    sweep = [*words, "dataset.episodes=1", f"out={tmp_path}", "-m", "seed=0", in_this_process]
    assert trimtab(["train", *sweep]) == 0 and not (tmp_path / "datasets").exists()
    assert not carried_out(2).already_done  # another recipe is another run


@pytest.mark.parametrize("env", ["/abs", "foo**bar", "a[b", "\0", "x" * 3000])
def test_what_is_no_task_is_told_whatever_its_name(env: str, tmp_path: Path) -> None:
    words = ["env=gym/Hopper-v5", "algorithm=sac", "online_steps=10000", f"out={tmp_path}"]
    config = compose_run(words)
    config = dataclasses.replace(config, settings={**config.settings, "env": env})
    with pytest.raises(TrimtabError, match="unknown environment"):
        train(config)
