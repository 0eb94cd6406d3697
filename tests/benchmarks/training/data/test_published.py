"""A dataset against the published one: to the bit, within the tolerance, or neither."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.benchmarks.cli.main import run
from trimtab.benchmarks.training.data import published
from trimtab.benchmarks.training.data.published import (
    beginning_problem,
    beginnings,
    compare,
    statistics_of,
)
from trimtab.benchmarks.training.data.recipes import is_recipe, make_dataset
from trimtab.benchmarks.training.settings.groups import group_options, load_group, outside_file
from trimtab.datasets import catalog
from trimtab.datasets.catalog import made_datasets
from trimtab.datasets.episodes import Dataset, Episode

NAME = "push_noisy"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published")


@pytest.fixture(scope="module")
def made(out: Path) -> Dataset:
    """A whole recipe's dataset, made on this machine."""
    return make_dataset(load_group("dataset", NAME), out)


def changed(dataset: Dataset, change: Any) -> Dataset:
    """Return a dataset whose episodes' numbers are changed."""
    return dataclasses.replace(dataset, episodes=tuple(map(change, dataset.episodes)))


def scaled(episode: Episode, share: float) -> Episode:
    return dataclasses.replace(
        episode,
        observations=episode.observations * np.float32(1 + share),
        actions=episode.actions * np.float32(1 + share),
    )


def test_what_this_machine_makes_is_what_is_published(made: Dataset) -> None:
    stands = compare(NAME, made)
    assert stands.agrees, stands.text
    if published.made_on_this_kind(NAME):
        assert stands.equal and stands.text == published.EQUAL


def test_another_last_bit_still_agrees(made: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    other = changed(made, lambda episode: scaled(episode, 2.0**-22))
    monkeypatch.setattr(published, "processor_kind", lambda: "another kind")
    stands = compare(NAME, other)
    assert other.content_hash != made.content_hash
    assert (stands.equal, stands.agrees) == (False, True)
    assert stands.text == "agrees with what is published within 0.001, not to the bit"
    monkeypatch.setattr(published, "processor_kind", lambda: made_datasets()[NAME]["processor"])
    assert compare(NAME, other).text.endswith("; yet this kind of processor made other bits")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda e: scaled(e, 0.01), "at step 0 of its first episode differ by"),
        (lambda e: dataclasses.replace(e, rewards=e.rewards + np.float32(0.01)), "the rewards at"),
        (lambda e: scaled(e, float("nan")), "differ by nan"),
    ],
)
def test_other_numbers_do_not_agree(made: Dataset, change: Any, told: str) -> None:
    stands = compare(NAME, changed(made, change))
    assert not stands.agrees and not stands.equal
    assert stands.text.startswith("differs from what is published: ") and told in stands.text


def test_another_amount_or_another_task_does_not_agree(made: Dataset) -> None:
    fewer = dataclasses.replace(made, episodes=made.episodes[:-1])
    assert "it has 14 episodes, not 15" in compare(NAME, fewer).text
    assert "have shape" in str(beginning_problem("hopper_random", made.episodes[0]))


def test_other_statistics_do_not_agree(made: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = statistics_of(made)
    assert ours["success_rate"] == 1.0
    returns = [float(episode.rewards.sum()) for episode in made.episodes]
    assert ours["return"] == pytest.approx(np.mean(returns), abs=1e-5)
    assert ours["return_error"] == pytest.approx(np.std(returns, ddof=1) / 15**0.5, abs=1e-5)
    row = {**made_datasets()[NAME], "content_hash": "another", **ours}
    for key, value in (("return", ours["return"] + 1.0), ("success_rate", 0.2)):  # type: ignore[operator]
        monkeypatch.setattr(published, "made_datasets", lambda: {NAME: {**row, key: value}})  # noqa: B023
        assert f"its {key.replace('_', ' ')} is" in compare(NAME, made).text
    monkeypatch.setattr(published, "made_datasets", lambda: {NAME: row})
    assert compare(NAME, made).agrees


def test_every_recipe_has_numbers_that_are_few_and_finite() -> None:
    for name in group_options("dataset"):
        if outside_file(f"dataset/{name}.yaml"):  # another test has adopted it in this process
            continue
        if is_recipe(name) and "run" not in load_group("dataset", name):
            known = beginnings()[name]
            assert 1 <= len(known["steps"]) <= 12 and known["steps"][0] == 0
            assert all(np.isfinite(array).all() for array in known.values())
            assert made_datasets()[name]["processor"]


def test_list_and_info_say_how_it_stands(
    made: Dataset, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = catalog.list_datasets(out / "datasets")
    for command in (
        ["dataset", "list", f"out={out}", "format=json"],
        ["dataset", "info", f"path={row['folder']}", "format=json"],
        ["dataset", "info", f"dataset={NAME}", f"out={out}", "format=json"],
    ):
        assert run(command) == 0
        assert f'"published": "{compare(NAME, made).text}"' in capsys.readouterr().out
