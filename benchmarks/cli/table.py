"""Every command: where it is carried out, its settings, and what its help shows.

Functions are named and not imported, so that a command imports only what it needs.
"""

from __future__ import annotations

from trimtab.benchmarks.cli.words import Command, Setting

__all__ = ["COMMANDS", "FILMED"]

FILMED = 3
"""Number of episodes that a video shows by default."""

METRIC = Setting("", "default: success where a task has it", ("success", "return"))
FORMAT = Setting("table", "a table, or only JSON on standard output", ("table", "json"))

_FILES = ("check", "info", "convert")
_PLAYED, _OFFLINE = ("false",), ("true",)

COMMANDS: dict[str, Command] = {
    "train": Command(
        "trimtab.benchmarks.cli.commands.train:train",
        "one run: train, evaluate, save; the same command again continues it, or says it is done",
        (
            "trimtab train env=robotics/PointMaze-TwoRoutes-v0 algorithm=bc policy=flow "
            "dataset=two_routes act_steps=8",
            "trimtab train env=gym/Hopper-v5 algorithm=sac seed=3 online_steps=50000",
            "trimtab train env=metaworld/push-v3 algorithm=dsrl_sac base=<a run or bundle> "
            "-m seed=0,1,2",
        ),
        None,
    ),
    "bench": Command(
        "trimtab.benchmarks.cli.commands.bench:bench",
        "all runs of a suite, in parallel on all cores, then its leaderboard",
        (
            "trimtab bench suite=quickstart",
            "trimtab bench suite=quickstart workers=1",
            "trimtab bench suite=arena launcher=slurm launcher.partition=cpu",
            "trimtab bench suite=arena status",
            "trimtab bench suite=./mine.yaml plan",
        ),
        {
            "suite": Setting(
                ..., "name of a suite, as trimtab list suite shows it, or a YAML file of your own"
            ),
            "runs": Setting(
                "runs",
                "folder of the runs, or their address, such as s3://bucket/runs; finished ones are "
                "not run again",
                address=True,
            ),
            "out": Setting("", "folder of the leaderboard; default: <runs>/suites/<suite>"),
            "workers": Setting(0, "number of runs side by side; 0: one for each core"),
            "launcher": Setting(
                "local",
                "where the runs go: local, slurm, ray; launcher.<name>=<value> are its settings, "
                "which trimtab list launcher shows",
            ),
            "action": Setting(
                "run",
                "status: show how far it is; plan: say what it will take, and run nothing",
                ("run", "status", "plan"),
            ),
            "scale": Setting("", "one of the suite's scales, such as ci; default: the first"),
            "seeds": Setting("", "seeds to use instead of the suite's own, such as 0,1,2"),
            "only": Setting(
                "", "runs to carry out, with their bases, such as doors-*,push-flow; default: all"
            ),
            "device": Setting(
                "", "of torch in all runs, such as cuda, which they share; default: the suite's own"
            ),
            "format": FORMAT,
        },
        within=("launcher.",),
        bare=("action", "suite"),
    ),
    "evaluate": Command(
        "trimtab.benchmarks.cli.commands.evaluate:evaluate",
        "evaluate a policy on fixed seeds, with intervals",
        (
            "trimtab evaluate policy=<a run or bundle> episodes=100 seed=7",
            "trimtab evaluate policy=<bundle> env=metaworld/push-v3 episodes=50 backend=onnx",
            "trimtab evaluate policy=<a run of cfgrl> inputs='{guidance: 3}'",
            "trimtab evaluate policy=<bundle> video=push.mp4 video_episodes=5",
            "trimtab evaluate policy=<a run> episodes=1000 out=judged",
            "trimtab evaluate policy=<bundle> delay_ms=120 jitter=0.3 drop=0.05 mode=ensemble",
            "trimtab evaluate offline=true run=<a run> dataset=hopper_medium",
            "trimtab evaluate offline=true run=<a folder of runs> dataset=<data> out=ranks",
        ),
        {
            "policy": Setting(
                "",
                "folder of a run or a bundle, or a server's address, such as ws://127.0.0.1:8000",
                served=True,
            ),
            "env": Setting(
                "", "task; default: the task that the policy was trained for", of=_PLAYED
            ),
            "episodes": Setting(50, "number of evaluation episodes", of=_PLAYED),
            "seed": Setting(0, "seed of the first episode; episode i has seed + i"),
            "backend": Setting("torch", "what runs the policy", ("torch", "onnx"), of=_PLAYED),
            "deterministic": Setting(
                "",
                "true: zero noise, false: sampled noise; default: what the policy's bundle says",
                ("true", "false"),
                of=_PLAYED,
            ),
            "env_options": Setting(
                "",
                "options of the task, such as {reward: sparse}; env_options.<name>=<value> sets "
                "one; default: the policy's own",
                of=_PLAYED,
            ),
            "inputs": Setting(
                "",
                "inputs of the policy that differ from their defaults, such as {guidance: 3} of "
                "cfgrl, {return_to_go: 3600} of a decision transformer, or {noise: ticket.npy}",
                of=_PLAYED,
            ),
            "video": Setting(
                "",
                "file.mp4 to write a video to; it replaces no file but an earlier video; "
                "true: <policy's folder>-<env>.mp4 in the current folder",
                of=_PLAYED,
            ),
            "out": Setting(
                "",
                "folder to write the rows to, and vla_eval.json, the result as vla-eval writes it; "
                "trimtab leaderboard runs=<out> reads the rows; offline: "
                "folder for the rank correlation of estimates and true returns",
            ),
            "video_episodes": Setting(
                FILMED, "how many of the first episodes the video shows", of=_PLAYED
            ),
            "mode": Setting(
                "",
                "how chunks are played in simulated time, with delay_ms, jitter or drop; default: "
                "receding",
                ("receding", "ensemble", "blended", "rtc", "rti"),
                of=_PLAYED,
            ),
            "interval": Setting(
                0,
                "simulated time: ticks from one chunk to the next; default: act_steps of the "
                "training, 1 of an ensemble",
                of=_PLAYED,
            ),
            "delay_ms": Setting(
                "0",
                "milliseconds of simulated time from an observation to the answer, while the robot "
                "plays on, or measured: what a decision takes on this machine; default: the "
                "simulator waits",
                of=_PLAYED,
            ),
            "jitter": Setting(
                0.0,
                "standard deviation of the delay's logarithm; default: none",
                zero=True,
                of=_PLAYED,
            ),
            "drop": Setting(
                0.0, "share of ticks without an observation; default: none", zero=True, of=_PLAYED
            ),
            "offline": Setting(
                "false",
                "true: no episode is played; dataset= says what the return would be, discounted",
                ("true", "false"),
            ),
            "run": Setting(
                "", "what policy= names, or a folder of several runs, which are ranked", of=_OFFLINE
            ),
            "dataset": Setting(
                "", "a dataset of the task; dataset.<name>=<value> are its settings", of=_OFFLINE
            ),
            "other_task": Setting(
                "false",
                "true: data of another task of these shapes, too",
                ("true", "false"),
                of=_OFFLINE,
            ),
            "estimator": Setting(
                "", "fitted_q, importance, model, separated by commas; default: all", of=_OFFLINE
            ),
            "updates": Setting(20_000, "gradient steps of everything that is learned", of=_OFFLINE),
            "discount": Setting(0.99, "gamma of a decision, below 1", of=_OFFLINE),
            "format": FORMAT,
        },
        within=("dataset.", "env_options."),
        by="offline",
    ),
    "runs": Command(
        "trimtab.benchmarks.cli.commands.runs:runs",
        "list runs with their state and settings; or compare two",
        (
            "trimtab runs",
            "trimtab runs runs/gym/Hopper-v5 format=json",
            "trimtab runs diff runs/…/1a2b3c4d5e/seed0 runs/…/6f7a8b9c0d/seed0",
        ),
        {
            "action": Setting("list", "what to do", ("list", "diff")),
            "where": Setting(
                "runs", "a folder of runs, or of one run, or its address", address=True
            ),
            "other": Setting("", "diff: the run that the first one is compared with", address=True),
            "format": FORMAT,
        },
        bare=("action", "where", "other"),
    ),
    "leaderboard": Command(
        "trimtab.benchmarks.cli.commands.leaderboard:leaderboard",
        "recompute tables, statistics and figures from raw rows",
        (
            "trimtab leaderboard runs=runs out=board",
            "trimtab leaderboard runs=episodes.parquet",
            "trimtab leaderboard runs=anna,bert,carl format=latex",
        ),
        {
            "runs": Setting(
                "runs",
                "a folder of runs, or its address, or one episodes.parquet; or several of these, "
                "separated by commas",
                address=True,
            ),
            "out": Setting("", "folder to write to; default: only print"),
            "physics": Setting(
                "", "fingerprints, separated by commas: of a task with several, the one that counts"
            ),
            "baseline": Setting("", "method that the others are compared with"),
            "metric": METRIC,
            "intervals": Setting(
                "student_t",
                "student_t: made for few seeds; bootstrap: common, but too narrow with few seeds",
                ("student_t", "bootstrap"),
            ),
            "format": Setting(
                "table",
                "table, or only JSON, CSV or LaTeX's booktabs tables on standard output",
                ("table", "json", "csv", "latex"),
            ),
        },
    ),
    "compare": Command(
        "trimtab.benchmarks.cli.commands.compare:compare_two",
        "say in one sentence whether one method beats another, paired by seeds",
        (
            "trimtab compare a=dsrl_sac b=frozen",
            "trimtab compare a=sac/gym/Hopper-v5 b=td3/gym/Hopper-v5 runs=results",
            "trimtab compare a=<a run or a folder of runs> b=<another>",
        ),
        {
            "a": Setting(
                ..., "a run, a folder of runs, or a method of those in runs=, as <method>[/<task>]"
            ),
            "b": Setting(..., "what it is compared with, named in the same way"),
            "runs": Setting("runs", "folder of the runs among which methods are looked for"),
            "metric": METRIC,
            "intervals": Setting(
                "student_t", "as of trimtab leaderboard", ("student_t", "bootstrap")
            ),
            "format": FORMAT,
        },
        bare=("a", "b"),
    ),
    "export": Command(
        "trimtab.benchmarks.cli.commands.export:export",
        "write a bundle for a robot, with ONNX, and check that it gives the same actions",
        (
            "trimtab export run=runs/…/seed0 out=my-bundle",
            "trimtab export run=model.zip env=gym/Hopper-v5 out=my-bundle",
            "trimtab export run=model.pt contract=contract.yaml out=my-bundle",
            "trimtab export run=policy.onnx contract=contract.yaml out=my-bundle",
            "trimtab export run=my-bundle out=for-mjlab as=mjlab",
            "trimtab export run=runs/…/seed0 out=my-black-box weights=false",
            "trimtab export run=runs/…/seed0 out=fast policy.sampling_steps=2",
            "trimtab export run=runs/…/seed0 out=flowing chunking=rtc",
            "trimtab export run=runs/…/seed0 out=tunable choices='{sampling_steps: [10, 5, 2]}'",
            "trimtab export run=runs/…/seed0 out=mixed mix=runs/…/seed1",
            "trimtab export run=runs/…/seed0 out=my-bundle limits='{velocity: 1.0}'",
            "trimtab export run=runs/…/seed0 out=for-lerobot as=lerobot",
        ),
        {
            "run": Setting(
                ..., "a finished run, a bundle, or a weight file or an ONNX file of others"
            ),
            "out": Setting(
                ...,
                "folder of the bundle to write; one of the same run or file is replaced; a name "
                "with .pt2: a program of torch.export",
            ),
            "env": Setting("", "task of a weight file, which does not name it"),
            "contract": Setting(
                "", "YAML file that says what a file of others does not: activation, rate, names"
            ),
            "weights": Setting(
                "true", "false: the graph alone, which others can run and steer", ("true", "false")
            ),
            "chunking": Setting(
                "",
                "rtc: the next chunk is drawn to the one that is being played; rti: its sampling "
                "begins late, with that one; default: neither",
                ("rtc", "rti"),
            ),
            "choices": Setting(
                "",
                "settings of acting that are chosen while the policy runs, such as "
                "{sampling_steps: [10, 5, 2], candidates: [32, 8]}, the default first; default: "
                "none",
            ),
            "mix": Setting(
                "",
                "a run or bundle whose predictions are mixed with those of run=, by the input mix",
            ),
            "limits": Setting(
                "",
                "limits of a robot's commands, such as {velocity: 1.0, acceleration: 5.0}, or a "
                "YAML file that has them; default: those that the bundle or the run's contract "
                "states",
            ),
            "as": Setting(
                "bundle",
                "lerobot: a policy folder of LeRobot, with the bundle in it; the others: an ONNX "
                "file as a locomotion stack reads it",
                ("bundle", "lerobot", "mjlab", "holosoma", "unitree"),
            ),
        },
        within=("policy.",),
    ),
    "calibrate": Command(
        "trimtab.benchmarks.cli.commands.calibrate:calibrate",
        "give a bundle a warning of what is unlike the data, with a known share of false alarms",
        (
            "trimtab calibrate bundle=my-bundle dataset=held_out.hdf5 out=my-bundle",
            "trimtab calibrate bundle=my-bundle dataset=two_routes dataset.episodes=100 out=warned",
        ),
        {
            "bundle": Setting(..., "folder of a bundle with its graph, from trimtab export"),
            "dataset": Setting(
                ...,
                "successful episodes that the policy was not trained on; dataset.<name>=<value> "
                "are its settings",
            ),
            "out": Setting(..., "folder of the bundle to write; the bundle itself is replaced"),
            "delta": Setting(0.05, "largest share of episodes with a false alarm"),
            "interval": Setting(
                0,
                "ticks from one chunk to the next on the robot (RecedingHorizon); below the "
                "length of a chunk, chunks are compared too; default: act_steps of the training",
            ),
            "seed": Setting(0, "decides which episodes calibrate, and which check"),
        },
        within=("dataset.",),
    ),
    "serve": Command(
        "trimtab.benchmarks.cli.commands.serve:serve",
        "a policy behind a websocket, for robots and evaluators on other machines",
        (
            "trimtab serve policy=<a run or bundle>",
            "trimtab evaluate policy=ws://127.0.0.1:8000 episodes=20",
            "trimtab serve my-bundle host=0.0.0.0 port=8001",
            "trimtab serve my-bundle inputs='{guidance: 3}'",
        ),
        {
            "policy": Setting(..., "folder of a run or a bundle"),
            "host": Setting(
                "127.0.0.1",
                "address to listen at; others than this machine need the key that the environment "
                "variable TRIMTAB_SERVE_KEY holds",
            ),
            "port": Setting(8000, "port to listen at; 0: any that is free"),
            "backend": Setting(
                "onnx", "what runs the policy; torch needs its weights", ("onnx", "torch")
            ),
            "deterministic": Setting(
                "",
                "true: zero noise, false: sampled noise, where a client sends none; default: what "
                "the policy's bundle says",
                ("true", "false"),
            ),
            "inputs": Setting(
                "",
                "inputs of the policy that differ from their defaults where a client sends none, "
                "such as {sampling_steps: 5}",
            ),
            "seed": Setting(0, "seed of the noise; each client's begins with it"),
            "connections": Setting(8, "number of clients at the same time", least=1),
            "timeout": Setting(30.0, "seconds after which a decision is given up"),
        },
    ),
    "dataset": Command(
        "trimtab.benchmarks.cli.commands.dataset:dataset",
        "offline data: list, make, check, info or convert",
        (
            "trimtab dataset make two_routes dataset.episodes=50",
            "trimtab dataset make ./mine.yaml",
            "trimtab dataset check runs/datasets/…/trimtab/two-routes-v0",
            "trimtab dataset info lift.hdf5 figure=lift.png",
            "trimtab dataset convert lift.hdf5 my/lift-v0 as=minari env=robosuite/Lift "
            "keys=robot0_eef_pos,robot0_eef_quat,robot0_gripper_qpos,object",
        ),
        {
            "action": Setting("list", "what to do", ("list", "make", "check", "info", "convert")),
            "dataset": Setting(
                "",
                "name of a recipe or of an external dataset, as action=list shows them, or a "
                "recipe's YAML file of your own",
                of=("make", "check", "info"),
            ),
            "path": Setting("", "file or folder of a dataset, in any format", of=("check", "info")),
            "from": Setting(
                "", "file or folder to read; its format is recognised", of=("convert",)
            ),
            "to": Setting("", "file or folder to write", of=("convert",)),
            "as": Setting("", "format to write, if to= fits several formats", of=("convert",)),
            "env": Setting("", "environment of the data, if its file does not name it", of=_FILES),
            "id": Setting(
                "", "id of the data, such as my/lift-v0, if its file has none", of=_FILES
            ),
            "mask": Setting("", "only the episodes under this mask, such as train", of=_FILES),
            "horizon": Setting(
                0, "steps of a whole episode, for D4RL files without timeouts", of=_FILES
            ),
            "control_rate": Setting(
                0.0,
                "LeRobot: actions a second, if its times and frame rate contradict each other",
                of=_FILES,
            ),
            "keys": Setting(
                "", "observation keys to take, in this order, separated by commas", of=_FILES
            ),
            "frames": Setting(
                "",
                "LeRobot: cameras whose frames are decoded, separated by commas; or all",
                of=_FILES,
            ),
            "figure": Setting(
                "", "file.png to draw to; it replaces no file but an earlier figure", of=("info",)
            ),
            "out": Setting(
                "runs", "datasets are made below it", of=("list", "make", "check", "info")
            ),
            "format": FORMAT,
        },
        within=("dataset.",),
        bare=("action",),
        by="action",
        bare_of={
            "make": ("dataset",),
            "check": ("path",),
            "info": ("path",),
            "convert": ("from", "to"),
        },
    ),
    "list": Command(
        "trimtab.benchmarks.cli.commands.listing:list_things",
        "show what there is: env, family, algorithm, policy, dataset, source, suite or launcher",
        (
            "trimtab list algorithm",
            "trimtab list env tag=goal,sparse",
            "trimtab list env format=json",
        ),
        {
            "what": Setting(
                ...,
                "what to list: env, algorithm, policy, dataset, source, suite, launcher; "
                "family: simulators of tasks",
                ("env", "family", "algorithm", "policy", "dataset", "source", "suite", "launcher"),
            ),
            "tag": Setting(
                "", "tasks with all of these tags, such as goal,sparse or metaworld", of=("env",)
            ),
            "format": FORMAT,
        },
        by="what",
    ),
    "subspace": Command(
        "trimtab.benchmarks.cli.commands.subspace:subspace",
        "measure how much of a run's gradients lies in few directions of high curvature",
        (
            "trimtab subspace run=runs/…/seed0",
            "trimtab subspace run=<a run of ppo>,<one of more steps> out=subspaces.csv",
            "trimtab subspace run=<a run of sac> dimensions=1,10,100 pairs=20000 format=json",
        ),
        {
            "run": Setting(
                ...,
                "folder of a run of PPO or SAC; or several, separated by commas, whose subspaces "
                "are compared with the first one's",
            ),
            "dimensions": Setting(
                "1,2,5,10,20,50,100", "numbers of eigenvectors, separated by commas"
            ),
            "pairs": Setting(
                10_000, "observations and actions that Hessians and gradients come from", least=1
            ),
            "out": Setting("", "file.csv to write the rows to"),
            "format": FORMAT,
        },
    ),
    "speed": Command(
        "trimtab.benchmarks.cli.commands.speed:speed",
        "measure Trimtab against its peers in turns",
        (
            "trimtab speed",
            "trimtab speed only=updates rounds=9",
            "trimtab speed out=speed format=markdown",
        ),
        {
            "only": Setting(
                "", "groups or rows: environments, replay, updates, training, latency, …"
            ),
            "rounds": Setting(5, "turns of each side; a row has their medians"),
            "scale": Setting("1.0", "factor that multiplies the work of a turn"),
            "out": Setting("", "folder for the rows and the machine"),
            "format": Setting(
                "table", "table, or json or markdown alone", ("table", "json", "markdown")
            ),
        },
    ),
    "check": Command(
        "trimtab.benchmarks.cli.commands.check:check",
        "contract tests of a task, a method, a policy or data of your own; each fault in one line",
        (
            "trimtab check env=gymnasium:Pendulum-v1",
            "trimtab check env=gymnasium:my_package:MyEnv-v0 env_options.horizon=200",
            "trimtab check algorithm=./my_method.yaml",
            "trimtab check algorithm=./my_method.yaml env=my_robot/Reach-v0 act_steps=4",
            "trimtab check policy=./my_policy.yaml policy.hidden=[32,32]",
            "trimtab check dataset=./my_recipe.yaml",
        ),
        {
            "env": Setting(
                "",
                "task to check, or that a method, a policy or data are tried on; any that "
                "Gymnasium knows is gymnasium:<id>",
            ),
            "algorithm": Setting("", "method to check: its name, or a YAML file of your own"),
            "policy": Setting("", "policy to check, or that a method is checked with"),
            "dataset": Setting("", "data to check, or that a method or a policy is tried on"),
            "skip": Setting("", "checks to leave out, separated by commas, such as device,export"),
            "env_options": Setting(
                "",
                "options of the task, such as {reward: sparse}; env_options.<name>=<value> sets "
                "one; those of gymnasium:<id> go to its constructor",
            ),
            "format": FORMAT,
        },
        within=(
            "env_options.",
            "algorithm.",
            "policy.",
            "dataset.",
            "act_steps=",
            "base=",
            "discount=",
            "expert=",
            "history=",
            "num_envs=",
            "observations=",
            "offline_steps=",
            "online_steps=",
            "oracles=",
        ),
    ),
    "doctor": Command(
        "trimtab.benchmarks.cli.commands.doctor:doctor",
        "look for problems of this machine and of this installation",
        ("trimtab doctor", "trimtab doctor out=/data/runs", "trimtab doctor bundle=my-bundle"),
        {
            "out": Setting("runs", "folder that runs will be written to"),
            "bundle": Setting("", "bundle to prove and to time on this machine, as on a robot"),
            "format": FORMAT,
        },
    ),
    "replay": Command(
        "trimtab.benchmarks.cli.commands.replay_log:replay_log",
        "play a robot's log again through its bundle, and compare every action",
        ("trimtab replay log=run.log", "trimtab replay log=run.log bundle=my-bundle format=json"),
        {
            "log": Setting(..., "log of load_policy(…, log=…)"),
            "bundle": Setting("", "folder of its bundle; default: where it was when the robot ran"),
            "format": FORMAT,
        },
    ),
}
