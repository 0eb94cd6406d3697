"""Checks that the parts of a run fit one another; each is made once.

Three lists at the end name them: ``PARTS`` check what the settings name, before a method is made;
``METHOD`` checks the method and the rest of the settings, before any data are recorded; ``DATA``
checks the data, once they are loaded. Each check takes the run's plan and raises a ``TrimtabError``
that names the setting. A part that is wrong by itself is refused where it is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.phases import Feed, Phase, Trials
from trimtab.benchmarks.training.base import training
from trimtab.benchmarks.training.folder import is_run
from trimtab.benchmarks.training.matching import (
    check_dataset_fits,
    check_policy_fits,
    check_recipe_fits,
)
from trimtab.benchmarks.training.plan import Plan, method_of
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.tracking import chosen_trackers
from trimtab.datasets.episodes import Dataset
from trimtab.envs.vector import simulator_device
from trimtab.errors import TrimtabError
from trimtab.policies.memory import state_parts
from trimtab.policies.registry import check_is_kind

__all__ = ["check_data", "check_method", "check_uses", "checked_plan"]

logger = logging.getLogger(__name__)


def checked_plan(config: RunConfig, progress: Callable[[float], None] = lambda share: None) -> Plan:
    """Return a run's plan after the checks in ``PARTS``. No recipe has recorded data by then.

    Args:
        config: settings of the run.
        progress: called with the share of the dataset that is loaded or recorded.

    Raises:
        TrimtabError: if anything is missing, unknown, or does not fit.
    """
    plan = Plan(config, progress)
    for check in PARTS:
        check(plan)
    return plan


def check_method(plan: Plan) -> None:
    """Check the method."""
    for check in METHOD:
        check(plan)


def check_data(plan: Plan) -> None:
    """Check the data, which are loaded."""
    for check in DATA:
        check(plan)


# What the settings name.


def _settings_match_needs(plan: Plan) -> None:
    check_uses(plan.config)


def check_uses(config: RunConfig) -> None:
    """Check that the settings give a method all it needs and nothing that it ignores.

    Raises:
        TrimtabError: naming the setting that is missing or unused.
    """
    needs = method_of(config).needs
    for name in ("offline_steps", "offline_share"):
        if needs.own_statistics and config[name]:
            raise TrimtabError(
                f"{name}={config[name]}: {config.algorithm} scales what it learns from by "
                f"statistics of what it gathers, to which no dataset adds; leave {name} out"
            )
    from_data = config["offline_steps"] or config["offline_share"]
    start = _starting_settings(config) if "start" in needs.required else set()
    needed = (needs.required - {"start"}) | start
    used = needed | needs.optional | ({"dataset"} if from_data else set())
    for given in ("base", "dataset", "policy", "oracles", "expert"):
        value = config.settings.get(given)  # settings that an earlier version saved may lack it
        if given in needed and value is None:
            raise TrimtabError(_missing_message(config, given))
        if given not in used and value is not None:
            hint = ", or add offline_steps=… or offline_share=…"
            hint = hint if given == "dataset" and not needs.own_statistics else ""
            raise TrimtabError(
                f"{given}=…: {config.algorithm} makes no use of it; leave it out{hint}"
            )
    if config["dataset"] is None:
        names = ("offline_steps", "offline_share", "dataset_weighting", "holdout")
        needing_data = {name: config[name] for name in names} | {"source": config.source}
        for name, value in needing_data.items():
            if value:
                raise TrimtabError(f"{name}={value}: {_missing_message(config, 'dataset')}")


def _starting_settings(config: RunConfig) -> set[str]:
    """Return the settings a method starts from: a base, or a new policy, usually with a dataset."""
    needs = method_of(config).needs
    if config["base"] is None and config["policy"] is None:
        third = f", or policy={needs.base_kind or '…'} alone" if needs.from_nothing else ""
        raise TrimtabError(
            f"{config.algorithm} starts from a base policy, or from a new one with a dataset: add "
            f"base=<a run or a bundle>, or policy=… dataset=…{third}"
        )
    if config["base"] is not None and config["policy"] is not None:
        raise TrimtabError(
            f"base=… policy=…: {config.algorithm} starts from one of the two; leave the other out"
        )
    if config["base"] is not None:
        return {"base"}
    alone = needs.from_nothing and config["dataset"] is None
    return {"policy"} if alone else {"policy", "dataset"}


def _missing_message(config: RunConfig, need: str) -> str:
    if need == "oracles":
        return f"{config.algorithm} imitates other policies: add oracles=[<a run or a bundle>,…]"
    if need == "base":
        return f"{config.algorithm} starts from a base policy: add base=<a run or a bundle>"
    return f"{config.algorithm} needs {need}=…; trimtab list {need} shows what there is"


def _chunk_fits_episode(plan: Plan) -> None:
    if plan.act_steps > plan.env.horizon:
        raise TrimtabError(
            f"act_steps={plan.act_steps}: an episode of {plan.env.id} has {plan.env.horizon} "
            "steps; give fewer"
        )


def _base_fits(plan: Plan) -> None:
    base = plan.base
    if base is None:
        return
    states = plan.method.needs.base_state
    check_policy_fits(base, plan.spec, plan.env, called="base", states=states)
    handed_on = state_parts(base.policy.spec.parts)
    device = plan.config["device"]
    simulated = handed_on and simulator_device(plan.env.id, device, **plan.env.options) != "cpu"
    if handed_on and (plan.config["dataset"] is not None or simulated):
        raise TrimtabError(
            f"base {base.folder} hands on {', '.join(handed_on)} to its next decision, which no "
            "dataset has and a simulator on a GPU does not keep; leave dataset= out, and give "
            "device=cpu"
        )
    if "start" in plan.method.needs.required and next(base.policy.parameters(), None) is None:
        raise TrimtabError(
            f"base {base.folder} has no weights, and {plan.config.algorithm} tunes those of its "
            "base; choose a method that keeps its base as it is, such as dsrl_sac, dsrl_na or "
            "golden_ticket"
        )
    base_training = training(base)
    if base_training.get("reached") is False:
        raise TrimtabError(
            f"base {base.folder} never reached its stop_at_success="
            f"{base_training.get('stop_at_success')}; train it for more offline_steps, or lower it"
        )
    trained, options = base.config["env"], dict(plan.env.options)
    if trained["id"] == plan.env.id and trained["options"] != options:
        logger.warning(
            "base %s was trained with env_options %s, this run has %s",
            base.folder, trained["options"], options,
        )  # fmt: skip


def _oracles_fit(plan: Plan) -> None:
    for number, oracle in enumerate(plan.oracles):
        check_policy_fits(oracle, plan.spec, plan.env, called="oracle")
        trained = oracle.config["env"]["id"]
        if trained != plan.env.id and not plan.config["other_task"]:
            raise TrimtabError(
                f"oracle {oracle.folder} was trained on {trained}, this run is on {plan.env.id}; "
                "give one of this task, or other_task=true"
            )
        earlier = plan.oracles[:number]
        if any(one.hash == oracle.hash for one in earlier):
            raise TrimtabError(f"oracle {oracle.folder} is given twice; leave one out")


def _data_are_of_the_task(plan: Plan) -> None:
    """Check the dataset against the task, or its recipe while nothing is recorded."""
    config, env, dataset = plan.config, plan.env, plan.dataset
    if dataset is not None and config["env"] is not None:
        check_dataset_fits(dataset, env, other_task=config["other_task"])
        if len(dataset.episodes) == 1:
            logger.warning(
                "dataset %s is a single episode: a policy learns only the states along it",
                dataset.id,
            )
    elif plan.makes_data:
        check_recipe_fits(config["dataset"], env, other_task=config["other_task"])


def _expert_is_of_the_task(plan: Plan) -> None:
    if plan.expert is not None:
        other = plan.config["other_task"]
        check_dataset_fits(plan.expert, plan.env, other_task=other, named="expert")


# The method.


def _out_is_no_run(plan: Plan) -> None:
    out = plan.config["out"]
    if is_run(Path(out)):
        raise TrimtabError(f"out={out}: is the folder of a run; name one that holds runs")


def _trackers_exist(plan: Plan) -> None:
    # Raises if one is unknown.
    chosen_trackers(plan.config["tracker"])


def _policy_can_be_reloaded(plan: Plan) -> None:
    check_is_kind(plan.algorithm.policy)


def _something_is_learned(plan: Plan) -> None:
    config, phases = plan.config, plan.initial_state.phases
    if plan.algorithm.learns and not any(phase.length for phase in phases):
        raise TrimtabError(
            f"online_steps={config['online_steps']}, offline_steps={config['offline_steps']}: "
            f"{config.algorithm} would learn nothing; raise one of them"
        )


def _interaction_is_used_and_has_a_task(plan: Plan) -> None:
    config, algorithm = plan.config, plan.algorithm
    acting = [one for one in _active_phases(plan) if one.gathers or isinstance(one.feed, Trials)]
    explores = type(algorithm).explore is not Algorithm.explore  # the method overrides it
    idle = algorithm.learns and config["online_steps"] and not acting
    if idle or (any(phase.gathers for phase in acting) and not explores):
        raise TrimtabError(
            f"online_steps={config['online_steps']}: {config.algorithm} does not learn from "
            "interaction; set online_steps=0"
        )
    if config["env"] is None and acting:
        raise TrimtabError(
            f"{config.algorithm} acts in a task, and this run has none: add env=…, set "
            "online_steps=0, or choose a method that learns from data alone, such as bc"
        )


def _overlap_has_something_to_overlap(plan: Plan) -> None:
    config, env, pace = plan.config, plan.env, plan.algorithm.pace
    if not config["overlap"]:
        return
    gathering = [phase for phase in _active_phases(plan) if phase.gathers]
    if not gathering:
        reason = f"{config.algorithm} gathers nothing in this run"
    elif pace.rollout_steps:
        reason = f"{config.algorithm} learns from rollouts, only when one is whole"
    elif not pace.updates_per_decision or all(phase.update is None for phase in gathering):
        reason = f"{config.algorithm} makes no updates while it gathers"
    elif simulator_device(env.id, config["device"], **env.options) != "cpu":
        reason = f"{env.id} is simulated on {config['device']}, beside the updates"
    else:
        return
    raise TrimtabError(f"overlap=true: {reason}; leave it out")


def _states_can_be_restored(plan: Plan) -> None:
    config, env, algorithm = plan.config, plan.env, plan.algorithm
    if type(algorithm).branches is Algorithm.branches:
        return
    restores = f"{config.algorithm} restores states of the environments"
    if simulator_device(env.id, config["device"], **env.options) != "cpu":
        raise TrimtabError(
            f"{restores}, and {env.id} is simulated on {config['device']}, where none is restored; "
            "set device=cpu"
        )
    if (history := algorithm.policy.spec.history) > 1:
        raise TrimtabError(
            f"{restores} without what was observed before, and its policy reads {history} "
            "observations; start from a policy with history=1"
        )


def _phases_have_data(plan: Plan) -> None:
    config = plan.config
    gathered = False
    for phase in _active_phases(plan):
        where = f"{config.algorithm}: its phase {phase.name}"
        if isinstance(phase.feed, Trials):
            _trials_fit(plan, phase.feed, phase.length)
            continue
        gathered |= phase.gathers
        if phase.unit == "updates" and phase.update is None:
            raise TrimtabError(f"{where} counts updates and has no update function")
        from_experience = phase.feed is Feed.EXPERIENCE
        if phase.unit == "updates" and from_experience and plan.algorithm.pace.rollout_steps:
            raise TrimtabError(
                f"{where} counts updates, but rollouts are learned from once, as they are "
                "gathered; let it count steps"
            )
        if phase.feed is Feed.DATASET and config["dataset"] is None:
            raise TrimtabError(
                f"{config.algorithm} needs dataset=… for its phase {phase.name}; trimtab list "
                "dataset shows what there is"
            )
        if from_experience and not gathered:
            raise TrimtabError(
                f"{where} learns from gathered data, and no earlier phase gathers; set online_steps"
            )


def _active_phases(plan: Plan) -> Sequence[Phase]:
    return [phase for phase in plan.initial_state.phases if phase.length]


def _trials_fit(plan: Plan, feed: Trials, steps: int) -> None:
    """Check that there is a first trial and that the phase's steps hold it."""
    trial, name, horizon = feed.propose(), plan.config.algorithm, plan.env.horizon
    if trial is None:
        raise TrimtabError(f"{name}: proposes no trial")
    if steps < (most := trial.episodes * horizon):
        raise TrimtabError(
            f"online_steps={steps}: one trial of {name} is {trial.episodes} episodes of up to "
            f"{horizon} steps; give it at least {most} steps, or fewer episodes"
        )


