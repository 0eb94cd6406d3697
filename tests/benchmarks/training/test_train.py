"""The one loop: what a run leaves behind, when it is done, and what its hash stands for."""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from trimtab.benchmarks.training import base, plan
from trimtab.benchmarks.training import run as loop
from trimtab.benchmarks.training.checkpoint import load_checkpoint
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.result import Result
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.envs.engines.episodes import EpisodeVectorEnv
from trimtab.files import sha256_file
from trimtab.policies.bundle.bundle import bundle_hash, load_bundle
from trimtab.processor import processor_kind
from trimtab.types import TrimtabError

COLUMNS = [
    "suite", "env", "algorithm", "policy", "dataset", "base", "seed", "env_steps", "updates",
    "eval_episode", "eval_seed", "return", "success", "length", "seconds", "fingerprint",
    "config_hash", "hash_version", "revision", "policy_revision", "protocol_revision", "act_steps",
    "deterministic", "success_rule", "horizon", "control_hz", "delay_ms", "device", "metrics",
]  # fmt: skip
CONTENTS = {
    "config.yaml", "provenance.json", "metrics.jsonl", "episodes.parquet", "result.json",
    "checkpoint", "policy", "run.lock",
}  # fmt: skip
MAZE = "robotics/PointMaze-TwoRoutes-v0"


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log, which must be strict JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in metrics.jsonl")

    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


@pytest.fixture(scope="module")
def cloned(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run of behaviour cloning."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "LOG_EVERY", 40)
        return train(compose_run(tiny.cloning(tmp_path_factory.mktemp("cloned"))))


@pytest.fixture(scope="module")
def steered(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, list[float]]:
    """A run of DSRL-SAC, with the shares that it reported."""
    shares: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "LOG_EVERY", 40)
        words = [*tiny.online(tmp_path_factory.mktemp("steered"), "dsrl_sac"), "suite_name=tests"]
        result = train(compose_run(words), lambda share, text: shares.append(share))
    return result, shares


def test_a_run_leaves_what_the_design_says(cloned: Result, steered: tuple[Result, Any]) -> None:
    for result in (cloned, steered[0]):
        assert {path.name for path in result.folder.iterdir()} == CONTENTS
        assert not list(result.folder.rglob("*.tmp"))
        assert json.loads((result.folder / "result.json").read_text()) == result.summary
        assert not result.already_done
        method, digest, seed = result.folder.parts[-3:]
        assert (method, digest) == (result.summary["algorithm"], result.summary["config_hash"])
        assert seed == "seed0"
        assert str(result.folder.parents[2]).endswith(MAZE)


@pytest.mark.parametrize("steers", [False, True])
def test_a_run_makes_its_method_and_opens_its_base_once(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, steers: bool
) -> None:
    made: list[str] = []

    def counted(module: Any, name: str) -> None:
        original = getattr(module, name)

        def call(*given: Any, **more: Any) -> Any:
            made.append(name)
            return original(*given, **more)

        monkeypatch.setattr(module, name, call)

    counted(plan, "make_method")
    counted(base, "open_bundle")
    train(compose_run(tiny.online(tmp_path, "dsrl_sac") if steers else tiny.cloning(tmp_path)))
    assert sorted(made) == (["make_method", "open_bundle"] if steers else ["make_method"])


def test_a_method_that_was_made_before_its_recipe_s_data_is_made_anew(tmp_path: Path) -> None:
    """The hash names the folder, so the method is made first with placeholder statistics."""
    words = ["env=robotics/PointMaze-TwoRoutes-v0", "dataset=two_routes", "dataset.episodes=2"]
    words += ["algorithm=bc", "policy=flow", "act_steps=4", "offline_steps=2", f"out={tmp_path}"]
    planned = checked_plan(compose_run(words))
    before, named = planned.algorithm, planned.config_hash
    planned.load_dataset()
    assert planned.algorithm is not before and planned.config_hash == named
    assert planned.dataset is not None
    fitted = copy.deepcopy(planned.algorithm.policy)
    fitted.fit_normalizer(planned.dataset.statistics())
    expected, placeholders = fitted.state_dict(), before.policy.state_dict()
    for name, value in planned.algorithm.policy.state_dict().items():
        assert torch.equal(value, expected[name]), name
    shift = next(name for name in expected if name.endswith("obs_shift"))
    assert not torch.equal(expected[shift], placeholders[shift])


