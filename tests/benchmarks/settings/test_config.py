"""Words of a command line: what is right is understood, what is wrong is named with its remedy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf.errors import ReadonlyConfigError

from trimtab.benchmarks.runs.build import components
from trimtab.benchmarks.settings import groups
from trimtab.benchmarks.settings.config import compose_run, recipe_with
from trimtab.benchmarks.settings.constructors import keywords
from trimtab.benchmarks.settings.groups import conf_file, load_group
from trimtab.benchmarks.settings.words import nearest
from trimtab.datasets.formats.minari.writer import check_id
from trimtab.types import TrimtabError

ENV = "env=robotics/PointMaze-TwoRoutes-v0"
BC = [ENV, "algorithm=bc", "policy=flow", "dataset=two_routes"]

OWN = """
from trimtab.algorithms.offline.bc import BehaviorCloning


class Cloning(BehaviorCloning):
    def __init__(self, setup, *, beta: float = 1.0, **keywords):
        super().__init__(setup, **keywords)
        self.beta = beta
"""

HOME = os.path.expanduser("~")
WRONG = {
    "a setting": (["sede=1"], "sede: there is no such setting; did you mean seed?"),
    "a setting of the loop": (["online_step=1"], "did you mean online_steps?"),
    "nothing like a setting": (["xyzzy=1"], "there are: env, "),
    "a method": (["algorithm=dsrl_sak"], "algorithm=dsrl_sak: did you mean dsrl_sac?"),
    "a method's former name": (
        ["algorithm=d_ppo"],
        "algorithm=d_ppo: is called dropout_ppo now; write algorithm=dropout_ppo",
    ),
    "a method's former name after its keyword": (
        ["algorithm.clip=0.1", "algorithm=d_ppo"],
        "algorithm=d_ppo: is called dropout_ppo now; write algorithm=dropout_ppo",
    ),
    "a policy after its keyword": (["policy.hidden=[8]", "policy=flwo"], "did you mean flow?"),
    "a dataset after its setting": (
        ["dataset.episodes=4", "dataset=two_rotes"],
        "dataset=two_rotes: did you mean two_routes?",
    ),
    "a policy": (["policy=flwo"], "policy=flwo: did you mean flow?"),
    "a dataset": (["dataset=two_route"], "dataset=two_route: did you mean two_routes?"),
    "a method's keyword": (["algorithm.lerning_rate=1"], "did you mean learning_rate?"),
    "a policy's keyword": (["policy.hiden=[8]"], "did you mean hidden?"),
    "an added keyword": (["+algorithm.lerning_rate=1"], "did you mean learning_rate?"),
    "another method's keyword": (["algorithm.tau=0.1"], "algorithm.tau: bc has no such setting"),
    "a recipe's key": (["dataset.episode=3"], "dataset.episode: two_routes has no such setting"),
    "a controller's keyword": (["dataset.controller.niose=0"], "did you mean noise?"),
    "no sign of equality": (["seed"], "settings: "),
    "a lone bracket": (
        ["policy.hidden=[8"],
        "policy.hidden=[8: cannot be read; if it is text, put it into quotes",
    ),
    "half a call": (["suite_name=a=b("], "suite_name=a=b(: cannot be read; if it is text, put"),
    "an unknown interpolation": (["base=${sed}"], "settings: "),
    "a seed that is text": (["seed=one"], "seed=one: must be a whole number of at least 0"),
    "a negative seed": (["seed=-1"], "seed=-1: must be a whole number of at least 0"),
    "a seed that is a flag": (["seed=true"], "seed=True: must be a whole number"),
    "half a step": (["online_steps=1.5"], "online_steps=1.5: must be a whole number"),
    "no environments": (["num_envs=0"], "num_envs=0: must be a whole number of at least 1"),
    "no episodes": (["eval_episodes=0"], "eval_episodes=0: must be"),
    "an empty chunk": (["act_steps=0"], "act_steps=0: must be"),
    "checkpoints never": (["checkpoint_every=0"], "checkpoint_every=0: must be"),
    "a discount above 1": (["discount=1.5"], "discount=1.5: must be a number from 0 to 1"),
    "a discount that is text": (["discount=a"], "discount=a: must be a number from 0 to 1"),
    "an env that is a number": (["env=3"], "env=3: must be the id of a task"),
    "a base that is a number": (["base=3"], "base=3: must be text"),
    "a place that is a number": (["out=3"], "out=3: must be text"),
    "no place": (["out=null"], "out=None: must be text"),
    "an unknown device": (["device=abacus"], "device=abacus: torch has no such device"),
    "a device number too many": (["device=cuda:99"], "device=cuda:99: torch has no such device"),
    "judging half": (["eval_deterministic=half"], "eval_deterministic=half: must be true"),
    "keeping some": (["keep_policies=some"], "keep_policies=some: must be true or false"),
    "a seed beyond generators": (["seed=4294967296"], "seed=4294967296: must be at most 429496729"),
    "more steps than there are": (
        [f"online_steps={10**30}"],
        "must be at most 9223372036854775807",
    ),
    "more copies than there are": ([f"num_envs={2**31}"], "num_envs=2147483648: must be at most"),
    "an empty place": (["out="], "out=: is empty"),
    "an empty base": (["base="], "base=: is empty"),
    "a device without numbers": (["device=meta"], "device=meta: torch has no such device"),
    "a class that is none": (["algorithm._target_=os.getpid"], "=os.getpid: is no class"),
    "a class of a module that is none": (["policy._target_=no.Class"], "cannot be imported (Mod"),
    "a class that is a number": (["algorithm._target_=5"], "algorithm._target_=5: must be a class"),
    "a method of nothing": (["algorithm=null"], "algorithm=null: name one, or leave it out"),
    "data of nothing": (["dataset=null"], "dataset=null: name one, or leave it out"),
    "no seed": (["~seed"], "~seed: a run needs it"),
    "no options": (["~env_options"], "~env_options: a run needs it"),
    "a path that is a number": (["dataset=folder", "dataset.path=5"], "dataset.path=5: must be t"),
    "no path": (["dataset=folder", "dataset.path="], "dataset.path=: is empty"),
    "a name that is a list": (["dataset=external", "dataset.name=[a]"], "dataset.name=['a']: must"),
    "weightings": (["dataset_weighting=[return]"], "dataset_weighting=['return']: there is no"),
    "options that are no mapping": (["env_options=3"], "env_options: must be a mapping"),
    "a rate that is text": (["algorithm.learning_rate=fast"], "algorithm.learning_rate=fast: must"),
    "a batch of a half": (["algorithm.batch_size=0.5"], "algorithm.batch_size=0.5: must be of"),
    "a batch that is a flag": (["algorithm.batch_size=true"], "must be of type int"),
    "a batch of a billion": (
        ["algorithm.batch_size=1000000000"],
        "algorithm.batch_size=1000000000: must be at most 1048576",
    ),
    "a billion steps of sampling": (
        ["policy.sampling_steps=1000000000"],
        "policy.sampling_steps=1000000000: must be at most 10000",
    ),
    "a million candidates": (
        ["algorithm=best_of_n", "algorithm.candidates=1000000"],
        "algorithm.candidates=1000000: must be at most 10000",
    ),
    "three thousand critics": (
        ["algorithm=sac", "algorithm.critics=3000"],
        "algorithm.critics=3000: must be at most 1000",
    ),
    "a learning rate below 0": (
        ["algorithm=td3_bc", "algorithm.learning_rate=-1"],
        "algorithm.learning_rate=-1: must be a number of at least 0",
    ),
    "a learning rate that is no number": (
        ["algorithm=a2pr", "algorithm.vae_learning_rate=nan"],
        "algorithm.vae_learning_rate=nan: must be a number of at least 0",
    ),
    "a setting that is no number": (
        ["algorithm=cfgrl", "algorithm.guidance=nan"],
        "algorithm.guidance=nan: is not a number",
    ),
    "a number beyond whole numbers": (
        ["algorithm=oppo", "algorithm.foresee=1e30"],
        "algorithm.foresee=1000000000000000019884624838656: must be at most 9223372036854775807",
    ),
    "a width below 0": (
        ["algorithm=consistency_distillation", "algorithm.time_dim=-1"],
        "algorithm.time_dim=-1: must be a whole number of at least 0",
    ),
    "an embedding of a million numbers": (
        ["algorithm=oppo", "algorithm.latent=1000000"],
        "algorithm.latent=1000000: must be at most 65536",
    ),
    "a million copies": (["num_envs=1000000"], "num_envs=1000000: must be at most 65536"),
    "a chunk without end": (["act_steps=100000"], "act_steps=100000: must be at most 1000"),
    "a class that is no method": (
        ["algorithm._target_=pathlib.Path"],
        "algorithm._target_=pathlib.Path: is no algorithm: no child of Algorithm in",
    ),
    "a class that is no policy": (["policy._target_=pathlib.Path"], "is no policy: no child of Po"),
    "another class's keyword": (
        ["algorithm._target_=trimtab.algorithms.off_policy.sac.SAC", "algorithm.tua=0.1"],
        "algorithm.tua: trimtab.algorithms.off_policy.sac.SAC has no such setting; did you mean t",
    ),
    "a setting of Hydra's": (
        ["hydra.searchpath=[file:///x]"],
        "hydra.searchpath=[file:///x]: Hydra's own settings have no effect here",
    ),
    "a method that is a folder": (["algorithm=./"], "algorithm=./: is a folder; give a .yaml"),
    "a method at a path": (["algorithm=./mine"], "algorithm=./mine: is no name; give a .yaml file"),
    "a method that is a number": (["algorithm=1e30"], "algorithm=1e+30: there are "),
    "a number that is no dataset to leave out": (["~dataset=inf"], "~dataset=inf: leave the word"),
    "methods": (["algorithm=[bc,sac]"], "algorithm=[bc,sac]: name one, or leave it out"),
    "a policy that is a flag": (["policy=true"], "policy=True: there are: "),
    "one width": (["policy.hidden=8"], "policy.hidden=8: must be of type Sequence[int]"),
    "widths that are text": (["policy.hidden=[a]"], "policy.hidden=['a']: must be of type Seq"),
}


KEYWORDS_OF_OWN = """
from collections.abc import Sequence

