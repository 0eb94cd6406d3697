"""Wrong words of a command line are named in one line, with their remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from loading import load_module

from trimtab.benchmarks.training.fits import fitting_plan
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.types import TrimtabError

maze = load_module(Path(__file__).with_name("maze.py"))
ENV: str = maze.ENV
BC: list[str] = maze.BC

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
    "the run's keyword": (["algorithm.discount=0.9"], "bc has no such setting; it is the run's: w"),
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
        "algorithm.guidance=nan: must be from 0 to 1000",
    ),
    "a number beyond whole numbers": (
        ["algorithm=sac", "algorithm.warmup_steps=1e30"],
        "warmup_steps=1000000000000000019884624838656: must be at most 9223372036854775807",
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


@pytest.mark.parametrize("word", ["seed=0,1", "algorithm=bc,sac", "algorithm.tau=0.1,0.2"])
def test_several_values_without_a_sweep_are_told_what_to_add(word: str) -> None:
    with pytest.raises(TrimtabError, match="these are several runs, a sweep: add -m") as error:
        compose_run([*BC[:1], *(BC[1:2] if "algorithm=" not in word else []), *BC[2:], word])
    assert "\n" not in str(error.value)


def test_thousands_of_layers_are_refused() -> None:
    many = ",".join(["8"] * 3000)
    config = compose_run(["env=gym/Hopper-v5", "algorithm=sac", f"algorithm.hidden=[{many}]"])
    with pytest.raises(TrimtabError, match="hidden has 3000 layers: must be at most 256"):
        fitting_plan(config).make_learner()


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
        fitting_plan(compose_run(words))
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
    plan = fitting_plan(compose_run([ENV, *words]))
    said = "sac cannot be made with these settings: an odd number, please; check algorithm"
    with pytest.raises(TrimtabError, match=said) as error:
        plan.make_learner()
    assert "\n" not in str(error.value)
    fitting_plan(compose_run([ENV, *words, "+algorithm.odd=3"])).make_learner()
