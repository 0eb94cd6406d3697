"""The training loop: it goes through the phases of a run.

A method defines the phases: by default offline_steps updates on the dataset, then online_steps
environment steps of interaction. The run is evaluated every ``eval_every`` and saved every
``checkpoint_every`` steps, and ends with a bundle of its policy.

A resumed run computes the same bits as one that was never interrupted: a checkpoint holds the
method, buffer, environments, random states and the counters of this file, and nothing else changes.

With ``overlap=true`` the environments execute decision k in another process, while the learner
makes the updates that decision k - 1 made due, from all transitions up to that one. So decision k
is chosen by the weights of one decision's updates ago. When ``Run.advance`` returns, the outcome of
decision k is stored and its updates are owed: the experience counts them, and a checkpoint holds
the count. An evaluation moves nothing: it judges the very weights that choose the next action. The
last decision of a phase leaves no updates owed, so that a whole run makes as many as without
``overlap``. A run that ends early (``stop_at_success``, a callback) owes those of its last one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trimtab.algorithms.phases import Feed, Outcome, Phase, Trials
from trimtab.benchmarks.training.callbacks import Callback, RunProgress
from trimtab.benchmarks.training.checkpoint import Checkpoints
from trimtab.benchmarks.training.collector import Collector, make_collector, make_training_envs
from trimtab.benchmarks.training.device_collector import DeviceCollector
from trimtab.benchmarks.training.experience import (
    Experience,
    ReplayedExperience,
    make_dataset_source,
    make_experience,
)
from trimtab.benchmarks.training.folder import (
    CHECKPOINT,
    EPISODES,
    METRICS,
    POLICIES,
    POLICY,
    RESULT,
)
from trimtab.benchmarks.training.generated import GeneratedData
from trimtab.benchmarks.training.graphs import replay_updates
from trimtab.benchmarks.training.locking import remedy
from trimtab.benchmarks.training.metrics_log import MetricsLog, NotFinite, placed
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.random_states import random_states, set_random_states
from trimtab.benchmarks.training.record import Record
from trimtab.benchmarks.training.result import Progress, Result
from trimtab.benchmarks.training.rows import EpisodeRow, write_episodes
from trimtab.benchmarks.training.run_judge import RunJudge
from trimtab.benchmarks.training.spending import spent
from trimtab.benchmarks.training.torch_state import matmul_precision, start_torch
from trimtab.benchmarks.training.tracking import Trackers, start_trackers
from trimtab.benchmarks.training.trials import TrialJudge
from trimtab.errors import Stopped, TrimtabError
from trimtab.files import atomic_write_json
from trimtab.policies.bundle.bundle import save_bundle
from trimtab.types import Batch, Rollout, Source

__all__ = ["LOG_EVERY", "Run"]

logger = logging.getLogger(__name__)

LOG_EVERY = 500
"""Updates between two lines of ``metrics.jsonl``; one on a rollout always adds a line."""


class Run:
    """The state of one run, and its training loop.

    Args:
        plan: the run's plan.
        folder: the run's folder; the caller holds its lock.
        progress: called with the share that is done, and a few words.
        stop: when set, the run saves its state and ends.
        callbacks: notified of steps, evaluations and checkpoints.
        check_lock: called before each write; raises if another process holds the folder by now.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        progress: Progress,
        stop: threading.Event | None = None,
        callbacks: Sequence[Callback] = (),
        check_lock: Callable[[], None] = lambda: None,
    ) -> None:
        self.config, self.plan, self.folder, self.progress = plan.config, plan, folder, progress
        config, initial = plan.config, plan.initial_state
        self.foreign_code = foreign_code = start_torch(config["seed"], config["threads"])
        # Continue after the initialisation, which the same seed began.
        set_random_states(config["device"], initial.random)
        self.stop, self.callbacks, self.trackers = stop or threading.Event(), callbacks, Trackers()
        self._callback_stop = threading.Event()
        self.evaluation_due = False
        self.check_lock = check_lock
        self.algorithm = initial.algorithm
        self.record = Record(plan, plan.policy_label or self.algorithm.policy.label)
        self.dataset_source = make_dataset_source(
            plan, lambda share: progress(share, "returns of the dataset")
        )
        self.experience: Experience | None = None
        self.collector: Collector | DeviceCollector | None = None
        phases = initial.phases
        if config["graphs"] and torch.device(config["device"]).type == "cuda":
            phases = replay_updates(phases, self.algorithm, config["device"])
        if isinstance(self.dataset_source, GeneratedData):  # its generator learns first
            phases = (self.dataset_source.phase(), *phases)
        self.phases = phases
        self.done = [0] * len(self.phases)
        self.begun = 0  # phases that have begun
        self.lengths = [phase.length for phase in self.phases]
        self.trials = TrialJudge(plan, foreign_code)
        if gathered := sum(phase.length for phase in self.phases if phase.gathers):
            self.experience = make_experience(plan, self.dataset_source, gathered)
            buffer = self.experience.buffer
            envs = make_training_envs(plan, foreign_code)
            self.collector = make_collector(
                envs, self.algorithm, buffer, config["device"], foreign_code
            )
        self.judge = RunJudge(plan, self.algorithm.policy, foreign_code)
        self.checkpoints = Checkpoints(folder / CHECKPOINT)
        self.metrics = MetricsLog(folder / METRICS)
        self.rows: list[EpisodeRow] = []
        self.evaluations: list[dict[str, Any]] = []
        self.updates, self.env_steps = 0, 0
        self.seconds_before = 0.0  # of earlier processes
        self.success_reached = False  # whether an evaluation reached stop_at_success
        self._saved_at = self._evaluated_at = -1  # positions
        self._started = time.perf_counter()

    def carry_out(self) -> Result:
        """Train the rest of the run and write its results."""
        state = self.checkpoints.load()
        if state is not None:
            try:
                self._load(state)
            except KeyError as error:
                raise TrimtabError(
                    f"{self.folder / 'checkpoint'} lacks {error}: another version of Trimtab wrote "
                    f"it; {remedy(self.folder)}, or remove it to start this run again"
                ) from error
            logger.info("%s: resuming at step %d", self.folder, self.position)
        else:
            self.metrics.start_again()
        self._started = time.perf_counter() - self.seconds_before
        self.trackers = start_trackers(
            self.config, self.plan.config_hash, self.folder, self.position
        )
        if self.evaluation_due and self.position < self.end:  # the process ended within it
            self._evaluate()
        for index in range(len(self.phases)):
            if index and not self.done[index] and self.metrics.pending:
                self._log()  # one line never mixes two phases, whose metrics may have other names
            while self.done[index] < self.lengths[index] and not self._ends_early():
                self.advance(index)
        return self._finish()

    def _ends_early(self) -> bool:
        return self.success_reached or self.judge.exhausted or self._callback_stop.is_set()

    @property
    def position(self) -> int:
        """Units done in all phases, each an update or an environment step."""
        return sum(self.done)

    @property
    def end(self) -> int:
        """The position at which the run ends; it shrinks when trials end early."""
        return sum(self.lengths)

    def advance(self, index: int) -> None:
        """Advance a phase by one update, one trial, or one decision in every environment."""
        phase = self.phases[index]
        if index >= self.begun:
            self._begin(phase)
            self.begun = index + 1
        if isinstance(phase.feed, Trials):
            self._finish_step(index, self._run_trial(phase, phase.feed))
        elif phase.unit == "updates":
            rows = phase.batch_size or self.algorithm.pace.batch_size
            self._update(phase, self._source(phase).sample(rows))
            self._finish_step(index, 1)
        else:
            steps = self._gather(phase)
            if self.done[index] + steps >= self.lengths[index]:
                self._make_due_updates(phase)  # with overlap, those of the phase's last decision
            self._finish_step(index, steps)

    def _begin(self, phase: Phase) -> None:
        """Begin a phase: let old experience go and tell the method, where the phase says so."""
        if phase.fresh and self.experience is not None:
            self.experience.clear()
        if phase.begin is not None:
            phase.begin()

    def _source(self, phase: Phase) -> Source:
        """Return what the batches of a phase are drawn from."""
        if not isinstance(phase.feed, Feed):
            assert not isinstance(phase.feed, Trials)  # advance handles them
            return phase.feed
        if phase.feed is Feed.DATASET:
            assert self.dataset_source is not None
            return self.dataset_source
        assert isinstance(self.experience, ReplayedExperience)
        return self.experience.source

    def _run_trial(self, phase: Phase, feed: Trials) -> int:
        """Carry out one trial and learn from its outcome; return the steps taken."""
        outcome, steps = self.trials.judge(feed.propose(), self._check_stop)
        self.env_steps += steps
        self._update(phase, outcome)
        self._log()
        return steps

    def _end_trials_if_due(self, index: int) -> None:
        """End a phase of trials if none is left, or the next may need more steps than remain."""
        feed, left = self.phases[index].feed, self.lengths[index] - self.done[index]
        if isinstance(feed, Trials) and not self.trials.fits(feed.propose(), left):
            self.lengths[index] = self.done[index]

    def _gather(self, phase: Phase) -> int:
        """Act once in every environment and make the due updates; return the steps taken.

        With ``overlap``, the updates that are due are those of the decision before. They are made
        while the environments step in their process, so an action is chosen before them.
        """
        assert self.collector is not None and self.experience is not None
        pretrained = self.algorithm.pace.skip_warmup_after_offline and self.updates > 0
        warmup = self.env_steps < self.algorithm.pace.warmup_steps and not pretrained
        overlap = self.config["overlap"]
        if overlap:
            assert isinstance(self.collector, Collector)
            with self._simulating():
                self.collector.begin_step(warmup=warmup)
            self._make_due_updates(phase)
            with self._simulating():
                steps = self.collector.finish_step()
        else:
            with self._simulating():
                steps = self.collector.step(warmup=warmup)
        self.env_steps += steps
        if phase.update is not None:
            self.experience.count(self.env_steps)
        if not overlap:
            self._make_due_updates(phase)
        return steps

    @contextlib.contextmanager
    def _simulating(self) -> Iterator[None]:
        """Say in an error of the environments where the run is."""
        try:
            yield
        except TrimtabError as error:
            self._check_metrics()  # report a metric that is not finite first
            where = self.where(self.updates + 1)
            raise TrimtabError(f"{where}: {error}; {self._last_good_state()}") from error

    def _make_due_updates(self, phase: Phase) -> None:
        """Make the updates that are due of what the run has gathered."""
        assert self.experience is not None
        if phase.update is None:
            self.experience.skip()
        else:
            source = None if phase.feed is Feed.EXPERIENCE else self._source(phase)
            for data in self.experience.due(source):
                self._update(phase, data)

    def _update(self, phase: Phase, data: Batch | Rollout | Outcome) -> None:
        assert phase.update is not None
        with matmul_precision(self.config["matmul_precision"]):
            metrics = phase.update(data)
        with placed(self.where, self.updates + 1):
            self.metrics.add(metrics)
        self.updates += 1
        if isinstance(data, Rollout) or self.updates % LOG_EVERY == 0:
            self._log()

    def _check_metrics(self) -> None:
        """Check the lock and the metrics of the last updates, before anything is written.

        Raises:
            TrimtabError: if the lock is lost, or a metric is not finite; nothing bad was saved.
        """
        self.check_lock()
        try:
            with placed(self.where, self.updates):
                self.metrics.settle()
        except NotFinite as error:
            raise TrimtabError(
                f"{self.where(self.updates - error.ago)}: {error}; {self._last_good_state()}; "
                "lower the learning rate or check the data"
            ) from error

    def where(self, update: int) -> str:
        """Return the run's folder and an update, to open an error."""
        return f"{self.folder}: at update {update}, after {self.env_steps} environment steps"

    def _last_good_state(self) -> str:
        saved = self.folder / CHECKPOINT
        return f"the last good state is in {saved}" if saved.is_dir() else "nothing was saved"

    def _log(self, **values: Any) -> None:
        self._check_metrics()
        position = {"env_steps": self.env_steps, "updates": self.updates}
        extra = {**values, "seconds": round(time.perf_counter() - self._started, 3)}
        if self.collector is not None:
            extra |= self.collector.episode_metrics()
        self.trackers.metrics(self.metrics.write(position, extra))

    def _finish_step(self, index: int, steps: int) -> None:
        """Count ``steps`` units, then notify, evaluate, save, report and stop where due."""
        self.done[index] += steps
        with placed(self.where, self.updates):
            self.trackers.arrived(self.position)
            self._tell(lambda callback: callback.on_step(self._now()))
            self.foreign_code.check()  # the method's own code may have changed torch's settings
        self._end_trials_if_due(index)
        now, before = self.position, self.position - steps
        own = self.phases[index].eval_every
        every = own or self.config["eval_every"]
        counted = self.done[index] if own else now
        if every and counted // every > (counted - steps) // every and now < self.end:
            self._check_metrics()
            self._evaluate()
        every = self.config["checkpoint_every"] or max(10_000, 1_000 * self.config["num_envs"])
        if now // every > before // every and now < self.end:
            self._save()
        # At each half percent.
        if now * 200 // self.end > before * 200 // self.end:
            self.progress(now / self.end, f"{now:,} of {self.end:,} steps{self.judge.last}")
        self._check_stop()

    def _save(self) -> None:
        self._check_metrics()
        self.checkpoints.save(self.position, self._state())
        self._saved_at = self.position
        self._tell(lambda callback: callback.on_checkpoint(self._now()))

    def _tell(self, event: Callable[[Callback], None]) -> None:
        """Tell every callback of an event; each is code that draws and decides apart."""
        for callback in self.callbacks:
            with self.foreign_code:
                event(callback)

    def _now(self) -> RunProgress:
        place = (self.folder, self.position, self.end, self.env_steps, self.updates)
        return RunProgress(*place, stop=self._callback_stop.set)

    def _check_stop(self) -> None:
        """Save the state and raise ``Stopped`` if this process was told to end."""
        if self.stop.is_set():
            self._save()
            self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self.stop.is_set():
            raise Stopped(
                f"{self.folder}: stopped at step {self.position:,} of {self.end:,}; "
                "its state is saved, run the same command to resume"
            )

    def _evaluate(self, check: Callable[[], None] | None = None, *, stopped: bool = False) -> None:
        """Evaluate the policy, write its rows and scores, and notify.

        Args:
            check: called before each decision; by default it saves and stops if that is asked for.
            stopped: whether a callback has ended the run.
        """
        self.evaluation_due = True
        with placed(self.where, self.updates):
            self.scores = self.judge.judge(
                self.algorithm.policy, self.updates, check or self._check_stop
            )
        self.check_lock()
        self.evaluation_due = False
        threshold, rate = self.config["stop_at_success"], self.scores.success_rate
        self.success_reached = threshold is not None and rate is not None and rate >= threshold
        here = self._write_rows(stopped=stopped)
        self.evaluations = [x for x in self.evaluations if {k: x[k] for k in here} != here]
        gathered = self.collector.episodes if self.collector is not None else 0
        seconds = round(time.perf_counter() - self._started, 3)
        cost = {"episodes": gathered + self.trials.episodes, "seconds": seconds}
        self.evaluations.append({**here, **cost, **self.scores.found})
        if self.config["keep_policies"]:
            ending = self.record.ending(self.success_reached)
            self._save_policy(self.folder / POLICIES / str(self.position), ending)
        if self.scores.fit is not None:
            self._log(**self.scores.fit.curves)
        self._evaluated_at = self.position
        self.trackers.evaluation(self.position, self.scores.found)
        self._tell(lambda callback: callback.on_evaluation(self._now(), self.scores.found))
        logger.info("%s: %s: %s", self.folder, here, self.scores.found)

    def _write_rows(self, *, stopped: bool) -> dict[str, int]:
        here = {"env_steps": self.env_steps, "updates": self.updates}
        self.rows = [x for x in self.rows if {k: getattr(x, k) for k in here} != here]
        self.rows += self.record.rows(self.scores, self.algorithm, stopped=stopped, **here)
        write_episodes(self.folder / EPISODES, self.rows)
        return here

    def _finish(self) -> Result:
        # Save before the last evaluation, so that a killed run repeats it. Do not save after it:
        # the policy may then have its best weights, and the optimisers those of the last update.
        self._check_metrics()
        if self._saved_at != self.position:
            self._save()
        stopped = self.position < self.end and not (self.success_reached or self.judge.exhausted)
        changed = self.judge.choose(self.algorithm.policy, self.updates)
        if changed or self._evaluated_at != self.position:
            self._evaluate(self._raise_if_stopped, stopped=stopped)
        else:  # this position is evaluated already; only the mark ``stopped`` may be new
            self._write_rows(stopped=stopped)
        self._log()
        self.trackers.arrived(self.position)
        ending = self.record.ending(
            self.success_reached, (self.position, self.end) if stopped else None
        )
        summary = self.record.summary(
            self.scores, self.algorithm, self.evaluations, env_steps=self.env_steps,
            updates=self.updates, seconds=time.perf_counter() - self._started,
            ending=ending | self.judge.summary(self.scores),
        ) | spent(self.plan.initial_state.phases, self.algorithm, self.trials)  # fmt: skip
        self._save_policy(self.folder / POLICY, ending)
        atomic_write_json(self.folder / RESULT, summary)
        self.progress(1.0, "done")
        return Result(self.folder, summary, already_done=False)

    def _save_policy(self, folder: Path, ending: Mapping[str, Any]) -> None:
        notes = {**ending, **self.judge.told(self.scores)}
        contract = self.record.contract(
            env_steps=self.env_steps, updates=self.updates, ending=notes
        )
        results = self.record.results(self.scores)
        save_bundle(self.algorithm.policy, folder, contract=contract, results=results, onnx=False)

    def _state(self) -> dict[str, Any]:
        return {
            "algorithm": self.algorithm.state_dict(),
            "dataset": self.dataset_source.state_dict() if self.dataset_source else None,
            "experience": self.experience.state_dict() if self.experience is not None else None,
            "collector": self.collector.state_dict() if self.collector is not None else None,
            "metrics": self.metrics.state_dict(),
            "rows": [row.to_row() for row in self.rows],
            "evaluations": self.evaluations,
            "trial_episodes": self.trials.episodes,
            "judge": self.judge.state_dict(),
            **random_states(self.config["device"]),
            "phases": list(self.done),
            "begun": self.begun,
            "updates": self.updates,
            "env_steps": self.env_steps,
            "reached": self.success_reached,
            "evaluation_due": self.evaluation_due,
            "seconds": time.perf_counter() - self._started,
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.algorithm.load_state_dict(state["algorithm"])
        if self.dataset_source is not None:
            self.dataset_source.load_state_dict(state["dataset"])
        if self.collector is not None and self.experience is not None:
            self.experience.load_state_dict(state["experience"])
            self.collector.load_state_dict(state["collector"])
        self.metrics.load_state_dict(state["metrics"])
        self.judge.load_state_dict(state.get("judge"))  # an earlier version saved none
        self.rows = [EpisodeRow.from_row(row) for row in state["rows"]]
        self.evaluations = list(state.get("evaluations", []))
        self.trials.episodes = int(state.get("trial_episodes", 0))
        set_random_states(self.config["device"], state)
        self.done = [int(units) for units in state["phases"]]
        self.begun = int(state.get("begun", 0))  # an earlier version had no phase that begins
        self.updates, self.env_steps = int(state["updates"]), int(state["env_steps"])
        self.success_reached, self._saved_at = bool(state["reached"]), self.position
        self.seconds_before = float(state["seconds"])
        self.evaluation_due = bool(state["evaluation_due"])
        for index in range(len(self.phases)):  # the shortened lengths are not saved
            self._end_trials_if_due(index)

    def close(self) -> None:
        """Close the trackers and the environments."""
        self.trackers.close()
        self.judge.close()
        self.trials.close()
        if self.collector is not None:
            self.collector.envs.close()