from trimtab.algorithms.offline.bc import BehaviorCloning


class Own(BehaviorCloning):
    def __init__(
        self,
        setup: object,
        *,
        embedding: str = "clip",
        latent: list[int] | None = None,
        bins: int | None = 8,
        head_learning_rate: str = "cosine",
        context: int = 4,
        layers: tuple[int, int] = (8, 8),
        candidates: Sequence[int] = (1,),
    ) -> None:
        super().__init__(setup)
"""


def test_keywords_of_ones_own_have_the_rules_of_their_names_where_they_are_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_keywords.py").write_text(KEYWORDS_OF_OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = [*BC, "algorithm._target_=own_keywords.Own"]
    words = ["embedding=bert", "latent=[8,8]", "bins=null", "head_learning_rate=step"]
    words += ["layers=[3,3]", "candidates=[5,6]"]
    found = compose_run([*own, *(f"algorithm.{word}" for word in words)])["algorithm"]
    assert (found["embedding"], found["latent"], found["bins"]) == ("bert", [8, 8], None)
    with pytest.raises(TrimtabError, match="algorithm.context=1000000: must be at most 10000"):
        compose_run([*own, "algorithm.context=1000000"])
    with pytest.raises(TrimtabError, match="algorithm.bins=-1: must be a whole number of at least"):
        compose_run([*own, "algorithm.bins=-1"])


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("online_steps=1e3", "online_steps", 1000),
        ("eval_episodes=5.0", "eval_episodes", 5),
        ("out=a b", "out", "a b"),
        ("out=a(b)", "out", "a(b)"),
        ("out=a=b", "out", "a=b"),
        ("out={x}", "out", "{x}"),
        ("out=a,b", "out", "a,b"),
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
        ("dataset='~/x.hdf5'", "path", f"{HOME}/x.hdf5"),
        ('dataset="~/x y.hdf5"', "path", f"{HOME}/x y.hdf5"),
        ("dataset=~/x y(1),b=[2].hdf5", "path", f"{HOME}/x y(1),b=[2].hdf5"),
        ("dataset=~", "path", HOME),
        ("dataset=x.hdf5", "path", "x.hdf5"),
        ("dataset=[~/a b,c(1)]", "runs", [f"{HOME}/a b", "c(1)"]),
        ("dataset=['~/a,b']", "runs", [f"{HOME}/a,b"]),
        ("dataset=[runs/seed${seed}]", "runs", ["runs/seed0"]),
    ],
)
def test_places_of_data_as_people_write_them_are_understood(
    word: str, key: str, value: Any
) -> None:
    found = compose_run([ENV, "algorithm=bc", "policy=flow", word])["dataset"]
    assert found[key] == value


def test_a_whole_number_may_be_written_with_an_exponent_where_one_is_asked_for() -> None:
    plain, short = (
        compose_run([*BC, f"algorithm.batch_size={size}", f"algorithm.learning_rate={rate}"])
        for size, rate in (("100", "1.0"), ("1e2", "1e0"))
    )
    assert plain.settings == short.settings
    assert type(short["algorithm"]["batch_size"]) is int
    assert type(short["algorithm"]["learning_rate"]) is float


@pytest.mark.parametrize("word", ["seed=0,1", "algorithm=bc,sac", "algorithm.tau=0.1,0.2"])
def test_several_values_without_a_sweep_are_told_what_to_add(word: str) -> None:
    with pytest.raises(TrimtabError, match="these are several runs, a sweep: add -m") as error:
        compose_run([*BC[:1], *(BC[1:2] if "algorithm=" not in word else []), *BC[2:], word])
    assert "\n" not in str(error.value)


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


def test_thousands_of_layers_are_refused() -> None:
    many = ",".join(["8"] * 3000)
    config = compose_run(["env=gym/Hopper-v5", "algorithm=sac", f"algorithm.hidden=[{many}]"])
    with pytest.raises(TrimtabError, match="hidden has 3000 layers: must be at most 256"):
        components(config).make_algorithm()


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_word_is_named_in_one_line(case: str) -> None:
    words, expected = WRONG[case]
    with pytest.raises(TrimtabError) as error:
        compose_run([*BC, *words])
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["algorithm=sac"], "env is not given: add env=…; see trimtab list env"),
        ([ENV], "algorithm"),
        (
            [ENV, "algorithm._target_=my.AWR"],
            "algorithm is not given: add algorithm=…; see trimtab",
        ),
        ([ENV, "algorithm=bc", "dataset.path=x"], "dataset is not given: add dataset=…; see trimt"),
        (
            ["experiment=push_sparse"],
            "^algorithm is not given: add algorithm=…; see trimtab list a",
        ),
        ([ENV, "algorithm=bc", "dataset=folder"], "dataset.path is not given: add dataset.path=…"),
    ],
)
def test_what_is_missing_is_asked_for(words: list[str], expected: str) -> None:
    with pytest.raises(TrimtabError, match=expected) as error:
        compose_run(words)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["env=gym/Hoper-v5", "algorithm=sac"], "gym/Hopper-v5"),
        (["env=gmy/Hopper-v5", "algorithm=sac"], "gym/"),
        (["env=gym/Hopper-v5", "algorithm=sac", "env_options.horizn=3"], "horizon"),
        (["env=gym/Hopper-v5", "algorithm=sac", "env_options.reward=spars"], "sparse"),
        (["env=gym/Hopper-v5", "algorithm=sac", "env_options.horizon=0"], "horizon"),
        (["env=gym/Hopper-v5", "algorithm=sac", f"env_options.horizon={10**20}"], "horizon must"),
        (
            [ENV, "algorithm=bc", "dataset=two_routes"],
            "bc needs policy=…; trimtab list policy shows what there is",
        ),
        ([ENV, "algorithm=bc", "policy=flow"], "bc needs dataset=…; trimtab list dataset"),
        ([ENV, "algorithm=dsrl_sac"], "dsrl_sac starts from a base policy: add base="),
        ([ENV, "algorithm=trpo", "algorithm.clip=0.3"], "algorithm.clip: trpo has no such setting"),
        ([ENV, "algorithm=sac", "offline_steps=5"], "offline_steps=5: sac needs dataset=…"),
    ],
)
def test_what_the_task_or_the_method_refuses_is_named(words: list[str], expected: str) -> None:
    with pytest.raises(TrimtabError) as error:
        components(compose_run(words))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_value_that_a_constructor_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "somebodys_sac.py").write_text(
        "from trimtab.algorithms.off_policy.sac import SAC\n"
        "class Picky(SAC):\n"
        "    def __init__(self, setup, *, odd=2, **sac):\n"
        "        super().__init__(setup, **sac)\n"
        "        if odd % 2 == 0:\n"
        "            raise ValueError('an odd number, please')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["algorithm=sac", "algorithm._target_=somebodys_sac.Picky"]
    parts = components(compose_run([ENV, *words]))
    said = "sac cannot be made with these settings: an odd number, please; check algorithm"
    with pytest.raises(TrimtabError, match=said) as error:
        parts.make_algorithm()
    assert "\n" not in str(error.value)
    components(compose_run([ENV, *words, "+algorithm.odd=3"])).make_algorithm()


def test_settings_are_plain_values_and_a_method_sets_its_own() -> None:
    config = compose_run([*BC, "seed=3"])
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


def test_every_constructor_keyword_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    import trimtab.benchmarks.settings.overrides as module

    whole = module.conf_file

    def without_tau(name: str) -> object:
        loaded = whole(name)
        if name == "algorithm/sac.yaml":
            del loaded["algorithm"]["tau"]
        return loaded

    monkeypatch.setattr(module, "conf_file", without_tau)
    config = compose_run([ENV, "algorithm=sac", "algorithm.tau=0.25"])
    assert config["algorithm"]["tau"] == 0.25


def test_a_folder_is_short_for_its_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for written in (f"{tmp_path}", "./somewhere", "some/where"):
        config = compose_run([ENV, "algorithm=bc", "policy=flow", f"dataset={written}"])
        assert config.dataset == "folder"
        assert config["dataset"]["path"] == written
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    config = compose_run([ENV, "algorithm=bc", "policy=flow", "dataset=mine"])
    unsaid = {"keys": None, "mask": None, "horizon": None}
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


def test_letters_beyond_ascii_need_no_quotes() -> None:
    words = ["out=für/mich", "dataset=./größe.npz", "base=läufe/seed${seed}", "seed=3"]
    config = compose_run([ENV, "algorithm=bc", "policy=flow", *words])
    assert (config["out"], config["dataset"]["path"]) == ("für/mich", "./größe.npz")
    assert config["base"] == "läufe/seed3" and config.base_follows_seed
    quoted_before = compose_run([ENV, "algorithm=bc", "policy=flow", "out='für mich'", *words[1:]])
    assert quoted_before["out"] == "für mich"
