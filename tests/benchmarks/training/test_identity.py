"""What a run is known by: settings with their defaults, revisions, nothing of the machine."""

from __future__ import annotations

import inspect
import json
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from trimtab.algorithms.off_policy.annealed_sac import AnnealedSAC
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.offline.bc import BehaviorCloning
from trimtab.algorithms.steering.frozen import Frozen
from trimtab.benchmarks.suites.suite import load_suite
from trimtab.benchmarks.training import identity
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.identity import constructed, document_of, hash_of, revision_of
from trimtab.benchmarks.training.settings.config import RunConfig, compose_run
from trimtab.benchmarks.training.settings.constructors import class_of
from trimtab.benchmarks.training.settings.groups import group_options
from trimtab.benchmarks.training.train import train
from trimtab.datasets.recipes.waypoints import WaypointController
from trimtab.envs.registry import get_spec
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import PolicySpec

ONLINE = ("env=gym/InvertedPendulum-v5", "algorithm=sac")
OFFLINE = ("env=gym/InvertedPendulum-v5", "algorithm=bc", "policy=flow", "dataset=two_routes")


def document(*words: str, base: str | None = None) -> dict[str, Any]:
    return documented(compose_run(words), base)


def documented(config: RunConfig, base: str | None = None) -> dict[str, Any]:
    spec = get_spec(config["env"], **(config["env_options"] or {}))
    shape = PolicySpec(spec.obs_dim, 1, spec.action_dim, spec.action_low, spec.action_high)
    own = "trimtab.policies.kinds.tanh_gaussian.TanhGaussianPolicy"
    chosen = config["policy"] or {"_target_": own}
    keywords = {key: value for key, value in chosen.items() if key != "_target_"}
    policy = class_of(chosen["_target_"], "policy")(shape, **keywords)
    data = {"recipe": "0123456789"} if config["dataset"] is not None else None
    act_steps = config["act_steps"] or 1
    return document_of(config, spec, policy, act_steps=act_steps, dataset=data, base=base)


def known(*words: str, base: str | None = None) -> str:
    return hash_of(document(*words, base=base))


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm.learning_rate=3e-4", "algorithm.critics=2", "algorithm.layer_norm=false"],
        ["eval_deterministic=true"],
        ["algorithm.target_entropy=null", "env_options.reward=native", "act_steps=1"],
        ["discount=0.99", "algorithm.tau=0.005", "env_options.horizon=1000", "threads=1"],
        ["matmul_precision=highest"],
        ["seed=7", "out=elsewhere", "checkpoint_every=5", "keep_policies=true", "suite_name=x"],
        ["dataset_weighting=null", "weighting_temperature=3.0", "stream_above=1"],
        ["overlap=false", "graphs=false"],
    ],
)
def test_what_is_spelled_out_or_moves_no_number_is_the_same_run(words: list[str]) -> None:
    assert known(*ONLINE, *words) == known(*ONLINE)


@pytest.mark.parametrize(
    "word",
    [
        "algorithm.learning_rate=1e-3", "algorithm.hidden=[64,64]", "discount=0.9", "num_envs=2",
        "online_steps=7000", "eval_episodes=3", "eval_seed=1", "eval_every=100", "act_steps=2",
        "env_options.horizon=50", "eval_deterministic=false", "threads=2", "buffer_size=5000",
        "matmul_precision=high", "matmul_precision=medium",
        "overlap=true",
    ],
)  # fmt: skip
def test_what_moves_numbers_is_another_run(word: str) -> None:
    assert known(*ONLINE, word) != known(*ONLINE)


def test_whole_numbers_for_floats_are_the_same_run() -> None:
    assert known(*ONLINE, "discount=1") == known(*ONLINE, "discount=1.0")
    words = [f"algorithm.initial_temperature={value}" for value in ("1", "1.0")]
    assert known(*ONLINE, words[0]) == known(*ONLINE, words[1])