def _generator_is_used(plan: Plan) -> None:
    drawn = any(phase.feed is Feed.DATASET for phase in _active_phases(plan))
    if plan.initial_state.generator is not None and not (drawn or plan.config["offline_share"]):
        raise TrimtabError(
            f"source=…: {plan.config.algorithm} draws no batches of a dataset in this run; set "
            "offline_steps, or leave source out"
        )


def _histories_agree(plan: Plan) -> None:
    algorithm, chosen = plan.algorithm, plan.config["history"]
    wanted, read = algorithm.batch_spec.history, algorithm.policy.spec.history
    if wanted not in (1, read):
        raise TrimtabError(
            f"{type(algorithm).__name__} wants a history of {wanted}, its policy reads {read}; "
            f"make its policy by setup.spec.with_history({wanted}), or leave history= out"
        )
    if chosen not in (None, read):
        raise TrimtabError(
            f"history={chosen}: the policy of {plan.config.algorithm} reads {read}; leave it out"
        )


def _goals_can_be_relabelled(plan: Plan) -> None:
    _ = plan.goals  # raises if the method relabels goals and the task has none


def _costs_need_no_interaction(plan: Plan) -> None:
    if plan.algorithm.batch_spec.cost and plan.config["online_steps"]:
        raise TrimtabError(
            f"online_steps: {plan.config.algorithm} learns from costs, which interaction does "
            "not record; set online_steps=0"
        )


