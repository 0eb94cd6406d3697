"""Settings and code name the same things: every YAML composes, no key is unknown to the code."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from trimtab.algorithms.base import Algorithm
from trimtab.benchmarks.recipe_kinds.others import parts_of
from trimtab.benchmarks.training.data.behaviour import BehaviourPolicy
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings.constructors import class_of, keywords
from trimtab.benchmarks.training.settings.explained import keywords_help
from trimtab.benchmarks.training.settings.groups import group_options
from trimtab.benchmarks.training.settings.run_settings import RunSettings
from trimtab.discovery import modules_in
from trimtab.envs.registry import list_envs
from trimtab.policies.registry import policy_kinds
from trimtab.types import PolicySpec

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "conf").glob("*/*.yaml"))
ALGORITHMS = sorted(path.stem for path in (ROOT / "conf" / "algorithm").glob("*.yaml"))
POLICIES = sorted(path.stem for path in (ROOT / "conf" / "policy").glob("*.yaml"))
RECIPES = sorted(
    path.stem for path in (ROOT / "conf" / "dataset").glob("*.yaml") if "id" in OmegaConf.load(path)
)
RECIPE_KEYS = {"id", "env", "env_options", "seed", "only_successful", "controller"}
ENV = "env=robotics/PointMaze-TwoRoutes-v0"


def section(group: str, name: str) -> dict[str, Any]:
    """Return what a YAML sets of its own group."""
    loaded = OmegaConf.load(ROOT / "conf" / group / f"{name}.yaml")
    assert isinstance(loaded, DictConfig)
    values = OmegaConf.to_container(loaded.get(group, loaded), resolve=False)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def algorithms_in_code() -> dict[str, type[Algorithm]]:
    """Return every concrete method by the name of its module."""
    found: dict[str, type[Algorithm]] = {}
    for module in modules_in("algorithms"):
        name = module.__name__.rpartition(".")[2]
        for value in vars(module).values():
            if not (inspect.isclass(value) and issubclass(value, Algorithm)):
                continue
            if value.__module__ == module.__name__ and not inspect.isabstract(value):
                assert name not in found, f"two methods in {module.__name__}, or two of this name"
                found[name] = value
    return found


def test_there_is_something_to_test() -> None:
    assert {"bc", "dsrl_na", "dsrl_sac", "frozen", "sac"} <= set(ALGORITHMS)
    assert {"diffusion", "flow", "gaussian"} <= set(POLICIES)
    assert {"push_noisy", "two_routes"} <= set(RECIPES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_file_is_found_by_its_group_and_parses(path: Path) -> None:
    assert path.stem in group_options(path.parent.name)
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig) and len(loaded) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_composes(policy: str) -> None:
    config = compose_run([ENV, "algorithm=bc", "dataset=two_routes", f"policy={policy}"])
    assert config.policy == policy
    assert config["policy"] == section("policy", policy)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_composes(recipe: str) -> None:
    config = compose_run([ENV, "algorithm=bc", "policy=flow", f"dataset={recipe}"])
    assert config.dataset == recipe
    assert config["dataset"] == section("dataset", recipe)


def test_every_experiment_composes() -> None:
    for experiment in group_options("experiment"):
        compose_run([f"experiment={experiment}", "algorithm=sac"])


def test_every_method_has_its_yaml_and_every_yaml_its_method() -> None:
    in_code = algorithms_in_code()
    assert set(in_code) <= set(ALGORITHMS)
    for name, algorithm in in_code.items():
        target = section("algorithm", name)["_target_"]
        assert target == f"{algorithm.__module__}.{algorithm.__name__}"
    # A method that is another one with other settings has a YAML and no module: RLPD.
    for name in set(ALGORITHMS) - set(in_code):
        module = section("algorithm", name)["_target_"].split(".")[-2]
        assert module in in_code


def test_every_policy_yaml_names_a_kind_and_every_kind_that_can_be_built_has_one() -> None:
    kinds = policy_kinds()
    for name in POLICIES:
        kind = kinds[name]
        assert section("policy", name)["_target_"] == f"{kind.__module__}.{kind.__qualname__}"
    # Kinds that are made of other policies (latent), or say so, are built by methods, not chosen.
    alone = {
        name
        for name, kind in kinds.items()
        if [
            parameter.name
            for parameter in inspect.signature(kind).parameters.values()
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        == ["spec"]
        and not kind.built_by_method
    }
    assert alone == set(POLICIES)


@pytest.mark.parametrize(
    ("group", "name"),
    [("algorithm", name) for name in ALGORITHMS] + [("policy", name) for name in POLICIES],
)
def test_keys_are_keywords_of_the_constructor(group: str, name: str) -> None:
    values = section(group, name)
    known = keywords(values.pop("_target_"))
    assert set(values) <= set(known)
    assert all(parameter.default is not parameter.empty for parameter in known.values())


@pytest.mark.parametrize(
    ("group", "name"),
    [("algorithm", name) for name in ALGORITHMS] + [("policy", name) for name in POLICIES],
)
def test_help_tells_what_every_keyword_means(group: str, name: str) -> None:
    lines = keywords_help(group, name)
    values = section(group, name)
    target = values.pop("_target_")
    derived = getattr(class_of(target, "_target_"), "derived", frozenset())
    for key in set(keywords(target)) - derived:  # what follows from others is no setting
        (line,) = [line for line in lines if line.startswith(f"  {group}.{key}: ")]
        told = line.partition(" # ")[2]
        assert told and not told.startswith("as in"), line
        if isinstance(values.get(key), list):
            assert f"{group}.{key}: {values[key]} #" in line


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_a_method_sets_of_the_run_are_settings_of_the_run(name: str) -> None:
    settings = {*vars(RunSettings()), "algorithm"}
    file = OmegaConf.load(ROOT / "conf" / "algorithm" / f"{name}.yaml")
    assert {str(key) for key in file} <= settings


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_have_the_known_keys_and_say_who_acts(name: str) -> None:
    recipe = section("dataset", name)
    assert recipe["env"] in list_envs()
    if "run" in recipe:
        assert set(recipe) == {"id", "env", "env_options", "seed", "run"}
        words = [*recipe["run"], f"env={recipe['env']}"]
        assert compose_run(words)["online_steps"] > 0
        return
    if "of" in recipe:
        assert set(recipe) == {"id", "env", "env_options", "of"}
        assert len(parts_of(recipe)) > 1
        return
    assert set(recipe) in (RECIPE_KEYS | {"episodes"}, RECIPE_KEYS | {"steps"})
    controller = dict(recipe["controller"])
    target = get_class(controller.pop("_target_"))
    own = target.__module__.startswith("trimtab.datasets.recipes.")
    assert own or target is BehaviourPolicy
    assert set(controller) <= set(keywords(f"{target.__module__}.{target.__qualname__}"))
    assert callable(target.act)  # type: ignore[attr-defined]
    positional = list(inspect.signature(target).parameters)[:2]
    assert positional == ["task", "generator"]


def test_the_target_of_every_file_is_our_own() -> None:
    def targets(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["_target_"]] if "_target_" in value else []
            return own + [found for item in value.values() for found in targets(item)]
        if isinstance(value, list):
            return [found for item in value for found in targets(item)]
        return []

    found = [t for path in FILES for t in targets(OmegaConf.to_container(OmegaConf.load(path)))]
    controllers = [name for name in RECIPES if "controller" in section("dataset", name)]
    assert len(found) >= len(ALGORITHMS) + len(POLICIES) + len(controllers) >= 1
    assert all(target.startswith("trimtab.") for target in found)


def test_a_policys_yaml_is_enough_to_build_it() -> None:
    spec = PolicySpec(3, 2, 1, (-1.0,), (1.0,))
    for policy in POLICIES:
        settings = dict(section("policy", policy))
        made = get_class(settings.pop("_target_"))(spec, **settings)
        assert made.label == policy
