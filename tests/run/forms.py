# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands in which AdaGC is in force, behind ``adagc-run``."""

from run.scripts import (
    DPO,
    ERNIE,
    GIVEN,
    JOB,
    OPTIMIZER,
    OWN_OPTIMIZER,
    PROCESS,
    SCRIPT,
    SERVER,
    TMUX,
    TRAIN,
    WITH_PATH,
    clips,
    subclass,
    without,
)

FORMS = [
    clips("a script"),
    clips(
        "the bare command",
        options="--",
        clip="lambda_abs=1.0 t_start=100",
        origin=r"lambda_abs=1\.0 \(max_grad_norm\)",
    ),
    clips("`python -m`", "python -m train job.json"),
    clips(
        "`python -c`",
        """python -c "import runpy; runpy.run_path('train.py')" job.json""",
    ),
    clips("standard input", "bash -c 'python - job.json < train.py'"),
    clips(
        "a shell script",
        "bash job.sh",
        files={"job.sh": "NAME=job\npython train.py $NAME.json\n"},
    ),
    clips(
        "a script that trains in the background",
        "bash job.sh",
        files={"job.sh": "python train.py job.json &\nwait $!\n"},
    ),
    clips(
        "a script that trains twice",
        "bash job.sh",
        num=2,
        files={"job.sh": "python train.py job.json\n" * 2},
    ),
    clips("`bash -c`", "bash -c 'python train.py job.json'"),
    clips("`bash -c` with more", "bash -c 'cd . && python train.py job.json'"),
    clips(
        "`PYTHONPATH` with ours kept",
        "bash -c 'PYTHONPATH=/mine:$PYTHONPATH python train.py job.json'",
    ),
    clips("`timeout`", "timeout 100 python train.py job.json"),
    clips("`setsid -w`", "setsid -w python train.py job.json"),
    clips("`nohup`", "nohup python train.py job.json"),
    clips("`nice`", "nice -n 5 python train.py job.json"),
    clips("`env`", "env A=b python train.py job.json"),
    clips(
        "`make`",
        "make",
        files={"Makefile": "all:\n\tpython train.py job.json\n"},
        needs="make",
    ),
    clips(
        "`tmux`, with its own server",
        "bash job.sh",
        files={"job.sh": TMUX.format(before="")},
        needs="tmux",
    ),
    without(
        "`tmux`, with a running server",
        (r"\A[^\n]*does not clip\.\n(?!.*adagc-run)",),
        "bash job.sh",
        trained=("ClipGradByGlobalNorm",),
        files={"job.sh": TMUX.format(before=SERVER), "train.py": WITH_PATH},
        needs="tmux",
    ),
    clips(
        "without a network",
        "unshare -r -n python train.py job.json",
        needs="unshare -r -n",
    ),
    clips(
        "`exec`",
        "python start.py",
        files={
            "start.py": "import os, sys\n"
            'os.execv(sys.executable, [sys.executable, "train.py", '
            '"job.json"])\n'
        },
    ),
    *(
        clips(
            f"`multiprocessing`, {way}",
            "python start.py",
            files={"start.py": PROCESS.format(way)},
        )
        for way in ("spawn", "fork", "forkserver")
    ),
    clips(
        "Paddle's launcher, two ranks",
        "python -m paddle.distributed.launch --nproc_per_node 2 train.py "
        "job.json",
        num=2,
        needs="launcher",
        said=(r"; rank 0 of 2\n",),
    ),
    clips(
        "names that are not ASCII",
        "python 训练.py 配置/job.json",
        files={"训练.py": SCRIPT, "配置/job.json": JOB},
    ),
    clips(
        "a `sitecustomize` of yours",
        files={"sitecustomize.py": "print('mine')\n"},
        said=("mine\n",),
    ),
    clips(
        "a `sitecustomize` of yours that raises",
        files={"sitecustomize.py": "raise ValueError('mine')\n"},
        said=("ValueError: mine",),
    ),
    clips(
        "a `sitecustomize` of yours that drops variables",
        files={
            "sitecustomize.py": "import os\n"
            "for name in [*os.environ]:\n"
            "    if name.startswith('PADDLE'):\n"
            "        del os.environ[name]\n"
        },
    ),
    clips(
        "`max_grad_norm`",
        files={"job.json": '{"max_steps": 6, "max_grad_norm": 0.25}'},
        clip="lambda_abs=0.25 t_start=2",
        origin=r"lambda_abs=0\.25 \(max_grad_norm\), t_start=2 \(--t-start\)",
    ),
    clips(
        "`max_grad_norm: 0`",
        files={"job.json": '{"max_steps": 6, "max_grad_norm": 0}'},
        origin=r"lambda_abs=1\.0 \(max_grad_norm is 0\.0\), t_start=2 "
        r"\(--t-start\)",
    ),
    clips(
        "`max_grad_norm: None`",
        script=SCRIPT.replace(
            "trainer =", "args.max_grad_norm = None\ntrainer ="
        ),
        origin=r"lambda_abs=1\.0 \(max_grad_norm is None\), t_start=2 "
        r"\(--t-start\)",
    ),
    clips(
        "`--lambda-abs` beside `max_grad_norm`",
        options="--lambda-abs .5 --t-start=2",
        clip="lambda_abs=0.5 t_start=2",
        origin=r"lambda_abs=0\.5 \(--lambda-abs\), t_start=2 \(--t-start\)",
    ),
    clips(
        "ERNIE's arguments",
        script=ERNIE,
        files={"job.json": '{"max_steps": 6, "adaptive_norm_clip": true}'},
        options="",
        clip="lambda_abs=1.0 t_start=101",
        origin=r"lambda_rel=1\.03 \(adaptive_norm_clip_ratio\), beta=0\.98 "
        r"\(ERNIE's adaptive_norm_clip\), lambda_abs=1\.0 \(ERNIE's "
        r"adaptive_norm_clip\), t_start=101 \(adaptive_norm_start_clip_steps, "
        r"step 100 included\)",
    ),
    clips("ERNIE's arguments, switched off", script=ERNIE),
    clips(
        "`--settings`, YAML",
        options="--settings clip.yaml",
        files={"clip.yaml": "clip:\n  t_start: 3\n  lambda_abs: 5e-1\n"},
        clip="lambda_abs=0.5 t_start=3",
        origin=r"lambda_abs=0\.5 \(clip\.yaml\), t_start=3 \(clip\.yaml\)",
    ),
    clips(
        "`--settings`, JSON, and an option",
        options="--settings clip.json --t-start 2",
        files={"clip.json": '{"clip": {"t_start": 3, "strict": true}}'},
        origin=r"lambda_abs=1\.0 \(max_grad_norm\), t_start=2 \(--t-start\), "
        r"strict=True \(clip\.json\)",
    ),
    clips(
        "a command's own key `clip`",
        files={"model.json": '{"clip": {"vision": {}}}'},
        script=SCRIPT + "open('model.json').read()\n",
    ),
    clips(
        "a Trainer with `__new__`",
        script=subclass(
            "    def __new__(cls, *args, **kwargs):\n"
            "        return object.__new__(cls)\n"
        ),
    ),
    clips(
        "a Trainer with keywords of its class",
        script=subclass(
            "    pass\n",
            "Kinds, kind='a'",
            head="class Kinds(Trainer):\n"
            "    def __init_subclass__(cls, *, kind):\n"
            "        cls.kind = kind\n",
        ),
    ),
    clips(
        "a Trainer with a metaclass",
        script=subclass(
            "    pass\n",
            "Trainer, metaclass=Meta",
            head="class Meta(type): pass\n",
        ),
    ),
    clips(
        "a Trainer whose type is pickled",
        script=subclass("    pass\n")
        + "assert pickle.loads(pickle.dumps(type(trainer))) is Mine\n",
    ),
    clips(
        "a Trainer that makes its own optimizer, as PromptTrainer",
        script=subclass(OWN_OPTIMIZER.format(name="create_optimizer")),
    ),
    clips(
        "a Trainer that makes optimizer and scheduler itself",
        script=subclass(
            OWN_OPTIMIZER.format(name="create_optimizer_and_scheduler")
        ),
    ),
    clips("a Trainer that sets `_grad_clip`, as DPO", script=subclass(DPO)),
    clips(
        "`optimizers=`",
        script=TRAIN.format(more=OPTIMIZER.format("None"), given=GIVEN),
    ),
    clips(
        "`optimizers=` with AdaGC",
        script=TRAIN.format(
            more=OPTIMIZER.format("ClipGradByAdaGC(t_start=4)"), given=GIVEN
        ),
        options="--t-start 2 --missing-state start",
        clip="lambda_abs=1.0 t_start=4",
        origin=r"t_start=4 \(the script\); the script's own, without "
        "missing_state, t_start",
    ),
    clips(
        "a Trainer that has the mixin",
        script=subclass(
            "    def __init__(self, **given):\n"
            "        clip = ClipGradByAdaGC(t_start=4)\n"
            "        super().__init__(clip=clip, **given)\n",
            "ClippingMixin, Trainer",
            head="from paddle_adagc import ClipGradByAdaGC\n"
            "from paddle_adagc.integrations.paddlenlp import ClippingMixin\n",
        ),
        options="",
        clip="lambda_abs=1.0 t_start=4",
        origin=r"t_start=4 \(the script\)",
    ),
    clips(
        "`train()` twice",
        script=SCRIPT + "trainer.train()\n",
        num=2,
        files={"job.json": '{"max_steps": 3}'},
    ),
    clips(
        "two Trainers of one `args`",
        script=SCRIPT + "Trainer(args=args).train()\n",
        num=2,
        files={"job.json": '{"max_steps": 3, "max_grad_norm": 0.25}'},
        clip="lambda_abs=0.25 t_start=2",
        origin=r"lambda_abs=0\.25 \(max_grad_norm\), t_start=2 \(--t-start\)",
    ),
    clips("`--require`", options="--require --t-start 2"),
    clips("`--no-record`", options="--no-record --t-start 2"),
    clips("a command that fails", script=SCRIPT + "sys.exit(7)\n", status=7),
]