def test_whole_numbers_for_floats_of_a_policy_that_a_method_makes_are_the_same_run() -> None:
    words = ["env=gym/Hopper-v5", "algorithm=sac", "online_steps=6000"]
    spelled = [*words, "algorithm.log_std_min=-5"]
    usual, same = (checked_plan(compose_run(each)) for each in (words, spelled))
    assert same.identity == usual.identity


def test_groups_are_only_there_where_they_are_in_use() -> None:
    assert set(document(*ONLINE)) ^ set(document(*OFFLINE)) == {"online", "offline"}
    assert set(document(*ONLINE, "overlap=true")) ^ set(document(*ONLINE)) == {"collection"}
    assert document(*OFFLINE, "overlap=true") == document(*OFFLINE)  # refused, as none act
    weighted = document(*OFFLINE, "dataset_weighting=return")
    assert weighted["weighting"] == {"by": "return", "temperature": 0.1}
    assert known(*OFFLINE, "weighting_temperature=1.0") == known(*OFFLINE)
    assert known(*OFFLINE, base="one") != known(*OFFLINE, base="two")


def test_a_changed_default_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    section = {"_target_": f"{__name__}.OfTheUser"}
    monkeypatch.setitem(sys.modules, __name__, inspect.getmodule(OfTheUser))
    before = constructed("algorithm", "bc", section)
    assert before["settings"]["sizes"] == [1.0, 2.0]
    monkeypatch.setitem(OfTheUser.__init__.__kwdefaults__, "sizes", (1, 3))
    assert constructed("algorithm", "bc", section)["settings"]["sizes"] == [1.0, 3.0]


def test_a_raised_revision_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cloned, online = known(*OFFLINE), known(*ONLINE)
    monkeypatch.setattr(BehaviorCloning, "revision", 2, raising=False)
    changed = known(*OFFLINE)
    assert changed != cloned and known(*ONLINE) == online
    monkeypatch.setattr(FlowPolicy, "revision", 2, raising=False)
    assert known(*OFFLINE) not in (cloned, changed)
    monkeypatch.setattr(identity, "PROTOCOL_REVISION", identity.PROTOCOL_REVISION + 1)
    assert known(*ONLINE) != online


