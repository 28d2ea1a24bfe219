# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""adagc-run: a clip in commands that know nothing of it.

Most commands use a small package of PaddleNLP's name and shape, in
``stand_in``; the last tests use PaddleNLP's own Trainer.
"""

import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from core.integrations import run_forms
from helpers import run_python
from paddle_adagc.integrations.run import isolation
from paddle_adagc.integrations.run.process import VARIABLE
from paddle_adagc.integrations.run.settings import named_files, read_settings
from pages import ROOT

from paddle_adagc import load_state, save_state
from paddle_adagc.integrations import run

STAND_IN = str(Path(__file__).with_name("stand_in"))
PROGRAMS = str(Path(sys.executable).parent)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder, with the stand-in on the path of commands."""
    path = [str(tmp_path), STAND_IN, *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("PATH", os.pathsep.join([PROGRAMS, os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    monkeypatch.chdir(tmp_path)
    return tmp_path


FORMS = [
    pytest.param(form, id=form.name, marks=[pytest.mark.slow] * form.starts)
    for form in run_forms.FORMS
]


@pytest.mark.parametrize("form", FORMS)
def test_a_form(folder, form, capfd):
    run_forms.write_files(form, folder, [STAND_IN, *sys.path])
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    words = [*shlex.split(form.options), *shlex.split(form.command)]
    status = run.main(words)
    printed = "".join(capfd.readouterr())
    for path in folder.glob("log/workerlog.[1-9]"):
        printed += path.read_text()
    assert status == form.status, printed
    for pattern in form.said:
        assert re.search(pattern, printed), printed
    trained = re.findall(r"trained with (.*)", printed)
    assert sorted(trained) == sorted(form.trained), printed
    assert before == {path: path.read_bytes() for path in before}


def test_the_table_is_made_of_these_forms():
    assert run_forms.table() in (ROOT / "docs/use.md").read_text("utf-8")
    assert len(run_forms.FORMS) >= 24


SUBCLASSES = {
    "own clip": """
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.clip = 0.2
    def training_step(self, *given):
        assert self.clip == 0.2
        return super().training_step(*given)
""",
    "create_optimizer returns None": """
    def create_optimizer(self, lr_scheduler=None):
        self.optimizer = paddle.optimizer.AdamW(
            lr_scheduler,
            parameters=self.model.parameters(),
            grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
        )
""",
    "create_optimizer_and_scheduler": """
    def create_optimizer_and_scheduler(self, num_training_steps):
        self.create_scheduler(num_training_steps)
        self.optimizer = paddle.optimizer.AdamW(
            self.lr_scheduler,
            parameters=self.model.parameters(),
            grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
        )
""",
}


SAVES = run_forms.subclass("""
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        import signal
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
            signal.signal(getattr(signal, name), self.save)
    def save(self, number, frame):
        self._save_checkpoint(self.model)
        print("saved at", number, flush=True)
        raise SystemExit(3)
""")
LONG = '{"seconds_per_step": 0.1, "max_steps": 1000, "save_steps": 1000}'
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGKILL")
WAYS = {
    "python": "python train.py job.json",
    "bash": "bash job.sh",
    "launcher": "python -m paddle.distributed.launch train.py job.json",
}


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except FileNotFoundError:
        return False
    return state.split()[0] != "Z"


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "too late"
        time.sleep(0.05)


def default_signals():
    """A shell's background job, which may run these tests, ignores some."""
    for name in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGKILL"]
)
def test_a_signal_to_adagc_run_alone_ends_all(folder, name, way):
    temporary = folder / "temporary"
    temporary.mkdir()
    files = {
        "train.py": SAVES + "\n",
        "job.sh": "python train.py job.json; echo $?\n",
        "job.json": LONG,
    }
    for file, text in files.items():
        (folder / file).write_text(text)
    words = [sys.executable, "-m", "paddle_adagc.integrations.run"]
    with (folder / "printed").open("w") as output:
        process = subprocess.Popen(
            [*words, "--t-start=2", *WAYS[way].split()],
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": str(temporary)},
            preexec_fn=default_signals,
        )
    printed = lambda: (folder / "printed").read_text()  # noqa: E731
    wait_until(lambda: "is in force" in printed(), 100)
    pids = isolation.descendants(process.pid)
    assert len(pids) >= 2
    before = {*temporary.rglob("*")}
    process.send_signal(getattr(signal, name))
    process.wait(300)
    wait_until(lambda: not any(map(is_alive, pids)), 100)
    assert [*folder.glob("out/checkpoint-*/trainer_state.json")]
    assert [*folder.glob("out/checkpoint-*/adagc_state.safetensors")]
    assert {*temporary.rglob("*")} <= before
    assert not [*temporary.glob("*adagc*")]
    if name != "SIGKILL":
        assert "ClipGradByAdaGC made" in printed()


ORPHAN = """\
import multiprocessing, os, signal, time
import paddle

weight = paddle.create_parameter([2], "float32")
optimizer = paddle.optimizer.SGD(parameters=[weight])
context = multiprocessing.get_context("fork")
for step in range(5):
    weight.sum().backward()
    optimizer.step()
    optimizer.clear_grad()
    if step == 1:
        context.Process(target=time.sleep, args=[300]).start()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_asked", [False, True])
def test_a_killed_training_s_workers_do_not_hold_the_command(folder, is_asked):
    """As Paddle's, which load data: they outlive it, blocked."""
    (folder / "train.py").write_text(ORPHAN)
    program = (
        "import sys\n"
        "from paddle_adagc.integrations.run import main, supervise\n"
        f"supervise._START = {60 if is_asked else 4}\n"
        "sys.exit(main(['--watch', 'python', 'train.py']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if "the command has ended, not 1 of its processes" in line:
            break
    if is_asked:
        process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGKILL
    process.stderr.close()


def test_ended_orphans_are_buried(folder, capfd):
    """A container's first process has to: nobody else waits for them."""
    orphans = "for i in $(seq 20); do (sleep 0.05 &); done; sleep 1"
    count = 'ps -eo stat,ppid | grep -c "^Z.* $PPID$"; true'
    run.main(["--watch", "bash", "-c", f"{orphans}; {count}"])
    assert capfd.readouterr().out.strip() == "0"


def test_a_fork_that_changed_its_title_is_no_outsider(monkeypatch):
    """The title lies where words and environment were."""
    context = multiprocessing.get_context("fork")
    is_over = context.Event()
    child = context.Process(target=is_over.wait)
    child.start()
    monkeypatch.setattr(isolation, "_started_with", lambda pid: ([], {}))
    monkeypatch.setattr(isolation, "descendants", lambda pid: {child.pid})
    try:
        assert isolation.outsiders(os.getpid(), [os.getpid()]) == {}
        assert [*isolation.outsiders(os.getpid(), [])] == [child.pid]
    finally:
        is_over.set()
        child.join()


def test_the_text_of_an_option_is_no_command(folder, capsys):
    words = ["python", "ask.py", "--prompt", "how do I run python -I safely"]
    assert run.main(["--check", *words]) == 0
    assert run.main(["--check", "ssh", "node", "python -I train.py"]) == 2
    assert "-I keeps adagc-run out" in capsys.readouterr().err


def test_no_adagc_run_within_another(folder, monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "{}")
    assert run.main(["ls"]) == 2
    assert "within another adagc-run" in capsys.readouterr().err


TWO = """
import sys
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments

def parse(path):
    return PdArgumentParser(TrainingArguments).parse_json_file(path)[0]

def train(args):
    trainer = Trainer(args=args)
    trainer.train()
    print("t_start", trainer.optimizer._grad_clip.t_start)

if sys.argv[1] == "both first":
    for args in (parse("a.json"), parse("b.json")):
        train(args)
else:
    train(parse("a.json"))
    train(parse("b.json"))
"""


@pytest.mark.parametrize("order", ["both first", "one by one"])
def test_each_trainer_has_the_settings_of_its_file(folder, order, capfd):
    (folder / "two.py").write_text(TWO)
    for name, t_start in (("a", 2), ("b", 4)):
        values = {"output_dir": name, "clip": {"t_start": t_start}}
        (folder / f"{name}.json").write_text(json.dumps(values))
    words = ["python", "two.py", order, "a.json", "b.json"]
    assert run.main(words) == 0
    assert re.findall("t_start (.)", capfd.readouterr().out) == ["2", "4"]


CALLBACK = """
from paddlenlp.trainer import Trainer, TrainingArguments
from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.integrations.paddlenlp import ClippingCallback

callback = ClippingCallback(ClipGradByAdaGC(t_start=2), skip_above=6.0)
trainer = Trainer(args=TrainingArguments(), callbacks=[callback])
callback.on_init_end(trainer.args, trainer.state, trainer.control)
trainer.train()
assert trainer.optimizer._grad_clip is callback.clip
assert callback.recording.record._skip_rule is not None
"""


@pytest.mark.parametrize("options", [(), ("--watch",)])
def test_a_trainer_with_the_callback_keeps_it(folder, options):
    (folder / "train.py").write_text(CALLBACK)
    assert run.main([*options, "python", "train.py"]) == 0


def test_a_trainer_in_a_zip(folder, monkeypatch):
    """Its loader is that of all modules of a folder."""
    shutil.make_archive("nlp", "zip", STAND_IN)
    path = os.environ["PYTHONPATH"].split(os.pathsep)
    path = [str(folder / "nlp.zip") if p == STAND_IN else p for p in path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    (folder / "train.py").write_text(
        "from paddlenlp.trainer import Trainer, TrainingArguments\n"
        "Trainer(args=TrainingArguments()).train()\n"
    )
    assert run.main(["python", "train.py"]) == 0


def test_a_group_that_is_frozen_is_no_step_without_the_clip(folder, capfd):
    (folder / "train.py").write_text(
        "import paddle\n"
        "from paddle_adagc import ClipGradByAdaGC\n"
        "head, body = (paddle.nn.Linear(4, 4) for _ in range(2))\n"
        "for weight in body.parameters():\n"
        "    weight.stop_gradient = True\n"
        "groups = [{'params': m.parameters()} for m in (head, body)]\n"
        "optimizer = paddle.optimizer.AdamW(\n"
        "    parameters=groups, grad_clip=ClipGradByAdaGC()\n"
        ")\n"
        "for _ in range(3):\n"
        "    head(body(paddle.ones([2, 4]))).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.clear_grad()\n"
    )
    assert run.main(["python", "train.py"]) == 0
    assert "made 3 steps in 1 process" in capfd.readouterr().err


def test_signals_are_this_process_own_again():
    before = signal.getsignal(signal.SIGTERM)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert run.main([sys.executable, "-c", "raise SystemExit(7)"]) == 7
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--t-strat", "5", "ls"], "did you mean 't_start'"),
        (["--clip", "adacg", "ls"], "did you mean 'adagc'"),
        (["--t-start", "x", "ls"], "t_start must be an integer"),
        (["--t-start", "5", "-x", "6", "ls"], "'-x' is no option"),
        (["--t-start", "5"], "give the command to run"),
        (["--check", "--t-start"], "--t-start lacks its value"),
        (["--t-start", "--check", "ls"], "--t-start lacks its value"),
        (["--check=no", "ls"], "--check takes no value, got 'no'"),
        (["--missing-state", "x", "ls"], "one of raise, start; got 'x'"),
        (["--settings", "none.yaml", "ls"], "No such file"),
        (["--skip-above", "-1", "ls"], "skip_above must be positive"),
        (["--stop-on", "inf", "ls"], "stop_on must be one of nan"),
        (["--no-record", "--skip-above=8", "ls"], "need the record"),
        (["--new-tensors", "strat", "ls"], "one of raise, start; got 'strat'"),
        (
            ["--clip=global_norm", "--lambda-abs=-1", "ls"],
            "lambda_abs must be positive, got -1",
        ),
        (["."], "Permission denied: '.'"),
    ],
)
def test_mistakes(folder, words, message, capsys):
    assert run.main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("value", [".5", "5e-1", "+.50"])
def test_a_number_may_be_written_in_any_way(value, capsys):
    assert run.main(["--check", "--lambda-abs", value, "python", "x.py"]) == 0
    assert "lambda_abs=0.5" in capsys.readouterr().out


def test_check_says_what_it_would_do(folder, capsys):
    (folder / "my.yaml").write_text(
        "# mine\nstage: PT\nclip:\n  t_start: 7\n  units: {}\nseed: 1  # s\n"
    )
    words = ["--check", "--strict", "True", "paddleformers-cli", "train"]
    assert run.main([*words, "my.yaml"]) == 0
    printed = capsys.readouterr().out
    assert "t_start=7" in printed
    assert "strict=True" in printed
    assert "would run paddleformers-cli train my.yaml" in printed
    assert "paddlefleet is not installed here" in printed
    assert "the Trainer's log says how many tensors are clipped" in printed
    assert "is refused; to start there with the warm-up, add --missi" in printed
    run.main(["--missing-state", "start", *words, "my.yaml"])
    printed = capsys.readouterr().out
    assert "starts with the warm-up (--missing-state start)" in printed


OLD = {
    "adaptive_norm_clip": True,
    "adaptive_norm_clip_ratio": 1.03,
    "adaptive_norm_start_clip_steps": 50,
    "adaptive_norm_verbose": True,
}
ADAGC = {"name": "adagc"}
CLIP_7 = {"clip": {**ADAGC, "t_start": 7}}
BROKEN = "has a section 'clip' and cannot be read"


@pytest.mark.parametrize(
    ("name", "text", "found", "note"),
    [
        (
            "a.json",
            json.dumps(
                {
                    "x": "ü",
                    "clip": {
                        "t_start": 7,
                        "missing_state": "start",
                        "units": {"x": 1},
                    },
                }
            ),
            {**CLIP_7, "missing_state": "start", "units": {"x": 1}},
            "found the section clip in a.json",
        ),
        (
            "a.json",
            json.dumps(OLD),
            {"clip": {**ADAGC, "lambda_rel": 1.03, "t_start": 50}},
            "verbose in a.json: they become {'lambda_rel': 1.03, 't_start': 50",
        ),
        ("a.json", '{"adaptive_norm_clip": false}', None, "not used"),
        ("a.json", '\ufeff{"clip": {"t_start": 7}}', CLIP_7, "found"),
        ("a.json", '{"clip": {"vision": 1}}', None, "left to the command"),
        ("a.json", '{"clip": 1}\n{"clip": 2}\n', None, ""),
        ("a.json", '{"clip": {"t": 1}}\n{"clip": {"t": 2}}\n', None, ""),
        ("a.json", '{"text": "the clip: not shut}', None, ""),
        ("a.json", '{"clip": {"t_start": 7}', BROKEN, ""),
        ("a.json", '{"clip": {"a":' + '{"a":' * 5000, BROKEN, ""),
        ("a.json", "[" * 50000, None, ""),
        ("a.yaml", "clip:\n  t_start: 7\n", CLIP_7, "found"),
        ("a.yaml", "t:\n  u:\n    clip: {t_start: 7}\n", CLIP_7, "found"),
        ("a.yaml", "x: !mine 3\nclip: {t_start: 7}\n", CLIP_7, "found"),
        ("a.yaml", "a: 1\n---\nclip: {t_start: 7}\n", CLIP_7, "found"),
        ("a.yaml", "clip: {}\n", {"clip": ADAGC}, "found"),
        ("a.yaml", "clip: 0.2\n", None, "clip: 0.2, no section"),
        (
            "a.yaml",
            "clip:\n  lambda_abs: 5e-1\n",
            {"clip": {**ADAGC, "lambda_abs": 0.5}},
            "found",
        ),
        ("a.yaml", "clip: {t_start: 1}\nx:\n  clip: {t_start: 2}", "two", ""),
        ("a.yaml", "clip:\n  t_start: [7\n", BROKEN, ""),
        ("a.yaml", "text: 'a clip: torn\n", None, ""),
        ("a.yaml", "m: {clip: {name: ViT-B/32}}", None, "left to the command"),
        ("a.json", '{"clip": {"start": 0, "length": 16}}', None, "left to"),
        ("a.yaml", "clip: {t_start: 7}\nunits: SI\n", CLIP_7, "found"),
    ],
)
def test_settings_are_found(folder, name, text, found, note):
    (folder / name).write_text(text)
    notes = []
    if isinstance(found, str):
        with pytest.raises(ValueError, match=rf"^{name}.*{found}"):
            read_settings(name, notes)
        return
    assert read_settings(name, notes) == found
    assert note in "".join(notes)
    assert bool(note) == bool(notes)


def test_another_clip_keeps_what_it_takes_of_a_file(folder, capsys):
    Path("c.yaml").write_text("clip: {lambda_abs: 0.3, t_start: 2}")
    words = ["--check", "--settings", "c.yaml", "--clip"]
    assert run.main([*words, "global_norm", "python", "train.py"]) == 0
    printed = capsys.readouterr().out
    assert "global_norm=0.3" in printed
    assert "it does not take t_start" in printed
    assert run.main(["--check", "--clip", "none", "python", "train.py"]) == 0
    assert "will clip with no gradient clipping" in capsys.readouterr().out
    assert run.main([*words, "zclop", "python", "train.py"]) == 2
    assert "did you mean 'zclip'" in capsys.readouterr().err


def test_a_folder_s_name_is_no_number(folder):
    (folder / "loop.py").write_text(run_forms.LOOP)
    words = ["--watch", "--record", "2024.10", "python", "loop.py"]
    assert run.main(words) == 0
    assert (folder / "2024.10/record.json").is_file()


def test_bytes_that_are_no_text_are_no_settings(folder):
    (folder / "a.json").write_bytes(b"\xff\xfe\x00clip:")
    assert read_settings("a.json", []) is None
    Path("d.json").mkdir()
    assert [*named_files(["d.json", "--x=a.json", "@none.json"])] == ["a.json"]


PADDLENLP = """
import sys
import numpy as np, paddle
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments
from paddlenlp.trainer.trainer_utils import get_last_checkpoint

x = np.random.default_rng(0).normal(size=[400, 4]).astype("float32")
rows = [{"x": row, "labels": row[:1]} for row in x]

class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        return ((self.linear(x) - labels) ** 2).mean()

class MyTrainer(Trainer):
    def create_optimizer(self, lr_scheduler=None):
        return super().create_optimizer(lr_scheduler)

[args] = PdArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])
paddle.seed(0)
trainer = MyTrainer(model=Net(), args=args, train_dataset=rows)
assert type(trainer).__name__ == "MyTrainer"
resumes = len(sys.argv) > 2
found = get_last_checkpoint(args.output_dir) if resumes else None
trainer.train(resume_from_checkpoint=found)
print("clip:", trainer.optimizer._grad_clip)
"""


THREE = (
    PADDLENLP[: PADDLENLP.index("class MyTrainer")]
    + "".join(
        f"class Mine{i}(Trainer):\n{body}\n"
        for i, body in enumerate(SUBCLASSES.values())
    )
    + """
for kind in (Mine0, Mine1, Mine2):
    [args] = PdArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])
    paddle.seed(0)
    trainer = kind(model=Net(), args=args, train_dataset=rows)
    trainer.train()
    print("weights", *trainer.model.linear.weight.flatten().tolist())
    print("trained with", type(trainer.optimizer._grad_clip).__name__)
"""
)


def write_job(folder, **values):
    """A user's script and its config."""
    (folder / "train.py").write_text(PADDLENLP)
    values = {
        "output_dir": str(folder / "out"),
        "max_steps": 6,
        "save_steps": 3,
        "logging_steps": 3,
        "learning_rate": 0.01,
        "device": "cpu",
        "report_to": "visualdl",
        **values,
    }
    (folder / "job.json").write_text(json.dumps(values))


def adagc_run(capfd, *words, status=0):
    """Run the command; return all that it prints."""
    ended = run.main([*words, sys.executable, "train.py", "job.json"])
    printed = "".join(capfd.readouterr())
    assert ended == status, printed
    return printed


@pytest.fixture
def paddlenlp(folder, monkeypatch):
    """The same with PaddleNLP itself."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    return folder


@pytest.mark.slow
def test_a_script_of_paddlenlp_s_trainer(paddlenlp, capfd):
    write_job(paddlenlp, clip={"t_start": 2, "lambda_abs": 0.5})
    printed = adagc_run(capfd, "--beta", "0.9", "--")
    clip = "clip: ClipGradByAdaGC(lambda_rel=1.04, beta=0.9, lambda_abs=0.5"
    assert clip in printed
    assert "clip_global_grad_norm" in printed
    assert "is in force: 2 tensors, arguments from job.json, warm" in printed
    state = load_state(paddlenlp / "out/checkpoint-3")
    assert state["step"] == 3
    assert {*state["gamma"]} == {"linear.weight", "linear.bias"}


@pytest.mark.slow
def test_subclasses_of_paddlenlp_s_trainer(paddlenlp, capfd):
    """In the warm-up AdaGC is the clip by the global norm."""
    write_job(paddlenlp)
    (paddlenlp / "train.py").write_text(THREE)
    without = run_python(paddlenlp, "train.py", "job.json")
    with_clip = adagc_run(capfd)
    weights = [
        [
            float(value)
            for line in re.findall("weights (.*)", printed)
            for value in line.split()
        ]
        for printed in (without.stdout, with_clip)
    ]
    assert with_clip.count(f"trained with {run_forms.CLIPS}") == 3
    assert with_clip.count("is in force") == 3
    assert len(weights[0]) == 12
    assert weights[0] == pytest.approx(weights[1], rel=1e-4)


@pytest.mark.slow
def test_a_running_job_resumes_and_switches(paddlenlp, capfd):
    job = (sys.executable, "train.py", "job.json", "resume")
    write_job(paddlenlp)
    run_python(paddlenlp, *job[1:3]).check_returncode()
    write_job(paddlenlp, max_steps=9)
    zclip = ("--clip", "zclip")
    for words, status, message in (
        (zclip, 1, "give --missing-state start"),
        ((*zclip, "--missing-state", "start"), 0, "clip: ClipGradByZClip"),
        (("--clip=global_norm", "--lambda-abs=0.3"), 0, "GlobalNorm"),
    ):
        assert run.main([*words, *job]) == status
        assert message in "".join(capfd.readouterr())
    write_job(paddlenlp, max_steps=12)
    assert run.main(["--clip=zclip", *job]) == 0
    assert "state resumed after 3 steps" in capfd.readouterr().err


@pytest.mark.slow
def test_a_running_job_takes_a_state_of_other_tensors(paddlenlp, capfd):
    job = (sys.executable, "train.py", "job.json", "resume")
    write_job(paddlenlp, clip={"t_start": 2})
    adagc_run(capfd)
    checkpoint = paddlenlp / "out/checkpoint-6"
    state = load_state(checkpoint)
    state["gamma"]["head.weight"] = state["gamma"].pop("linear.bias")
    save_state(state, checkpoint)
    write_job(paddlenlp, max_steps=9, clip={"t_start": 2})
    for words, status, message in (
        ((), 1, "if the model has changed .* give --new-tensors start"),
        (("--new-tensors", "start"), 0, "linear.bias is new: its clip starts"),
    ):
        assert run.main([*words, *job]) == status
        assert re.search(message, "".join(capfd.readouterr()))
    assert {*load_state(paddlenlp / "out/checkpoint-9")["gamma"]} == {
        "linear.weight",
        "linear.bias",
    }


@pytest.mark.slow
def test_a_trainer_of_paddlefleet_s_shape(folder, capfd):
    package = folder / "paddlefleet/trainer"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    imported = "from {} import Trainer\n"
    (package / "__init__.py").write_text(imported.format(".trainer"))
    (package / "trainer.py").write_text(
        imported.format("core.integrations.test_trainer")
    )
    script = imported.format("paddlefleet.trainer")
    (folder / "train.py").write_text(f"{script}Trainer(max_steps=3).train()")
    printed = adagc_run(capfd, "--t-start=1")
    assert printed.count("'clip_global_grad_norm':") == 3
    state = load_state(folder / "out/checkpoint-3")
    assert (state["step"], {*state["gamma"]}) == (3, {"weight", "bias"})