def _held_out_episodes_can_be_judged(plan: Plan) -> None:
    config = plan.config
    remembered = plan.algorithm.policy.inputs.memories(1)
    if config["holdout"] is not None and remembered:
        raise TrimtabError(
            f"holdout={config['holdout']}: the policy of {config.algorithm} reads "
            f"{', '.join(remembered)} of the running episode, which a dataset does not hold; leave "
            "it out"
        )


def _stop_after_is_measured(plan: Plan) -> None:
    config, after = plan.config, plan.config["stop_after"]
    if after is None:
        return
    for name, needed in (("holdout", "the held-out error"), ("eval_every", "evaluations")):
        if config[name] is None:
            raise TrimtabError(f"stop_after={after}: needs {needed}; set {name}")
    if config["online_steps"]:
        raise TrimtabError(
            f"stop_after={after}: would end the run before its online_steps; leave one of the two "
            "out"
        )


def _success_is_measured(plan: Plan) -> None:
    if plan.config["stop_at_success"] is None:
        return
    if plan.config["eval_every"] is None:
        raise TrimtabError("stop_at_success: needs evaluations during training; set eval_every")
    if plan.env.success_key is None:
        raise TrimtabError(f"stop_at_success: {plan.env.id} has no success; leave it out")


def _data_hold_what_is_learned_from(plan: Plan) -> None:
    """Check that a method that needs its own experience is not given a dataset instead."""
    config, algorithm = plan.config, plan.algorithm
    gathered_only = ["rollouts"] if algorithm.pace.rollout_steps else list(algorithm.aux_shapes)
    # A dataset phase with another update function may do without that experience.
    phases = plan.initial_state.phases
    same = any(one.feed is Feed.DATASET and one.update == algorithm.update for one in phases)
    for name, applies in (("offline_steps", same), ("offline_share", True)):
        if config[name] and gathered_only and applies:
            raise TrimtabError(
                f"{name}={config[name]}: {config.algorithm} learns from its own "
                f"{', '.join(gathered_only)}, which no dataset holds; set {name}=0"
            )


