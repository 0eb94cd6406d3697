"""The settings that every run has: what each is, its default, and what it may be.

``conf/config.yaml`` is composed of them and of the files of a method, a policy, a dataset and a
source, whose settings are those of the classes that they name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from trimtab.settings import Bounds, Count, Natural, Positive, Share

__all__ = ["MOST_SEED", "DatasetSettings", "RunSettings"]

MOST_SEED = 2**32 - 1
"""The largest seed: NumPy's older generators take no more."""
Seed = Annotated[int, Bounds(least=0, most=MOST_SEED)]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The run's own settings.

    Args:
        env: a task, as ``trimtab list env`` names it; null: none, and the run learns from
            dataset=<a file or folder> alone.
        env_options: of the task; reward: native, or sparse (1 on success, else 0); horizon: steps
            after which an episode is cut; terminate_on_success: end an episode at its success.
        observations: flat, or dict for the parts that a task names (goals); null: as the base reads
            them, else flat.
        history: observations of the last decisions that a policy reads; null: as the base, else 1.
        base: a run or a bundle to start from or to steer.
        oracles: runs or bundles that a method may imitate where they know better:
            [<a run>,<a run>].
        expert: data of a few good episodes that a method is guided by: a file or a folder of a
            dataset, in any format; no recipe, no run.
        seed: of all that is drawn.
        device: of torch, such as cpu or cuda.
        threads: of torch; with 2, one run on idle cores is faster, two runs side by side are
            slower, and last bits differ from those with 1.
        matmul_precision: of the matrix products of updates: highest, high (TF32 on a GPU) or medium
            (bfloat16 where the processor has such products); decisions are always computed at the
            highest.
        graphs: whether a run on a GPU replays the kernels of its updates as CUDA graphs; its
            numbers are the same, and most updates take a fraction of the time.
        num_envs: environments that gather data side by side.
        overlap: whether the environments step in another process, while the learner makes the
            updates of the decision before; an action is then chosen by the weights of one
            decision's updates ago, so that numbers differ. For methods with a replay buffer.
        act_steps: number of actions of a chunk that are executed; null: that of the base, or 1
            without a base.
        discount: per decision: an action chunk of act_steps steps, whose rewards are summed. It is
            above 0, as a method knows by a discount of 0 that an episode has terminated.
        buffer_size: decisions (chunks) that the replay buffer holds.
        offline_steps: updates on the dataset, before any interaction.
        online_steps: environment steps.
        offline_share: share of every batch that comes from the dataset while online.
        dataset_weighting: weights with which the dataset's episodes are drawn: return, or advantage
            (return less the return expected from the start); null: all equal.
        weighting_temperature: temperature of dataset_weighting; the smaller it is, the more often
            the best episodes are drawn; inf: all equal.
        holdout: share of the dataset's episodes, between 0 and 1, that is not learned from and that
            the policy's actions are compared with; null: none.
        stop_after: evaluations without a lower held-out error after which the run ends, and the
            policy with the lowest is exported; null: train to the end, export the last.
        contract: names, units, limits and control rate of data without a task, a YAML file; null:
            contract.yaml beside the data.
        other_task: allow a dataset of another task, or of this one with other options or physics.
        stream_above: bytes of a dataset's file above which it stays on disk; null: a quarter of the
            memory.
        eval_every: environment steps (updates while offline) between evaluations; null: only at the
            end.
        eval_episodes: of an evaluation.
        stop_at_success: end the run at the first evaluation with this success rate, from 0 to 1.
        eval_seed: evaluation episode i is reset with seed eval_seed + i.
        eval_deterministic: evaluate with zero noise; null: as this kind of policy is usually
            evaluated.
        checkpoint_every: environment steps (updates while offline) between checkpoints; null:
            10,000, or 1,000 for each environment if those are more.
        keep_policies: keep the policy of every evaluation as a bundle, in policies/<steps>.
        tracker: live curves: tensorboard, wandb or trackio, or several, [tensorboard,wandb];
            metrics.jsonl is written anyway.
        suite_name: name of the suite in the result rows; ``trimtab bench`` sets it.
        out: folder of the runs, or its address.
    """

    env: str | None = None
    env_options: Mapping[str, Any] = field(
        default_factory=lambda: {"reward": "native", "horizon": None, "terminate_on_success": False}
    )
    observations: Literal["flat", "dict"] | None = None
    history: Annotated[int, Bounds(least=1, most=10_000)] | None = None
    base: str | None = None
    oracles: Sequence[str] | None = None
    expert: str | None = None
    seed: Seed = 0
    device: str = "cpu"
    threads: Annotated[int, Bounds(least=1, most=256)] = 1
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    graphs: bool = True
    num_envs: Annotated[int, Bounds(least=1, most=1 << 16)] = 1
    overlap: bool = False
    act_steps: Annotated[int, Bounds(least=1, most=1000)] | None = None
    discount: Annotated[float, Bounds(above=0, most=1)] = 0.99
    buffer_size: Count = 1_000_000
    offline_steps: Natural = 0
    online_steps: Natural = 0
    offline_share: Share = 0.0
    dataset_weighting: Literal["return", "advantage"] | None = None
    weighting_temperature: Positive = 0.1
    holdout: Annotated[float, Bounds(above=0, below=1)] | None = None
    stop_after: Count | None = None
    contract: str | None = None
    other_task: bool = False
    stream_above: Natural | None = None
    eval_every: Count | None = None
    eval_episodes: Count = 50
    stop_at_success: Share | None = None
    eval_seed: Seed = 1_000_000
    eval_deterministic: bool | None = None
    checkpoint_every: Count | None = None
    keep_policies: bool = False
    tracker: str | Sequence[str] | None = None
    suite_name: str | None = None
    out: str = "runs"


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """What ``dataset.<name>`` may be where the data is a file; a recipe's kind checks the others.

    Args:
        path: file or folder.
        name: id of an external dataset.
        mask: only the episodes under this mask.
        keys: observation keys to take, in this order, separated by commas.
        horizon: steps of a whole episode.
        control_rate: actions a second.
    """

    path: str = ""
    name: str = ""
    mask: str | None = None
    keys: str | None = None
    horizon: Count | None = None
    control_rate: Annotated[float, Bounds(least=1e-6, most=1e6)] | None = None