@pytest.mark.parametrize("name", ["sac", "td3", "ppo", "sb3_sac"])
def test_a_policy_that_a_method_makes_itself_is_in_the_identity(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose_run(["env=gym/InvertedPendulum-v5", f"algorithm={name}"])
    plan = checked_plan(config)
    kind = type(plan.algorithm.policy)
    (acting,) = plan.identity["acts"]
    assert acting["kind"] == kind.__module__.rpartition(".")[2] and acting["settings"]
    assert {"spec", "kind"}.isdisjoint(acting["settings"])
    monkeypatch.setattr(kind, "revision", kind.revision + 1)
    assert checked_plan(config).config_hash != plan.config_hash


def test_a_bases_kind_of_policy_is_in_the_identity(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose_run(tiny.online(tmp_path, "dsrl_sac"))
    plan = checked_plan(config)
    kinds = [one["kind"] for one in plan.identity["acts"]]
    assert sorted(kinds) == ["flow", "latent", "tanh_gaussian"]
    monkeypatch.setattr(FlowPolicy, "revision", FlowPolicy.revision + 1)
    assert checked_plan(config).config_hash != plan.config_hash


def test_an_edited_method_of_the_users_own_is_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my_clone.py"
    text = "from trimtab.algorithms.offline.bc import BehaviorCloning\n\n"
    text += "class Mine(BehaviorCloning):\n"
    file.write_text(text + "    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    section = {"_target_": "my_clone.Mine"}
    first = constructed("algorithm", "bc", section)
    assert first["name"] == "my_clone.Mine" and len(first["sources"]) == 1
    file.write_text(text + "    tau = 2\n")
    assert constructed("algorithm", "bc", section)["sources"] != first["sources"]


def test_a_parents_revision_is_its_childrens(monkeypatch: pytest.MonkeyPatch) -> None:
    child, stranger = revision_of(AnnealedSAC), revision_of(BehaviorCloning)
    monkeypatch.setattr(SAC, "revision", SAC.revision + 1)
    assert revision_of(AnnealedSAC) == child + 1 and revision_of(BehaviorCloning) == stranger


def test_a_moved_file_is_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = known(*OFFLINE)
    moved = types.ModuleType("moved")
    moved.BehaviorCloning = BehaviorCloning  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "moved", moved)
    monkeypatch.setattr(
        identity, "registered_target", lambda group, name: compose_run(OFFLINE)[group]["_target_"]
    )
    section = {**compose_run(OFFLINE)["algorithm"], "_target_": "moved.BehaviorCloning"}
    monkeypatch.setattr(identity, "registered_target", lambda group, name: "moved.BehaviorCloning")
    assert constructed("algorithm", "bc", section) == document(*OFFLINE)["method"] | {"name": "bc"}
    # The same class under a name of the user's own is the user's, and another method.
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "moved", moved)
    assert known(*OFFLINE, "algorithm._target_=moved.BehaviorCloning") != before


@pytest.mark.parametrize("name", group_options("algorithm"))
def test_every_method_is_known_by_plain_values(name: str) -> None:
    config = compose_run(["env=gym/InvertedPendulum-v5", f"algorithm={name}"])
    assert config.algorithm == name
    if not issubclass(class_of(config["algorithm"]["_target_"], "algorithm"), Frozen):
        assert config["online_steps"] + config["offline_steps"] > 0  # it changes something
    part = documented(config)["method"]
    assert json.loads(json.dumps(part)) == part and part["name"] == name
    assert part["revision"] >= 1


def test_old_rows_are_never_done_for_changed_mathematics(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tiny.cloning(tmp_path)
    first = train(compose_run(words))
    assert train(compose_run(words)).already_done
    monkeypatch.setattr(BehaviorCloning, "revision", 2, raising=False)
    again = train(compose_run(words))
    assert not again.already_done and again.folder != first.folder
    provenance = json.loads((again.folder / "provenance.json").read_text())
    assert hash_of(provenance["identity"]) == provenance["config_hash"] == again.folder.parts[-2]
    assert provenance["identity"]["method"]["revision"] == 2


def test_a_suite_is_not_done_for_changed_mathematics(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest() -> str:
        return load_suite("quickstart", "runs", [0], only=["maze-gaussian", "blocked-sac"]).digest

    before = digest()
    assert digest() == before
    for kind in (SAC, WaypointController):
        with monkeypatch.context() as patch:
            patch.setattr(kind, "revision", kind.revision + 1)
            assert digest() != before


def test_a_later_keyword_at_its_neutral_value_is_the_same_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = document(*ONLINE)["method"]["settings"]
    monkeypatch.setattr(SAC, "neutral", {"tau": 0.005})
    after = document(*ONLINE)["method"]["settings"]
    assert before == after | {"tau": 0.005} and "tau" not in after
    changed = document(*ONLINE, "algorithm.tau=0.01")["method"]["settings"]
    assert changed["tau"] == 0.01


class OfTheUser(BehaviorCloning):
    """A method with settings of several kinds."""

    def __init__(
        self, setup: Any, *, sizes: Sequence[float] = (1, 2), table: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(setup)


def test_lists_and_mappings_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    target = f"{OfTheUser.__module__}.OfTheUser"
    monkeypatch.setitem(sys.modules, OfTheUser.__module__, inspect.getmodule(OfTheUser))
    part = constructed("algorithm", "bc", {"_target_": target, "table": {"a": 1}})
    assert part["name"] == target
    assert part["settings"] == {"sizes": [1.0, 2.0], "table": {"a": 1}}
