"""Words of a command line: what is right is understood, however people write it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from loading import load_module
from omegaconf.errors import ReadonlyConfigError

from trimtab.benchmarks.training.settings import groups
from trimtab.benchmarks.training.settings.config import compose_run, recipe_with
from trimtab.benchmarks.training.settings.constructors import keywords
from trimtab.benchmarks.training.settings.groups import conf_file, load_group
from trimtab.benchmarks.training.settings.words import closest, nearest
from trimtab.datasets.formats.minari.writer import check_id
from trimtab.types import TrimtabError

maze = load_module(Path(__file__).with_name("maze.py"))
ENV: str = maze.ENV
BC: list[str] = maze.BC

OWN = """
from trimtab.algorithms.offline.bc import BehaviorCloning


class Cloning(BehaviorCloning):
    def __init__(self, setup, *, beta: float = 1.0, **keywords):
        super().__init__(setup, **keywords)
        self.beta = beta
"""

HOME = os.path.expanduser("~")


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("online_steps=1e3", "online_steps", 1000),
        ("eval_episodes=5.0", "eval_episodes", 5),
        ("out=a b", "out", "a b"),
        ("out=a(b)", "out", "a(b)"),
        ("out=a=b", "out", "a=b"),
        ("out=läufe/größe", "out", "läufe/größe"),
        ("out='für mich'", "out", "für mich"),
        ("out=it's", "out", "it's"),
        ("out='a,b'", "out", "a,b"),
        ("out=~/runs", "out", os.path.expanduser("~/runs")),
        ("base=C:/x y(1)/seed${seed}", "base", "C:/x y(1)/seed0"),
        ("base=null", "base", None),
    ],
)
def test_words_as_people_write_them_are_understood(word: str, key: str, value: Any) -> None:
    found = compose_run([*BC, word])[key]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("dataset=~/x.hdf5", "path", f"{HOME}/x.hdf5"),
        ("dataset='~/x,y.hdf5'", "path", f"{HOME}/x,y.hdf5"),
        ("dataset=./x y(1).hdf5", "path", "./x y(1).hdf5"),
        ("dataset=./größe.npz", "path", "./größe.npz"),
        ("dataset=~", "path", HOME),
        ("dataset=x.hdf5", "path", "x.hdf5"),
        ("dataset=[a/b c,'d,e(1)']", "runs", ["a/b c", "d,e(1)"]),
        ("dataset=[runs/seed${seed}]", "runs", ["runs/seed0"]),
    ],
)
def test_places_of_data_as_people_write_them_are_understood(
    word: str, key: str, value: Any
) -> None:
    found = compose_run([ENV, "algorithm=bc", "policy=flow", word])["dataset"]
    assert found[key] == value


def test_a_group_that_is_left_out_takes_its_settings_with_it() -> None:
    """The variant of a suite's method says so after what its task says of its data."""
    data = ["dataset=metaworld_expert", "dataset.env=metaworld/push-v3", "dataset.episodes=15"]
    sac = [ENV, "algorithm=sac"]
    assert compose_run([*sac, *data, "~dataset"])["dataset"] is None
    with pytest.raises(TrimtabError, match=r"dataset\.episodes"):
        compose_run([*sac, *data, "~dataset", "dataset.episodes=15"])


def test_a_whole_number_may_be_written_with_an_exponent_where_one_is_asked_for() -> None:
    plain, short = (
        compose_run([*BC, f"algorithm.batch_size={size}", f"algorithm.learning_rate={rate}"])
        for size, rate in (("100", "1.0"), ("1e2", "1e0"))
    )
    assert plain.settings == short.settings
    assert type(short["algorithm"]["batch_size"]) is int
    assert type(short["algorithm"]["learning_rate"]) is float


def test_a_class_of_ones_own_has_its_own_keywords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_cloning.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    word = "algorithm.beta=0.5"
    with pytest.raises(TrimtabError, match="algorithm.beta: bc has no such setting"):
        compose_run([*BC, word])
    for words in ([word], [word, "algorithm.learning_rate=0.1"]):
        found = compose_run([*BC, "algorithm._target_=my_cloning.Cloning", *words])
        assert found["algorithm"]["beta"] == 0.5


def test_another_class_is_not_given_the_keywords_of_the_file_that_it_replaces() -> None:
    file = load_group("algorithm", "bc")["algorithm"]
    target = "algorithm._target_=trimtab.algorithms.off_policy.sac.SAC"
    assert "decay_updates" in file and "decay_updates" not in keywords(target.partition("=")[2])
    found = compose_run([*BC, target, "algorithm.tau=0.5"])["algorithm"]
    assert found["tau"] == 0.5 and "decay_updates" not in found
    with pytest.raises(TrimtabError, match="algorithm.decay_updates: .*SAC has no such setting"):
        compose_run([*BC, target, "algorithm.decay_updates=5"])  # who asks for it is told


def test_settings_are_plain_values_and_a_method_sets_its_own() -> None:
    config = compose_run([*BC, "seed=3", "policy.hidden=[8, 8]"])
    assert (config.algorithm, config.policy, config.dataset) == ("bc", "flow", "two_routes")
    assert config["seed"] == 3
    assert config["offline_steps"] == 10_000
    assert config["algorithm"]["decay_updates"] == 10_000  # follows offline_steps
    assert type(config["policy"]["hidden"]) is list
    later = compose_run([*BC, "offline_steps=70"])
    assert later["algorithm"]["decay_updates"] == 70