def test_the_rows_of_a_cloning_run(cloned: Result) -> None:
    table = read_episodes(cloned.folder / "episodes.parquet")
    assert table.column_names == COLUMNS
    rows = table.to_pylist()
    # Every 50 of 120 updates and at the end, two episodes each.
    assert [row["updates"] for row in rows] == [50, 50, 100, 100, 120, 120]
    assert [row["eval_episode"] for row in rows] == [0, 1] * 3
    assert [row["eval_seed"] for row in rows] == [1_000_000, 1_000_001] * 3
    for row in rows:
        assert (row["env"], row["algorithm"], row["policy"]) == (MAZE, "bc", "flow")
        assert (row["suite"], row["base"], row["seed"], row["env_steps"]) == (None, None, 0, 0)
        assert re.fullmatch(r"trimtab/two-routes-[0-9a-f]{10}-v0", row["dataset"])
        assert row["config_hash"] == cloned.summary["config_hash"]
        assert 0 < row["length"] <= 28 and row["seconds"] > 0
        assert row["success"] in (False, True)
        assert len(row["fingerprint"]) == 12
    last = [row["return"] for row in rows[-2:]]
    assert cloned.summary["return"] == pytest.approx(sum(last) / 2)
    assert cloned.summary["episodes"] == 2


def test_the_rows_of_a_steering_run(
    cloned: Result, steered: tuple[Result, list[float]], tiny: Any
) -> None:
    result, shares = steered
    rows = read_episodes(result.folder / "episodes.parquet").to_pylist()
    assert sorted({row["env_steps"] for row in rows}) == [152, 304, 320]
    base_hash = tiny.base.parts[-2]
    for row in rows:
        assert (row["suite"], row["dataset"], row["policy"]) == ("tests", None, "flow")
        assert row["base"] == f"bc-flow-{base_hash}"
    # 48 warm-up steps are 6 decisions; the 35 from then on make 2 updates an environment.
    assert result.summary["updates"] == 35 * 2 * 2
    assert result.summary["env_steps"] == 320
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_the_log_of_metrics(cloned: Result, steered: tuple[Result, Any]) -> None:
    offline, online = metrics(cloned.folder), metrics(steered[0].folder)
    assert [line["updates"] for line in offline] == [40, 80, 120, 120]
    assert all(line["env_steps"] == 0 for line in offline)
    assert offline[0]["bc_loss"] > 0 and offline[0]["seconds"] > 0
    assert [line["updates"] for line in online] == [40, 80, 120, 140]
    assert {"critic_loss", "actor_loss", "temperature", "episodes"} <= set(online[-1])
    assert online[-1]["episodes"] == 2 * (160 // 28)
    seconds = [line["seconds"] for line in online]
    assert seconds == sorted(seconds)


def test_the_policy_is_a_bundle_of_the_learned_weights(cloned: Result, tiny: Any) -> None:
    bundle = load_bundle(cloned.folder / "policy")
    training = bundle.config["training"]
    assert (training["algorithm"], training["policy"], training["seed"]) == ("bc", "flow", 0)
    assert training["config_hash"] == cloned.summary["config_hash"]
    assert (training["updates"], training["env_steps"]) == (120, 0)
    assert bundle.config["chunking"]["act_steps"] == 4
    state = load_checkpoint(cloned.folder / "checkpoint")
    assert state is not None
    for name, value in bundle.policy.state_dict().items():
        assert (value == state["algorithm"]["policy"][name]).all(), name


def test_what_is_written_down_of_a_run(steered: tuple[Result, Any], tiny: Any) -> None:
    folder = steered[0].folder
    settings = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    assert isinstance(settings, dict)
    assert settings["algorithm"]["hidden"] == [16] and settings["base"] == str(tiny.base)
    document = json.loads((folder / "provenance.json").read_text())
    assert document["base"] == bundle_hash(tiny.base / "policy")
    assert document["dataset"] is None
    assert document["env"]["id"] == MAZE and len(document["env"]["fingerprint"]) == 12
    confirmed = document["env"]["confirmation"]
    assert confirmed["agrees"] and 0 <= confirmed["deviation"] <= confirmed["tolerance"]
    assert confirmed["processor"] == processor_kind() and len(confirmed["bits"]) == 12
    assert {"trimtab", "torch", "mujoco"} <= set(document["packages"])


def test_a_finished_run_says_so_and_changes_nothing(cloned: Result, tiny: Any) -> None:
    before = {path: path.stat().st_mtime_ns for path in cloned.folder.rglob("*")}
    again = train(compose_run(tiny.cloning(cloned.folder.parents[4])))
    assert again.already_done
    assert (again.folder, again.summary) == (cloned.folder, cloned.summary)
    assert {path: path.stat().st_mtime_ns for path in cloned.folder.rglob("*")} == before


@pytest.mark.bits
def test_the_same_settings_give_the_same_weights_elsewhere(
    cloned: Result, tiny: Any, tmp_path: Path
) -> None:
    words = tiny.cloning(tmp_path)
    words_again = [*words[::-1], "checkpoint_every=50", "keep_policies=true"]
    again = train(compose_run(words_again))  # order says nothing
    weights = [r.folder / "policy" / "model.safetensors" for r in (cloned, again)]
    assert sha256_file(weights[0]) == sha256_file(weights[1])
    kept = sorted(again.folder.glob("policies/*"), key=lambda folder: int(folder.name))
    rows = read_episodes(again.folder / "episodes.parquet").to_pylist()
    assert [int(folder.name) for folder in kept] == sorted({row["updates"] for row in rows})
    assert sha256_file(kept[-1] / "model.safetensors") == sha256_file(weights[0])
    assert not (cloned.folder / "policies").exists()
    assert again.summary["config_hash"] == cloned.summary["config_hash"]
    other = train(compose_run([*words, "seed=1"]))
    assert sha256_file(other.folder / "policy" / "model.safetensors") != sha256_file(weights[0])
    assert other.folder == again.folder.parent / "seed1"


def test_the_hash_is_over_what_decides_the_numbers(tiny: Any, tmp_path: Path) -> None:
    def digest(*words: str) -> str:
        return checked_plan(compose_run([*tiny.cloning(tmp_path), *words])).config_hash

    whole = digest()
    for same in (["seed=5"], ["suite_name=s"], ["checkpoint_every=7"], ["out=elsewhere"]):
        assert digest(*same) == whole
    for other in (
        ["algorithm.batch_size=8"], ["policy.hidden=[17]"], ["act_steps=2"],
        ["offline_steps=121"], ["eval_seed=1"], ["discount=0.9"], ["env_options.horizon=29"],
        ["algorithm.ema_decay=0.5"],
    ):  # fmt: skip
        assert digest(*other) != whole, other


def copy_of_base(tiny: Any, place: Path, **changes: Any) -> Path:
    """Return a copy of the base run whose bundle says other things of its training."""
    shutil.copytree(tiny.base, place)
    if changes:
        from trimtab.policies.bundle.bundle import save_bundle

        bundle = load_bundle(tiny.base / "policy")
        env = bundle.config["env"]
        contract = {
            "env": env["id"], "env_options": env["options"], "fingerprint": env["fingerprint"],
            "control_rate": bundle.config["control_rate"], "act_steps": 4,
            "training": {**bundle.config["training"], **changes},
        }  # fmt: skip
        shutil.rmtree(place / "policy")
        with_noise = bundle.policy
        for parameter in with_noise.parameters():
            parameter.data.mul_(1.5)
        save_bundle(with_noise, place / "policy", contract=contract, onnx=False)
    return place


def test_a_base_that_follows_the_seed_is_known_by_its_configuration(
    tiny: Any, tmp_path: Path
) -> None:
    copy_of_base(tiny, tmp_path / "bases" / "seed0")
    copy_of_base(tiny, tmp_path / "bases" / "seed1", seed=1)

    def frozen(base: str, seed: int) -> Any:
        words = [*tiny.task(tmp_path), "algorithm=frozen", f"base={base}", f"seed={seed}"]
        return checked_plan(compose_run(words))

    place = f"{tmp_path}/bases"
    follows = [frozen(f"{place}/seed${{seed}}", seed) for seed in (0, 1)]
    assert follows[0].config_hash == follows[1].config_hash
    assert follows[0].base_label == follows[1].base_label == f"bc-flow-{tiny.base.parts[-2]}"
    fixed = [frozen(f"{place}/seed{seed}", 0) for seed in (0, 1)]
    assert fixed[0].config_hash != fixed[1].config_hash
    assert frozen(f"{place}/seed0", 1).config_hash == fixed[0].config_hash


def test_a_run_does_not_go_on_from_another_base(tiny: Any, tmp_path: Path) -> None:
    words = [*tiny.task(tmp_path / "runs"), "algorithm=frozen"]
    words.append(f"base={tmp_path}/bases/seed${{seed}}")
    copy_of_base(tiny, tmp_path / "bases" / "seed0")
    done = train(compose_run(words))
    assert train(compose_run(words)).already_done
    shutil.rmtree(tmp_path / "bases")
    copy_of_base(tiny, tmp_path / "bases" / "seed0", note="trained again")
    with pytest.raises(TrimtabError, match="started from another base") as error:
        train(compose_run(words))
    assert "\n" not in str(error.value)
    (done.folder / "result.json").unlink()  # nor when it is not finished
    with pytest.raises(TrimtabError, match="started from another base"):
        train(compose_run(words))


def test_steering_and_judging_leave_the_base_as_it_is(
    steered: tuple[Result, Any], tiny: Any
) -> None:
    base = load_bundle(tiny.base / "policy").policy.state_dict()
    carried = load_bundle(steered[0].folder / "policy").policy.state_dict()
    for name, value in base.items():
        assert (carried[f"base.{name}"] == value).all(), name


@pytest.mark.parametrize("method", ["bc", "sac"])
def test_a_loss_that_is_not_finite_stops_the_run(method: str, tiny: Any, tmp_path: Path) -> None:
    words = tiny.cloning(tmp_path) if method == "bc" else tiny.online(tmp_path, method)
    words += ["algorithm.learning_rate=1.0e+30"]
    if method == "bc":
        words += ["algorithm.final_learning_rate=1.0e+30"]
    with pytest.raises(TrimtabError, match=r"at update \d+, .*: (\w+) is (nan|inf|-inf);") as error:
        train(compose_run(words))
    message = str(error.value)
    term = message.split(": ", 2)[2].split(" is ")[0]
    assert term in ("bc_loss", "critic_loss", "q_mean", "actor_loss", "entropy", "temperature")
    assert "\n" not in message
    assert not list(tmp_path.rglob("result.json")) + list(tmp_path.rglob("*.tmp"))
    for path in tmp_path.rglob("metrics.jsonl"):
        assert all(math.isfinite(v) for line in metrics(path.parent) for v in line.values())


@pytest.mark.parametrize("what", ["reward", "observation"])
def test_a_simulator_that_gives_no_number_stops_the_run_before_it_is_stored(
    what: str, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, steps = EpisodeVectorEnv.step, [0]

    def broken(self: EpisodeVectorEnv, actions: Any) -> Any:
        obs, reward, *rest = whole(self, actions)
        steps[0] += 1
        if steps[0] == 15:
            (reward if what == "reward" else obs)[0] = np.nan
        return obs, reward, *rest

    monkeypatch.setattr(EpisodeVectorEnv, "step", broken)
    words = [*tiny.online(tmp_path, "sac"), "env=gym/Hopper-v5", "checkpoint_every=4"]
    with pytest.raises(TrimtabError, match=f"a(n|) {what} that is not finite") as error:
        train(compose_run(words))
    (saved,) = tmp_path.rglob("checkpoint")
    assert re.search(r"at update \d+, after \d+ environment steps", str(error.value))
    assert f"the last good state is in {saved}" in str(error.value)
    state: Any = load_checkpoint(saved)
    buffer = state["experience"]["buffer"]
    assert all(np.isfinite(buffer["arrays"][name]).all() for name in ("obs", "next_obs", "reward"))


def test_threads_are_the_runs_own_also_after_a_dataset_that_is_a_run(tmp_path: Path) -> None:
    words_of_run = (
        "algorithm=sac", "online_steps=40", "algorithm.warmup_steps=20", "algorithm.hidden=[8]",
        "eval_episodes=1",
    )  # fmt: skip
    run = json.dumps(words_of_run)
    words = [
        "env=gym/Hopper-v5", "algorithm=td3_bc", "algorithm.hidden=[8]", "offline_steps=2",
        "dataset=hopper_replay", f"dataset.run={run}", "eval_episodes=1", f"out={tmp_path}",
    ]  # fmt: skip
    before = torch.get_num_threads()
    try:
        train(compose_run([*words, "threads=2"]))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_run_that_is_shorter_than_a_rollout_is_refused(tiny: Any, tmp_path: Path) -> None:
    words = ["env=gym/Hopper-v5", "algorithm=ppo", "online_steps=1000", f"out={tmp_path}"]
    with pytest.raises(TrimtabError, match="ppo learns after every 2048 steps"):
        train(compose_run(words))


def test_a_chunk_that_is_longer_than_an_episode_is_refused(tmp_path: Path) -> None:
    words = ["env=robotics/PointMaze-TwoRoutes-v0", "algorithm=sac", "act_steps=101"]
    with pytest.raises(TrimtabError, match="act_steps=101: an episode of .* has 100 steps"):
        train(compose_run([*words, f"out={tmp_path / 'o'}"]))
    assert not (tmp_path / "o").exists()


def test_a_run_in_which_nothing_is_learned_is_refused(tiny: Any, tmp_path: Path) -> None:
    for words in (["env=gym/Hopper-v5", "algorithm=sac", "online_steps=0", f"out={tmp_path}/o"],
                  [*tiny.cloning(tmp_path / "o"), "offline_steps=0"]):  # fmt: skip
        with pytest.raises(
            TrimtabError, match="offline_steps=0: .* would learn nothing; raise one"
        ):
            train(compose_run(words))
    assert not (tmp_path / "o").exists()


def test_a_method_that_only_clones_cannot_act(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="does not learn from interaction; set online_steps=0"):
        train(compose_run([*tiny.cloning(tmp_path), "online_steps=10", "offline_steps=1"]))


@pytest.mark.parametrize("given", ["policy=flow", "base=runs/none", "dataset=two_routes"])
def test_what_a_method_does_not_use_is_refused(given: str, tmp_path: Path) -> None:
    """Else result rows would name a policy, a base or data that had no part in the run."""
    words = ["env=gym/Hopper-v5", "algorithm=sac", f"out={tmp_path}", given]
    hint = ", or add offline_steps=… or offline_share=…" if given.startswith("dataset") else ""
    said = f"^{given.partition('=')[0]}=…: sac makes no use of it; leave it out{hint}$"
    with pytest.raises(TrimtabError, match=said):
        train(compose_run(words))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["brc", "dime", "fast_td3", "flash_sac", "simba_v2", "xqc"])
def test_methods_that_scale_by_what_they_gather_refuse_data(method: str, tmp_path: Path) -> None:
    """Else rewards of a dataset would be scaled by returns that nobody has seen; BRC's count 0."""
    words = ["env=gym/Hopper-v5", f"algorithm={method}", f"out={tmp_path}", "dataset=hopper_medium"]
    refused = f"{method} scales what it learns from by statistics of what it gathers"
    for given in ("offline_steps=20", "offline_share=0.5"):
        with pytest.raises(TrimtabError, match=f"^{given}: {refused}"):
            train(compose_run([*words, given]))
    with pytest.raises(TrimtabError, match=f"{method} makes no use of it; leave it out$"):
        train(compose_run(words))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("algorithm=td3_bc algorithm.tau=5", "tau=5"),
        ("algorithm=edac algorithm.critics=1", "critics=1"),
        ("algorithm=decision_transformer discount=0.9", "discount=0.9"),
        ("algorithm=td3_bc online_steps=10 algorithm.warmup_steps=20", "online_steps=10"),
        ("algorithm=oap base={missing}", "missing"),
        ("algorithm=td3_bc source=policy_guided_diffusion source.guidance=-1", "guidance=-1"),
        ("algorithm=cal_ql source=policy_guided_diffusion", "returns of whole episodes"),
        ("algorithm=bc policy=flow policy.hidden=[0]", "hidden"),
    ],
)
def test_nothing_is_recorded_for_a_run_that_cannot_be(
    words: str, said: str, tmp_path: Path
) -> None:
    given = words.format(missing=tmp_path / "missing").split()
    task = ["env=robotics/PointMaze-TwoRoutes-v0", "dataset=two_routes", "dataset.episodes=2"]
    with pytest.raises(TrimtabError, match=re.escape(said)):
        train(compose_run([*task, "offline_steps=9", *given, f"out={tmp_path}"]))
    assert not list(tmp_path.iterdir())


def test_offline_and_online_are_one_run(tiny: Any, tmp_path: Path) -> None:
    words = [*tiny.online(tmp_path, "sac"), f"dataset={tiny.dataset}", "offline_steps=30"]
    result = train(compose_run([*words, "online_steps=96", "algorithm.warmup_steps=0"]))
    assert (result.summary["env_steps"], result.summary["updates"]) == (96, 30 + 96 // 4)
    rows = read_episodes(result.folder / "episodes.parquet").to_pylist()
    assert rows[-1]["dataset"] == load_minari(tiny.dataset).id