def _steps_suffice_to_learn(plan: Plan) -> None:
    config, algorithm = plan.config, plan.algorithm
    online = config["online_steps"]
    rollout = algorithm.pace.rollout_steps * config["num_envs"] * plan.act_steps
    if 0 < online < rollout:
        raise TrimtabError(
            f"online_steps={online}: {config.algorithm} learns after every {rollout} steps "
            "(rollout_steps x num_envs x act_steps) only; raise online_steps"
        )
    if 0 < online < algorithm.pace.warmup_steps:
        raise TrimtabError(
            f"online_steps={online}: {config.algorithm} only begins to learn after its warm-up of "
            f"{algorithm.pace.warmup_steps} steps; raise online_steps, or lower "
            "algorithm.warmup_steps"
        )


# The data.


def _recorded_data_are_of_the_task(plan: Plan) -> None:
    if plan.makes_data:  # data that were read are checked in PARTS
        _data_are_of_the_task(plan)


def _data_are_informative(plan: Plan) -> None:
    dataset, algorithm, name = plan.split.training, plan.algorithm, plan.config.algorithm
    if dataset is None:
        return
    if algorithm.success_reward is not None:
        _check_successes(dataset, name, algorithm.success_reward)
    else:
        relabels = algorithm.batch_spec.goal is not None
        if algorithm.needs.rewards and not relabels and not plan.config["online_steps"]:
            _check_rewards_differ(dataset, name)
    if algorithm.batch_spec.next_action:
        _check_has_next_actions(dataset, name, plan.act_steps)