def test_a_keyword_that_the_yaml_leaves_out_can_be_set() -> None:
    config = compose_run([ENV, "algorithm=bc", "dataset=two_routes", "policy=tanh_gaussian"])
    assert "spread" not in compose_run(BC)["dataset"]["controller"]
    words = [*BC, "dataset.controller.spread=[0.1,0.2]", "env_options.horizon=9"]
    config = compose_run(words)
    assert config["dataset"]["controller"]["spread"] == [0.1, 0.2]
    assert config["env_options"]["horizon"] == 9


def test_a_folder_is_short_for_its_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for written in (f"{tmp_path}", "./somewhere", "some/where"):
        config = compose_run([ENV, "algorithm=bc", "policy=flow", f"dataset={written}"])
        assert config.dataset == "folder"
        assert config["dataset"]["path"] == written
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    config = compose_run([ENV, "algorithm=bc", "policy=flow", "dataset=mine"])
    unsaid = {"keys": None, "mask": None, "horizon": None, "control_rate": None}
    assert config["dataset"] == {"path": "mine", **unsaid}


def test_a_base_can_follow_the_seed() -> None:
    words = [ENV, "algorithm=frozen", "seed=4"]
    follows = compose_run([*words, "base=runs/bc/seed${seed}"])
    assert follows["base"] == "runs/bc/seed4"
    assert follows.base_follows_seed
    fixed = compose_run([*words, "base=runs/bc/seed4"])
    assert fixed["base"] == "runs/bc/seed4"
    assert not fixed.base_follows_seed


def test_nothing_is_left_of_one_composition_in_the_next() -> None:
    first = compose_run(BC)
    with pytest.raises(TrimtabError):
        compose_run([*BC, "policy.hidden=[8"])
    compose_run([*BC, "policy.hidden=[8]", "seed=9"])
    assert compose_run(BC) == first


def test_the_nearest_word() -> None:
    assert nearest("horizn", ["seed", "horizon"]) == "did you mean horizon?"
    assert nearest("q", ["seed", "horizon"]) == "there are: seed, horizon"


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("warmup_steps", ["act_steps", "algorithm.warmup_steps"], "algorithm.warmup_steps"),
        ("warmup", ["act_steps", "algorithm.warmup_steps"], "algorithm.warmup_steps"),
        ("warmup_steps", ["act_steps", "online_steps"], None),  # the rest of them is different
        ("batch_size", ["buffer_size"], None),
        ("learning_rat", ["policy", "algorithm.learning_rate"], "algorithm.learning_rate"),
        ("episodes", ["eval_episodes", "dataset.episodes"], "dataset.episodes"),
        ("Seed", ["seed"], "seed"),
        ("a.lerning_rate", ["a.learning_rate", "b.learning_rate"], "a.learning_rate"),
        ("", ["seed"], None),
    ],
)
def test_a_word_is_held_against_what_tells_names_apart(
    word: str, known: list[str], found: str | None
) -> None:
    assert closest(word, known) == found


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("warmup_steps=10", "warmup_steps: there is no such setting; did you mean alg.*warmup_st"),
        ("hiden=[8]", "hiden: there is no such setting; did you mean algorithm.hidden"),
        ("batch_size=8", "did you mean algorithm.batch_size"),
    ],
)
def test_a_method_s_keyword_that_lacks_its_group_is_told_so(word: str, said: str) -> None:
    with pytest.raises(TrimtabError, match=said):
        compose_run(["env=gym/Hopper-v5", "algorithm=sac", word])


def test_a_file_of_a_group_is_plain_values() -> None:
    assert load_group("dataset", "two_routes")["env"] == "robotics/PointMaze-TwoRoutes-v0"
    with pytest.raises(TrimtabError, match="dataset=two_rotes.*did you mean two_routes?"):
        load_group("dataset", "two_rotes")


def test_a_file_of_settings_is_parsed_once_and_read_only_and_seen_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert conf_file("algorithm/bc.yaml") is conf_file("algorithm/bc.yaml")
    with pytest.raises(ReadonlyConfigError):
        conf_file("algorithm/bc.yaml")["algorithm"] = 3
    load_group("algorithm", "bc")["algorithm"].clear()  # what one caller does with plain values
    assert load_group("algorithm", "bc")["algorithm"]

    own = tmp_path / "mine.yaml"
    monkeypatch.setattr(groups, "outside_file", lambda name: own)
    for said in ("dots", "dashes"):
        own.write_text(f"line: {said}\n")
        assert conf_file("policy/mine.yaml") == {"line": said}


def test_a_changed_recipe_has_an_id_of_its_own() -> None:
    def made(*words: str) -> str:
        recipe = recipe_with("two_routes", words)
        chosen = compose_run([ENV, "algorithm=bc", "policy=flow", "dataset=two_routes", *words])
        assert chosen["dataset"] == recipe  # alike in a run and made alone
        check_id(recipe["id"])
        return str(recipe["id"])

    assert made() == made("dataset.episodes=400") == "trimtab/two-routes-v0"
    changes = (
        "dataset.episodes=4", "dataset.episodes=5", "dataset.seed=1",
        "dataset.controller.noise=0.5", "dataset.env_options.horizon=9",
        "dataset.env=robotics/PointMaze_Medium-v3",
    )  # fmt: skip
    ids = [made(change) for change in changes]
    assert len({*ids, made()}) == len(changes) + 1
    assert all(re.fullmatch(r"trimtab/two-routes-[0-9a-f]{10}-v0", one) for one in ids)
    assert made(changes[0], "dataset.seed=0") == ids[0]
    assert made("dataset.id=mine/x-v1", changes[0]) == "mine/x-v1"
