"""Wrong words of a command line are named in one line, with their remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from loading import load_module

from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.types import TrimtabError

maze = load_module(Path(__file__).with_name("maze.py"))
ENV: str = maze.ENV
BC: list[str] = maze.BC

NAMES = [
    (["sede=1"], "sede: there is no such setting; did you mean seed?"),
    (["online_step=1"], "did you mean online_steps?"),
    (["xyzzy=1"], "there is no such setting; there are 42, such as env, env_options, "),
    (["algorithm=dsrl_sak"], "algorithm=dsrl_sak: did you mean dsrl_sac?"),
    (["policy.hidden=[8]", "policy=flwo"], "policy=flwo: did you mean flow?"),
    (["dataset.episodes=4", "dataset=two_rotes"], "dataset=two_rotes: did you mean two_routes?"),
    (["algorithm.lerning_rate=1"], "did you mean learning_rate?"),
    (["policy.hiden=[8]"], "did you mean hidden?"),
    (["+algorithm.lerning_rate=1"], "did you mean learning_rate?"),
    (["algorithm.tau=0.1"], "algorithm.tau: bc has no such setting"),
    (["algorithm.discount=0.9"], "bc has no such setting; it is the run's: w"),
    (["dataset.episode=3"], "dataset.episode: two_routes has no such setting"),
    (["dataset.controller.niose=0"], "did you mean noise?"),
    (["seed"], "seed: cannot be read"),
    (["policy.hidden=[8"], "policy.hidden=[8: cannot be read; "),
    (["base=${sed}"], "settings: "),
    (["algorithm._target_=os.getpid"], "=os.getpid: is no class"),
    (["policy._target_=no.Class"], "cannot be imported (Mod"),
    (["algorithm._target_=5"], "algorithm._target_=5: must be a class"),
    (["algorithm._target_=pathlib.Path"], "=pathlib.Path: is no algorithm: no child of Algorithm"),
    (["policy._target_=pathlib.Path"], "is no policy: no child of Po"),
    (
        ["algorithm._target_=trimtab.algorithms.off_policy.sac.SAC", "algorithm.tua=0.1"],
        "algorithm.tua: trimtab.algorithms.off_policy.sac.SAC has no such setting; did you mean t",
    ),
    (["hydra.searchpath=[file:///x]"], "Hydra's own settings have no effect here"),
    (["algorithm=null"], "algorithm=null: name one, or leave it out"),
    (["dataset=null"], "dataset=null: name one, or leave it out"),
    (["algorithm=[bc,sac]"], "algorithm=[bc,sac]: name one, or leave it out"),
    (["algorithm=./"], "algorithm=./: there are "),
    (["algorithm=1e30"], "algorithm=1e+30: there are "),
    (["policy=true"], "policy=True: there are: "),
    (["~seed"], "~seed: a run needs it"),
    (["~env_options"], "~env_options: a run needs it"),
    (["~dataset=inf"], "~dataset=inf: leave the word"),
    (
        ["algorithm=xqc", "online_steps=0"],
        "online_steps=0: algorithm.decay_steps follows it, and must be at least 1; raise online_st",
    ),
    (["device=abacus"], "device=abacus: torch has no such device"),
    (["device=cuda:99"], "device=cuda:99: torch has no such device"),
    (["device=meta"], "device=meta: torch has no such device"),  # it has tensors without numbers
]
SAC = "algorithm=sac"
VALUES = [
    ["seed=one"], ["seed=-1"], ["seed=true"], ["seed=[0,1]"], ["seed=4294967296"],
    ["online_steps=1.5"], [f"online_steps={10**30}"], ["num_envs=0"], ["num_envs=1000000"],
    ["eval_episodes=0"], ["act_steps=0"], ["act_steps=100000"], ["checkpoint_every=0"],
    ["discount=1.5"], ["discount=0"], ["discount=a"], ["discount=nan"], ["holdout=1.0"],
    ["threads=257"],
    ["env=3"], ["base=3"], ["out=3"], ["out=null"], ["out="], ["base="], ["oracles=[]"],
    ["eval_deterministic=half"], ["keep_policies=some"], ["observations=dictionary"],
    ["dataset_weighting=[return]"], ["weighting_temperature=0"], ["env_options=3"],
    ["dataset=folder", "dataset.path=5"], ["dataset=folder", "dataset.path="],
    ["dataset=external", "dataset.name=[a]"],
    ["dataset=folder", "dataset.path=x", "dataset.horizon=0"],
    ["algorithm.learning_rate=fast"], ["algorithm.batch_size=0.5"], ["algorithm.batch_size=true"],
    ["algorithm.batch_size=1000000000"], ["policy.sampling_steps=1000000000"],
    ["policy.hidden=8"], ["policy.hidden=[a]"], ["policy.hidden=[0]"],
    ["algorithm=best_of_n", "algorithm.candidates=2000000"],
    ["algorithm=td3_bc", "algorithm.learning_rate=-1"],
    ["algorithm=a2pr", "algorithm.vae_learning_rate=nan"],
    ["algorithm=cfgrl", "algorithm.guidance=nan"],
    [SAC, "algorithm.critics=3000000"], [SAC, f"algorithm.warmup_steps={10**30}"],
    ["algorithm=oppo", "algorithm.latent=2000000"],
]  # fmt: skip


@pytest.mark.parametrize("word", ["seed=0,1", "algorithm=bc,sac", "algorithm.tau=0.1,0.2"])
def test_several_values_without_a_sweep_are_told_what_to_add(word: str) -> None:
    with pytest.raises(TrimtabError, match="these are several runs, a sweep: add -m") as error:
        compose_run([*BC[:1], *(BC[1:2] if "algorithm=" not in word else []), *BC[2:], word])
    assert "\n" not in str(error.value)


def test_thousands_of_layers_are_refused() -> None:
    many = ",".join(["8"] * 3000)
    config = compose_run(["env=gym/Hopper-v5", "algorithm=sac", f"algorithm.hidden=[{many}]"])
    with pytest.raises(TrimtabError, match="at most 256 layers"):
        _ = checked_plan(config).initial_state


@pytest.mark.parametrize(("words", "expected"), NAMES)
def test_a_wrong_word_is_named_in_one_line(words: list[str], expected: str) -> None:
    with pytest.raises(TrimtabError) as error:
        compose_run([*BC, *words])
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("words", VALUES, ids=lambda words: words[-1])
def test_a_wrong_value_is_named_in_one_line(words: list[str]) -> None:
    name, _, value = words[-1].partition("=")
    with pytest.raises(TrimtabError) as error:
        compose_run([*BC, *words])
    line = str(error.value)
    assert line.startswith(f"{name}=") and "\n" not in line
    assert "must be" in line if value not in ("", "[]") else "is empty" in line
    if value.lstrip("-").isdigit() and len(value) < 20:
        assert line.startswith(f"{name}={value}: ")


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
        checked_plan(compose_run(words))
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
    plan = checked_plan(compose_run([ENV, *words]))
    said = "sac cannot be made with these settings: an odd number, please; check algorithm"
    with pytest.raises(TrimtabError, match=said) as error:
        _ = plan.initial_state
    assert "\n" not in str(error.value)
    _ = checked_plan(compose_run([ENV, *words, "+algorithm.odd=3"])).initial_state