def _check_rewards_differ(dataset: Dataset, method: str) -> None:
    """Check that some decisions of a dataset are better than others.

    Equal rewards other than 0 pass if an episode terminates: its length then decides its return.
    """
    only = dataset.only_reward
    if only is None or only and any(episode.terminations[-1] for episode in dataset.episodes):
        return
    raise TrimtabError(
        f"dataset {dataset.id}: every reward is {only:g}, so {method} has nothing to learn; choose "
        "data with rewards, or clone it with algorithm=bc"
    )


def _check_successes(dataset: Dataset, method: str, threshold: float) -> None:
    """Check that a dataset has both steps that are successes and steps that are not.

    Args:
        dataset: the data.
        method: name of the method that learns to tell them apart.
        threshold: smallest reward of a success.
    """
    kinds: set[bool] = set()
    for episode in dataset.episodes:
        kinds |= set(np.unique(episode.rewards >= threshold).tolist())
        if len(kinds) == 2:
            return
    which = "every step" if True in kinds else "no step"
    raise TrimtabError(
        f"dataset {dataset.id}: {which} of it has a reward of at least {threshold:g}, so {method} "
        "cannot learn what a success is; give data with env_options.reward=sparse in which some "
        "episodes succeed, or set algorithm.success_reward"
    )


def _check_has_next_actions(dataset: Dataset, method: str, act_steps: int) -> None:
    """Check that at least one decision of a dataset has a known next action."""
    if all(len(one) <= act_steps and not one.terminations.any() for one in dataset.episodes):
        raise TrimtabError(
            f"dataset {dataset.id}: each of its {len(dataset.episodes)} episodes is cut off within "
            f"its first decision ({act_steps} steps), so no next action is known, which {method} "
            "learns from; give longer episodes, or fewer act_steps"
        )


Check = Callable[[Plan], None]
PARTS: tuple[Check, ...] = (
    _settings_match_needs,
    _chunk_fits_episode,
    _base_fits,
    _oracles_fit,
    _data_are_of_the_task,
    _expert_is_of_the_task,
)
METHOD: tuple[Check, ...] = (
    _out_is_no_run,
    _trackers_exist,
    _policy_can_be_reloaded,
    _something_is_learned,
    _interaction_is_used_and_has_a_task,
    _overlap_has_something_to_overlap,
    _states_can_be_restored,
    _phases_have_data,
    _generator_is_used,
    _histories_agree,
    _goals_can_be_relabelled,
    _costs_need_no_interaction,
    _held_out_episodes_can_be_judged,
    _stop_after_is_measured,
    _success_is_measured,
    _data_hold_what_is_learned_from,
    _steps_suffice_to_learn,
)
DATA: tuple[Check, ...] = (_recorded_data_are_of_the_task, _data_are_informative)
