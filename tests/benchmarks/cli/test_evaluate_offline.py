"""``trimtab evaluate offline=true`` on tiny runs, in process."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.benchmarks.cli.main import run as carry_out
from trimtab.benchmarks.training.offline_judge import _decisions_of
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.datasets.formats.minari.writer import save as save_minari
from trimtab.errors import TrimtabError


@pytest.fixture(scope="module")
def runs(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of three runs that cloned a Gaussian, each a little longer."""
    out = tmp_path_factory.mktemp("gaussians")
    for steps in (5, 10, 15):
        words = [*tiny.task(out), "algorithm=bc", "policy=gaussian", "policy.hidden=[16]"]
        words += [f"dataset={tiny.dataset}", f"offline_steps={steps}", "algorithm.batch_size=16"]
        train(compose_run(words))
    return out


def words(place: Path, tiny: Any, *more: str) -> list[str]:
    data = [f"run={place}", f"dataset={tiny.dataset}", "other_task=true", "updates=3"]
    return ["evaluate", "offline=true", *data, *more]


def test_a_folder_of_runs_is_estimated_and_ranked(
    runs: Path, tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert carry_out([*words(runs, tiny), f"out={tmp_path}", "format=json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = [(line["run"], line["estimator"]) for line in told["estimates"]]
    assert len(found) == 9 and len({run for run, _ in found}) == 3
    assert {estimator for _, estimator in found} == {"fitted_q", "importance", "model"}
    assert all(isinstance(line["value"], float) for line in told["estimates"])
    assert "of 4 episodes carry it" in told["estimates"][1]["note"]
    table = (tmp_path / "offline_ranks.md").read_text()
    assert "| fitted_q |" in table and "| later |" in table
    for line in (tmp_path / "offline_estimates.csv").read_text().splitlines()[1:]:
        where, label, *_ = line.split(",")
        assert (runs / where).is_dir() and not Path(where).is_absolute() and label == "bc"
    again = [*words(runs, tiny), "format=json"]
    assert carry_out(again) == 0
    assert json.loads(capsys.readouterr().out) == told  # the same seed, the same estimates


def test_decisions_of_two_actions_and_what_an_episodes_end_leaves() -> None:
    def episode(steps: int, ended: bool) -> Episode:
        last = np.arange(steps) == steps - 1
        rows = np.arange(steps + 1.0)[:, None]
        return Episode(
            rows, rows[:-1] / 10, 2 ** np.arange(steps), last & ended, last & (not ended)
        )

    episodes = [episode(3, True), episode(4, False)]
    found = _decisions_of(Dataset("a/b-v0", "a/b", {}, episodes, (-1.0,), (1.0,)), 2)
    assert found.obs[:, 0].tolist() == [0, 2, 0, 2]
    assert found.action[:, :, 0].flatten().tolist() == pytest.approx(
        [0, 0.1, 0.2, 0.2, 0, 0.1, 0.2, 0.3]
    )
    assert found.valid.tolist() == [[True, True], [True, False], [True, True], [True, True]]
    assert found.reward.tolist() == [[3, 4], [3, 12]]
    assert found.taken.all() and found.ended.tolist() == [True, False]


@pytest.mark.parametrize(("reward", "ended"), [(0.0, True), (1.0, False), (-1.0, True)])
def test_data_without_rewards_give_no_return(
    reward: float, ended: bool, runs: Path, tiny: Any, tmp_path: Path
) -> None:
    made = load_minari(tiny.dataset)
    flat = [
        replace(
            one,
            rewards=np.full_like(one.rewards, reward),
            terminations=one.terminations & ended,
            truncations=np.arange(len(one)) == len(one) - 1,
        )
        for one in made.episodes
    ]
    save_minari(replace(made, episodes=tuple(flat)), tmp_path / "flat")
    asked = [word for word in words(runs, tiny) if not word.startswith("dataset=")]
    for more in ([], ["estimator=fitted_q"], [f"out={tmp_path / 'ranks'}", "estimator=importance"]):
        with pytest.raises(TrimtabError, match=f"every reward is {reward:g}, so it says nothing"):
            carry_out([*asked, f"dataset={tmp_path / 'flat'}", *more])
    assert not (tmp_path / "ranks").exists()


def test_what_has_no_density_is_left_out_or_refused(
    tiny: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert carry_out([*words(tiny.base, tiny), "format=json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [line["estimator"] for line in told["estimates"]] == ["fitted_q", "model"]
    assert "importance: left out: a flow policy has no density" in caplog.text
    with pytest.raises(TrimtabError, match="a flow policy has no density of its actions"):
        carry_out([*words(tiny.base, tiny), "estimator=importance"])


@pytest.mark.parametrize("word", ["episodes=3", "backend=onnx", "inputs={guidance: 3}"])
def test_words_of_played_episodes_have_no_use(word: str, tiny: Any) -> None:
    name = word.partition("=")[0]
    with pytest.raises(TrimtabError, match=f"evaluate: {name}= belongs to offline=false"):
        carry_out([*words(tiny.base, tiny), word])


def test_what_cannot_be_judged_is_left_out_of_a_folder(
    runs: Path, tiny: Any, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    out = tmp_path / "runs"
    made = [*tiny.task(out), "algorithm=bc", "policy=gaussian", "policy.hidden=[16]", "history=2"]
    made += [f"dataset={tiny.dataset}", "offline_steps=5", "algorithm.batch_size=16"]
    train(compose_run(made))
    with pytest.raises(TrimtabError, match="reads parts, inputs or a history"):
        carry_out(words(out, tiny))
    shutil.copytree(runs, out, dirs_exist_ok=True)
    capsys.readouterr()
    assert carry_out([*words(out, tiny), "estimator=fitted_q", "format=json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["estimates"]) == 3
    assert "left out: evaluate: offline=true: this gaussian policy reads parts" in caplog.text


def test_wrong_words_are_one_line(runs: Path, tiny: Any, tmp_path: Path) -> None:
    shutil.copytree(tiny.base / "policy", tmp_path / "bundle")
    for asked, line in (
        ([*words(runs, tiny), "estimator=fitted"], "did you mean fitted_q"),
        ([*words(runs, tiny), "discount=1"], "from 0 to below 1"),
        ([*words(runs, tiny), "discount=much"], "must be a number"),
        ([*words(runs, tiny), "video=true"], "video= belongs to offline=false"),
        (["evaluate", "offline=true", f"run={runs}"], "dataset is not given"),
        (["evaluate", "offline=true", "dataset=two_routes"], "policy is not given"),
        (
            ["evaluate", f"policy={tiny.base}", "dataset=two_routes"],
            "dataset= belongs to offline=true",
        ),
        ([*words(tmp_path / "bundle", tiny), f"out={tmp_path}"], "at least 3 finished runs"),
        ([w for w in words(runs, tiny) if "other_task" not in w], "other_task=true"),
    ):
        with pytest.raises(TrimtabError, match=line) as told:
            carry_out(asked)
        assert "\n" not in str(told.value)
