"""The one loop over a run's phases.

The method says its phases: by default offline_steps updates on the dataset, then online_steps
environment steps of gathering and learning. There is an evaluation and a checkpoint every so often,
and a bundle at the end.

A run is resumed from its checkpoint to the same bits: learner, buffer, environments, random states
and the counters of this file are all that changes, and all of it is saved.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.algorithms.phases import Feed, Outcome, Phase, Trials
from trimtab.benchmarks.training.callbacks import Callback, Listeners, RunProgress
from trimtab.benchmarks.training.checkpoint import Checkpoints
from trimtab.benchmarks.training.collector import Collector, training_envs
from trimtab.benchmarks.training.experience import (
    Experience,
    ReplayedExperience,
    make_dataset_source,
    make_experience,
)
from trimtab.benchmarks.training.generated import with_generator
from trimtab.benchmarks.training.metrics_log import MetricsLog, NotFinite, placed
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.random_states import random_states, set_random_states
from trimtab.benchmarks.training.record import Record
from trimtab.benchmarks.training.result import Progress, Result
from trimtab.benchmarks.training.rows import EpisodeRow, write_episodes
from trimtab.benchmarks.training.run_judge import RunJudge
from trimtab.benchmarks.training.rundir import remedy
from trimtab.benchmarks.training.spending import spent
from trimtab.benchmarks.training.torch_state import start_torch
from trimtab.benchmarks.training.tracking import start_trackers
from trimtab.benchmarks.training.trials import TrialJudge
from trimtab.errors import Stopped, TrimtabError
from trimtab.files import atomic_write_json
from trimtab.policies.bundle.bundle import save_bundle
from trimtab.types import Batch, Rollout, Source

__all__ = ["LOG_EVERY", "Run"]

logger = logging.getLogger(__name__)

LOG_EVERY = 500
"""Updates between two lines of ``metrics.jsonl``; an update from a rollout always has a line."""


class Run:
    """The state of one run, and the loop over it.

    Args:
        plan: what the run is made of.
        folder: of the run; its caller holds the lock.
        progress: told how far the run is.
        stop: when set, the run saves its state and ends.
        callbacks: told of the run as it goes on.
        held: called before something is written; raises where the folder is another's by now.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        progress: Progress,
        stop: threading.Event | None = None,
        callbacks: Sequence[Callback] = (),
        held: Callable[[], None] = lambda: None,
    ) -> None:
        self.config, self.plan, self.folder, self.progress = plan.config, plan, folder, progress
        config, learner = plan.config, plan.learner
        self.others = others = start_torch(config["seed"], config["threads"])
        set_random_states(config["device"], learner.random)
        self.stop, self.listeners = stop or threading.Event(), Listeners(callbacks, others)
        self._asked_to_stop = threading.Event()  # by a callback
        self.evaluation_due, self.held = False, held
        self.algorithm = learner.algorithm
        self.record = Record(plan, plan.policy_label or self.algorithm.policy.label)
        self.dataset_source = make_dataset_source(
            plan, lambda share: progress(share, "returns of the dataset")
        )
        self.experience: Experience | None = None
        self.collector: Collector | None = None
        self.phases = with_generator(learner.phases, self.dataset_source)
        self.done = [0] * len(self.phases)
        self.lengths = [phase.length for phase in self.phases]
        self.trials = TrialJudge(plan, others)
        if gathered := sum(phase.length for phase in self.phases if phase.gathers):
            envs = training_envs(plan, others)
            self.experience = make_experience(plan, self.dataset_source, gathered)
            ring = self.experience.buffer
            self.collector = Collector(envs, self.algorithm, ring, config["device"], others)
        self.judge = RunJudge(plan, self.algorithm.policy, others)
        self.checkpoints = Checkpoints(folder / "checkpoint")
        self.metrics = MetricsLog(folder / "metrics.jsonl")
        self.rows: list[EpisodeRow] = []
        self.evaluations: list[dict[str, Any]] = []
        self.updates, self.env_steps, self.seconds = 0, 0, 0.0
        self.reached = False  # the success rate that the run is to stop at
        self._saved_at = self._judged_at = -1  # the positions of the last checkpoint and evaluation
        self._started = time.perf_counter()

    def carry_out(self) -> Result:
        """Go through the rest of the run and write its results."""
        state = self.checkpoints.load()
        if state is not None:
            try:
                self._load(state)
            except KeyError as error:
                raise TrimtabError(
                    f"{self.folder / 'checkpoint'} lacks {error}: another version of Trimtab wrote "
                    f"it; {remedy(self.folder)}, or remove it to start this run again"
                ) from error
            logger.info("%s: going on at step %d", self.folder, self.position)
        else:
            self.metrics.start_again()
        self._started = time.perf_counter() - self.seconds
        self.listeners.trackers = start_trackers(
            self.config, self.plan.config_hash, self.folder, self.position
        )
        if self.evaluation_due and self.position < self.end:
            self._evaluate()
        for index in range(len(self.phases)):
            if index and not self.done[index] and self.metrics.pending:
                self._log()  # no line has metrics of two phases, which may have other names
            while self.done[index] < self.lengths[index] and not self._over():
                self.advance(index)
        return self._finish()

    def _over(self) -> bool:
        return self.reached or self.judge.exhausted or self._asked_to_stop.is_set()

    @property
    def position(self) -> int:
        """How far the run is: units of all its phases, updates or environment steps."""
        return sum(self.done)

    @property
    def end(self) -> int:
        """The position at which the run is done."""
        return sum(self.lengths)

    def advance(self, index: int) -> None:
        """Go on in a phase: by one update, one trial, or one decision in every environment."""
        phase = self.phases[index]
        if isinstance(phase.feed, Trials):
            self._after(index, self._try(phase, phase.feed))
        elif phase.unit == "updates":
            rows = phase.batch_size or self.algorithm.pace.batch_size
            self._update(phase, self._source(phase).sample(rows))
            self._after(index, 1)
        else:
            self._after(index, self._gather(phase))

    def _source(self, phase: Phase) -> Source:
        """Return what the batches of a phase are drawn from."""
        if not isinstance(phase.feed, Feed):
            assert not isinstance(phase.feed, Trials)
            return phase.feed
        if phase.feed is Feed.DATASET:
            assert self.dataset_source is not None
            return self.dataset_source
        assert isinstance(self.experience, ReplayedExperience)
        return self.experience.source

    def _try(self, phase: Phase, feed: Trials) -> int:
        """Carry out one trial and learn from its outcome; return the steps taken."""
        outcome, steps = self.trials.judge(feed.propose(), self._check_stop)
        self.env_steps += steps
        self._update(phase, outcome)
        self._log()
        return steps

    def _end_of_trials(self, index: int) -> None:
        """End a phase of trials where none is left, or the next one might outlast the phase."""
        feed, left = self.phases[index].feed, self.lengths[index] - self.done[index]
        if isinstance(feed, Trials) and not self.trials.fits(feed.propose(), left):
            self.lengths[index] = self.done[index]

    def _gather(self, phase: Phase) -> int:
        """Take one decision in every environment and learn what is due; return the steps taken."""
        assert self.collector is not None and self.experience is not None
        taught = self.algorithm.pace.acts_once_taught and self.updates > 0
        warmup = self.env_steps < self.algorithm.pace.warmup_steps and not taught
        try:
            steps = self.collector.step(warmup=warmup)
        except TrimtabError as error:
            self._settle()  # what an update has broken is told first
            where = self._where(self.updates + 1)
            raise TrimtabError(f"{where}: {error}; {self._last_good()}") from error
        self.env_steps += steps
        if phase.update is not None:
            source = None if phase.feed is Feed.EXPERIENCE else self._source(phase)
            for data in self.experience.due(self.env_steps, source):
                self._update(phase, data)
        return steps

    def _update(self, phase: Phase, data: Batch | Rollout | Outcome) -> None:
        assert phase.update is not None
        metrics = phase.update(data)
        with placed(self._where, self.updates + 1):
            self.metrics.add(metrics)
        self.updates += 1
        if isinstance(data, Rollout) or self.updates % LOG_EVERY == 0:
            self._log()

    def _settle(self) -> None:
        """Look at the metrics since the last look: before anything is written.

        Raises:
            TrimtabError: if one is no finite number; nothing that came of it has been saved.
        """
        self.held()
        try:
            with placed(self._where, self.updates):
                self.metrics.settle()
        except NotFinite as error:
            raise TrimtabError(
                f"{self._where(self.updates - error.ago)}: {error}; {self._last_good()}; lower the "
                "learning rate or check the data"
            ) from error

    def _where(self, update: int) -> str:
        return f"{self.folder}: at update {update}, after {self.env_steps} environment steps"

    def _last_good(self) -> str:
        saved = self.folder / "checkpoint"
        return f"the last good state is in {saved}" if saved.is_dir() else "nothing was saved"

    def _log(self, **found: Any) -> None:
        self._settle()
        position = {"env_steps": self.env_steps, "updates": self.updates}
        extra = {**found, "seconds": round(time.perf_counter() - self._started, 3)}
        if self.collector is not None:
            extra |= self.collector.books()
        self.listeners.metrics(self.metrics.write(position, extra))

    def _after(self, index: int, steps: int) -> None:
        """Evaluate and save where the last ``steps`` crossed a multiple of their intervals."""
        self.done[index] += steps
        with placed(self._where, self.updates):
            self.listeners.arrived(self._now())
            self.others.check()  # also of the method's own code
        self._end_of_trials(index)
        now, before = self.position, self.position - steps
        every = (own := self.phases[index].eval_every) or self.config["eval_every"]
        counted = self.done[index] if own else now
        if every and counted // every > (counted - steps) // every and now < self.end:
            self._settle()
            self._evaluate()
        every = self.config["checkpoint_every"]
        if now // every > before // every and now < self.end:
            self._save()
        if now * 200 // self.end > before * 200 // self.end:
            self.progress(now / self.end, f"{now:,} of {self.end:,} steps{self.judge.last}")
        self._check_stop()

    def _save(self) -> None:
        self._settle()
        self.checkpoints.save(self.position, self._state())
        self._saved_at = self.position
        self.listeners.saved(self._now())

    def _now(self) -> RunProgress:
        place = (self.folder, self.position, self.end, self.env_steps, self.updates)
        return RunProgress(*place, stop=self._asked_to_stop.set)

    def _check_stop(self) -> None:
        """Save and stop if the process was told to end."""
        if not self.stop.is_set():
            return
        self._save()
        raise Stopped(
            f"{self.folder}: stopped at step {self.position:,} of {self.end:,}; "
            "its state is saved, run the same command to go on"
        )

    def _evaluate(self, *, stopped: bool = False) -> None:
        self.evaluation_due = True
        with placed(self._where, self.updates):
            self.scores = self.judge.judge(self.algorithm.policy, self.updates, self._check_stop)
        self.held()
        self.evaluation_due = False
        enough, rate = self.config["stop_at_success"], self.scores.success_rate
        self.reached = enough is not None and rate is not None and rate >= enough
        here = self._write_rows(stopped=stopped)
        self.evaluations = [x for x in self.evaluations if {k: x[k] for k in here} != here]
        gathered = self.collector.episodes if self.collector is not None else 0
        seconds = round(time.perf_counter() - self._started, 3)
        by_now = {"episodes": gathered + self.trials.episodes, "seconds": seconds}
        self.evaluations.append({**here, **by_now, **self.scores.found})
        if self.config["keep_policies"]:
            ending = self.record.ending(self.reached)
            self._save_policy(self.folder / "policies" / str(self.position), ending)
        if self.scores.fit is not None:
            self._log(**self.scores.fit.curves)
        self._judged_at = self.position
        self.listeners.evaluated(self._now(), self.scores.found)
        logger.info("%s: %s: %s", self.folder, here, self.scores.found)

    def _write_rows(self, *, stopped: bool) -> dict[str, int]:
        here = {"env_steps": self.env_steps, "updates": self.updates}
        self.rows = [x for x in self.rows if {k: getattr(x, k) for k in here} != here]
        self.rows += self.record.rows(self.scores, self.algorithm, stopped=stopped, **here)
        write_episodes(self.folder / "episodes.parquet", self.rows)
        return here

    def _finish(self) -> Result:
        # Saved before the last evaluation: a run killed during or after it repeats it, and has its
        # rows once.
        self._settle()
        if self._saved_at != self.position:
            self._save()
        stopped = self.position < self.end and not (self.reached or self.judge.exhausted)
        changed = self.judge.choose(self.algorithm.policy, self.updates)
        if changed or self._judged_at != self.position:
            self._evaluate(stopped=stopped)
        else:  # an evaluation ended it
            self._write_rows(stopped=stopped)
        self._log()
        self.listeners.trackers.arrived(self.position)
        ending = self.record.ending(self.reached, (self.position, self.end) if stopped else None)
        summary = self.record.summary(
            self.scores, self.algorithm, self.evaluations, env_steps=self.env_steps,
            updates=self.updates, seconds=time.perf_counter() - self._started,
            ending=ending | self.judge.summary(self.scores),
        ) | spent(self.plan.learner.phases, self.algorithm, self.trials)  # fmt: skip
        self._save_policy(self.folder / "policy", ending)
        atomic_write_json(self.folder / "result.json", summary)
        self.progress(1.0, "done")
        return Result(self.folder, summary, already_done=False)

    def _save_policy(self, folder: Path, ending: Mapping[str, Any]) -> None:
        ending = {**ending, **self.judge.told(self.scores)}
        terms = self.record.contract(env_steps=self.env_steps, updates=self.updates, ending=ending)
        results = self.record.results(self.scores)
        save_bundle(self.algorithm.policy, folder, contract=terms, results=results, onnx=False)

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
            "updates": self.updates,
            "env_steps": self.env_steps,
            "reached": self.reached,
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
        self.judge.load_state_dict(state.get("judge"))
        self.rows = [EpisodeRow.from_row(row) for row in state["rows"]]
        self.evaluations = list(state.get("evaluations", []))  # earlier versions kept none
        self.trials.episodes = int(state.get("trial_episodes", 0))
        set_random_states(self.config["device"], state)
        self.done = [int(units) for units in state["phases"]]
        self.updates, self.env_steps = int(state["updates"]), int(state["env_steps"])
        self.reached, self._saved_at = bool(state["reached"]), self.position
        self.seconds = float(state["seconds"])
        self.evaluation_due = bool(state["evaluation_due"])
        for index in range(len(self.phases)):
            self._end_of_trials(index)

    def close(self) -> None:
        """Close the trackers and the environments."""
        self.listeners.trackers.close()
        self.judge.close()
        self.trials.close()
        if self.collector is not None:
            self.collector.envs.close()
