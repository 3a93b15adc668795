"""Trials that Lightning, the Trainer and Accelerate train: exact after every pause, and refused if they cannot be.

The scripts are those of `examples/frameworks`, unchanged and with changes. If a change removes part of a callback,
the check must find it.
"""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
EXACT = r"\Z"
"""What the check says about a script that it passes: nothing."""
Change = tuple[str, str]
Cases = dict[str, tuple[str, tuple[Change, ...]]]


def wrong(cases: Cases, script: str, *modules: str, tmp_path: Path) -> dict[str, str]:
    """The cases whose outcome does not start with, or contain, what is expected, and that outcome."""
    missing = [name for name in modules if find_spec(name.partition(".")[0]) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: pip install 'headrace[lightning,transformers]'")
    base = (EXAMPLES / script).read_text(encoding="utf-8")
    sources = {}
    for name, (_, changes) in cases.items():
        sources[name] = base
        for old, new in changes:
            assert old in sources[name], f"{name}: {script} has no {old!r}"
            sources[name] = sources[name].replace(old, new)
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(sources))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", Path(__file__).with_name("framework_checks.py"), file, *modules],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    return {
        name: said[name]
        for name, (expected, _) in cases.items()
        if not (re.match(expected, said[name]) if expected == EXACT else re.search(expected, said[name]))
    }


@pytest.mark.smoke
def test_the_scripts_are_short() -> None:
    lines = {file.name: len(file.read_text().splitlines()) for file in EXAMPLES.glob("*.py")}
    assert len(lines) == 3
    assert {name: count for name, count in lines.items() if count > 40} == {}


SCHEDULE = "return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)]"
PLATEAU = (
    SCHEDULE,
    """plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=9.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}""",
)
WHOLE = ("def train(", "# whole budget\ndef train(")
"""A script with this comment is checked to its end, not for three steps (`framework_checks.py`)."""
STOPS = (WHOLE, ("[callback]", '[pl.callbacks.EarlyStopping("val_loss", 0.3, patience=2), callback]'))
"""One of nine epochs is the second in a row that does not improve the loss by this much."""
TRAINS_ON = "a trial that is resumed from that report trains on"
KEPT = """class Kept(TrialCallback):
    def on_train_start(self, trainer, module):
        super().on_train_start(trainer, module)
        trainer.fit_loop._resuming_from_checkpoint = trainer.ckpt_path is not None


def train("""
COUNTING = """class Stop(pl.Callback):
    def __init__(self) -> None:
        self.best, self.bad = 9.0, 0

    def on_train_epoch_end(self, trainer, module):
        loss = trainer.callback_metrics["val_loss"].item()
        self.best, self.bad = (loss, 0) if loss < self.best - 0.3 else (self.best, self.bad + 1)
        trainer.should_stop |= self.bad >= 2


def train("""
SAVED = """    def state_dict(self):
        return {"best": self.best, "bad": self.bad}

    def load_state_dict(self, state):
        self.best, self.bad = state["best"], state["bad"]


def train("""
LOADERS = """class Loaders(pl.LightningDataModule):
    batch_size = 8

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(64, 64), torch.zeros(64).long()), self.batch_size)


def train("""
OWN_STOP = (WHOLE, ("[callback]", "[Stop(), callback]"), ("def train(", COUNTING))
STARTS_LATE = "pl.callbacks.StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=2)"
"""Lightning keeps the restored state aside until the next epoch starts."""
FINETUNED = (
    WHOLE,
    (
        "self.net = nn.Sequential(nn.Linear(64, 64)",
        "self.backbone = nn.Linear(64, 64)\n        self.net = nn.Sequential(self.backbone",
    ),
    ("AdamW(self.parameters()", "AdamW(self.net[3:].parameters()"),
    ("[callback]", "[pl.callbacks.BackboneFinetuning(3), callback]"),
)
LIGHTNING: Cases = {
    "as it stands": (EXACT, ()),
    "averaged weights, restored when the next epoch starts": (
        EXACT,
        (WHOLE, ("[callback]", f"[{STARTS_LATE}, callback]")),
    ),
    "averaged weights that are saved in place of the others": (
        EXACT,
        (WHOLE, ("[callback]", "[pl.callbacks.EMAWeightAveraging(), callback]")),
    ),
    "a number of batches to accumulate, by epoch": (
        EXACT,
        (WHOLE, ("[callback]", "[pl.callbacks.GradientAccumulationScheduler({0: 1, 2: 3}), callback]")),
    ),
    "layers that are unfrozen": (EXACT, FINETUNED),
    "layers that are unfrozen, and frozen again by a restore": (
        "(?s)state of the script at step 4, saved then restored: frozen: .*val_loss at step 5",
        (
            *FINETUNED,
            ("    callback = ", "    TrialCallback.load_state_dict = lambda *_: None\n    callback = "),
        ),
    ),
    "a loader that is kept for some epochs": (
        r"reload_dataloaders_every_n_epochs=2\) keeps a loader",
        (("max_epochs", "reload_dataloaders_every_n_epochs=2, max_epochs"),),
    ),
    "a loader that is made anew in every epoch": (
        EXACT,
        (WHOLE, ("max_epochs", "reload_dataloaders_every_n_epochs=1, max_epochs")),
    ),
    "no checkpoints of Lightning's own": (
        EXACT,
        (("max_epochs", "enable_checkpointing=False, max_epochs"), STOPS[1]),
    ),
    "a part of an epoch": (
        r"Trainer\(fast_dev_run=\.\.\.\)",
        (("max_epochs", "fast_dev_run=True, max_epochs"),),
    ),
    "no logs": (r"Trainer\(barebones=True\)", (("max_epochs", "barebones=True, max_epochs"),)),
    "a callback of one's own that counts": (
        r"variable `Stop\.bad` is .*\n     remedy: return `bad` from Stop\.state_dict\(\) and set it in load_state_",
        OWN_STOP,
    ),
    "a callback of one's own that saves what it counts": (EXACT, (*OWN_STOP, ("\ndef train(", SAVED))),
    "a plateau schedule, and another callback with a state": (
        EXACT,
        (
            PLATEAU,
            ("[callback]", '[pl.callbacks.EarlyStopping("val_loss", patience=9), callback]'),
        ),
    ),
    "early stopping": (EXACT, STOPS),
    "early stopping in the module's own hook": (
        EXACT,
        (
            WHOLE,
            (
                "    def configure_optimizers",
                """    def on_train_epoch_end(self) -> None:
        self.trainer.should_stop = self.current_epoch == 3

    def configure_optimizers""",
            ),
        ),
    ),
    "that early stopping has ended the fit is lost": (
        r"(?s)ends: True, then False.*the straight run ends by itself after step 7, the resumed ends by itself after",
        (*STOPS, ("    callback = ", "    TrialCallback.load_state_dict = lambda *_: None\n    callback = ")),
    ),
    "the pending step of the plateau is lost": (
        "val_loss at step 2",
        (
            PLATEAU,
            ("    callback = ", "    TrialCallback.load_state_dict = lambda *_: None\n    callback = "),
        ),
    ),
    "the iterator is not made anew": (
        "val_loss",
        (
            ("def train(", KEPT),
            ("callback = TrialCallback(t)", "callback = Kept(t)"),
        ),
    ),
    "no checkpoint is given": (
        r"resumes after step 1.*ckpt_path=callback\.ckpt_path",
        ((", ckpt_path=callback.ckpt_path", ""),),
    ),
    "another budget": (r"max_epochs=5\) means 5 training steps.* budget is 9", (("=t.max_steps", "=5"),)),
    "optimizer steps": (
        r"Trainer\(max_steps=50\) ends within an epoch",
        (("max_epochs", "max_steps=50, max_epochs"),),
    ),
    "a least number of epochs": ("min_epochs", (("max_epochs", "min_epochs=4, max_epochs"),)),
    "epochs without validation": (
        r"check_val_every_n_epoch=2\) has epochs",
        (("max_epochs", "check_val_every_n_epoch=2, max_epochs"),),
    ),
    "nothing is logged": ("nothing was logged", (('self.log("val_loss", ', "print("),)),
    "weights that are pruned, without masks in checkpoints": (
        "ModelPruning leaves its masks out of checkpoints",
        (("[callback]", '[pl.callbacks.ModelPruning("l1_unstructured", amount=0.1), callback]'),),
    ),
    "a search for the rate at each start": (
        "LearningRateFinder searches again whenever the trial resumes",
        (
            ("def train(", "class Finder(pl.callbacks.LearningRateFinder):\n    pass\n\n\ndef train("),
            ("[callback]", "[Finder(num_training_steps=10), callback]"),
        ),
    ),
    "a search for the batch size at each start": (
        "BatchSizeFinder searches again whenever the trial resumes",
        (
            ("[callback]", "[pl.callbacks.BatchSizeFinder(), callback]"),
            ("Digits(t), *loaders", "Digits(t), datamodule=Loaders()"),
            ("def train(", LOADERS),
        ),
    ),
    "a limit to the time of a fit": (
        EXACT,
        (WHOLE, ("[callback]", '[pl.callbacks.Timer(duration="00:01:00:00"), callback]')),
    ),
    "a callback behind": (
        "ModelCheckpoint comes after TrialCallback",
        (("[callback]", "[callback, pl.callbacks.ModelCheckpoint()]"),),
    ),
    "several ranks": (
        "the Trainer trains on 2 ranks",
        (("    trainer.fit", "    pl.Trainer.world_size = 2\n    trainer.fit"),),
    ),
    "no trial": (
        r"TrialCallback\(\.\.\.\) got a dict; give it the trial",
        (("Callback(t)", "Callback({})"),),
    ),
    "two fits": (
        "already followed one training run",
        (("    trainer.fit(", "    for _ in range(2):\n        trainer.fit("),),
    ),
}


def test_lightning_resumes_exactly_or_is_refused(tmp_path: Path) -> None:
    assert (
        wrong(LIGHTNING, "with_lightning.py", "sklearn.datasets", "pytorch_lightning", tmp_path=tmp_path)
        == {}
    )


BY_STEPS = (
    'num_train_epochs=t.max_steps,\n        eval_strategy="epoch",',
    'max_steps=7 * t.max_steps,\n        eval_strategy="steps",\n        eval_steps=7,',
)
"""An epoch has 19 optimizer steps, so two of the first three evaluations are within the first epoch."""
BEST = 'metric_for_best_model="loss", greater_is_better=False,'
EARLY = (
    ("import Trainer,", "import EarlyStoppingCallback, Trainer,"),
    ('eval_strategy="epoch",', f'eval_strategy="epoch", {BEST}'),
)
STOPS_TRAINER = (WHOLE, *EARLY, ("[callback]", "[EarlyStoppingCallback(2, 0.3), callback]"))
PLATEAU_STOPS = """class Plateau(TrainerCallback):
    def __init__(self) -> None:
        self.best, self.bad = 9.0, 0

    def on_evaluate(self, args, state, control, metrics, **_):
        loss = metrics["eval_loss"]
        self.best, self.bad = (loss, 0) if loss < self.best - 0.3 else (self.best, self.bad + 1)
        control.should_training_stop |= self.bad >= 2


def train("""
OWN_PLATEAU = (
    WHOLE,
    ("import Trainer,", "import TrainerCallback, Trainer,"),
    ("[callback]", "[Plateau(), callback]"),
    ("def train(", PLATEAU_STOPS),
)
EXPORTED = (
    ("Plateau(TrainerCallback)", "Plateau(TrainerCallback, ExportableState)"),
    (
        "from headrace import",
        "from transformers.trainer_callback import ExportableState\nfrom headrace import",
    ),
    (
        "\ndef train(",
        """    def state(self):
        return {"args": {}, "attributes": {"best": self.best, "bad": self.bad}}


def train(""",
    ),
)
OWN_TRAINER = (
    (
        "def train(",
        """class Averaging(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.average = 1.0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = outputs["loss"] / self.average
        if model.training:
            self.average = 0.9 * self.average + 0.1 * outputs["loss"].item()
        return (loss, outputs) if return_outputs else loss


def train(""",
    ),
    ("trainer = Trainer(", "trainer = Averaging("),
)
AVERAGE_ALONE = (
    r"\AFAILED .* loses one piece of state\n\n.*variable `trainer\.average` is .*\n"
    r"     remedy: keep it in t\.state: `trainer\.average = t\.state\.get\(\"average\", 1\.0\)`(?!(?s:.)*trainer\._)"
)
"""And no attribute of the Trainer itself, such as `_tr_loss`."""
TRAINER: Cases = {
    "as it stands": (EXACT, ()),
    "early stopping": (EXACT, STOPS_TRAINER),
    "early stopping behind the callback": (
        EXACT,
        (WHOLE, *EARLY, ("[callback]", "[callback, EarlyStoppingCallback(2, 0.3)]")),
    ),
    "early stopping within an epoch": (
        EXACT,
        (WHOLE, EARLY[0], (BY_STEPS[0], f"{BEST}\n        {BY_STEPS[1]}"), STOPS_TRAINER[-1]),
    ),
    "that early stopping has ended the training is lost": (
        TRAINS_ON,
        (
            *STOPS_TRAINER,
            (
                "    callback = ",
                "    TrialCallback.load_files = lambda me, at: setattr(me, 'checkpoint', str(at))\n    callback = ",
            ),
        ),
    ),
    "a callback of one's own that counts": (
        r"\AFAILED .* loses 2 pieces of state(?s:.)*variable `Plateau\.bad` is .*\n     remedy: make Plateau an Export",
        OWN_PLATEAU,
    ),
    "a Trainer of one's own with an average": (AVERAGE_ALONE, OWN_TRAINER),
    "a callback of one's own that saves what it counts": (EXACT, (*OWN_PLATEAU, *EXPORTED)),
    "early stopping that starts over": (
        "EarlyStoppingCallback would start over after a pause: .*restore_callback_states_from_checkpoint=True",
        (*STOPS_TRAINER, ("    callback = ", "    del TrialCallback.on_init_end\n    callback = ")),
    ),
    "two callbacks of one class": (
        "two EarlyStoppingCallback",
        (*EARLY, ("[callback]", "[EarlyStoppingCallback(3), EarlyStoppingCallback(2, 0.3), callback]")),
    ),
    "evaluations within an epoch": (EXACT, (BY_STEPS,)),
    "an output folder of its own, and accumulated gradients": (
        EXACT,
        (("callback.output_dir", '"out", gradient_accumulation_steps=2'),),
    ),
    "checkpoints between evaluations go away too": (
        EXACT,
        (
            ('eval_strategy="epoch",', 'eval_strategy="epoch",\n        save_steps=4,'),
            (
                "    trainer.train(resume_from_checkpoint=callback.checkpoint)\n",
                """    trainer.train(resume_from_checkpoint=callback.checkpoint)
    from pathlib import Path
    assert not [*Path(callback.output_dir).glob("checkpoint-*")]
""",
            ),
        ),
    ),
    "no checkpoint is given": (
        "resumes after step 1.*resume_from_checkpoint=callback.checkpoint",
        (("resume_from_checkpoint=callback.checkpoint", ""),),
    ),
    "another budget": (r"num_train_epochs=5 means 5 training steps", (("=t.max_steps", "=5"),)),
    "another budget by steps": ("eval_steps=7 in 70 optimizer", (BY_STEPS, ("7 * t.max_steps", "70"))),
    "no evaluation": ("never evaluates", (('"epoch"', '"no"'),)),
    "only the best is saved": (
        r"save_strategy=.best.",
        (('"epoch"', '"epoch", save_strategy="best", metric_for_best_model="loss"'),),
    ),
    "the best is loaded": (
        "load_best_model_at_end",
        (('"epoch"', '"epoch", save_strategy="epoch", load_best_model_at_end=True'),),
    ),
    "data that starts over": (
        r"ignore_data_skip=True\) starts an epoch's data over",
        (('"epoch"', '"epoch", ignore_data_skip=True'),),
    ),
    "no metric": (
        "has no metric to report",
        (
            ("data[:600]", "[{'inputs': one['inputs']} for one in data[:600]]"),
            ("labels: Tensor)", "labels: Tensor | None = None)"),
            (
                '        return {"loss"',
                '        if labels is None:\n            return {"logits": logits}\n        return {"loss"',
            ),
        ),
    ),
    "several ranks": (
        "the Trainer trains on 2 ranks",
        (("    trainer = ", "    TrainingArguments.world_size = 2\n    trainer = "),),
    ),
    "no trial": (
        r"TrialCallback\(\.\.\.\) got a dict; give it the trial",
        (("Callback(t)", "Callback({})"),),
    ),
}


def test_the_trainer_resumes_exactly_or_is_refused(tmp_path: Path) -> None:
    assert (
        wrong(TRAINER, "with_transformers.py", "sklearn.datasets", "transformers.trainer", tmp_path=tmp_path)
        == {}
    )


SEEDABLE = (
    "Accelerator()",
    "Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))",
)
IMPORT = ("from accelerate import Accelerator", "from accelerate import Accelerator, DataLoaderConfiguration")
ACCELERATE: Cases = {
    "as it stands": (EXACT, ()),
    "a sampler that counts epochs": (EXACT, (SEEDABLE, IMPORT)),
    "the epochs of the loaders are lost": (
        "val_loss",
        (
            SEEDABLE,
            IMPORT,
            (
                "    t.track(prepared",
                "    Prepared.load_files = lambda _, folder: accelerator.load_state(folder)\n    t.track(prepared",
            ),
        ),
    ),
    "within an epoch": (
        "saves within an epoch of a prepared DataLoader",
        (("            optimizer.step()\n", "            optimizer.step()\n            break\n"),),
    ),
    "nothing is prepared": (
        "no model to save",
        (("Prepared(accelerator)", "Prepared(Accelerator())"),),
    ),
    "no accelerator": (
        r"Prepared\(\.\.\.\) got a Sequential",
        (("Prepared(accelerator)", "Prepared(model)"),),
    ),
}


def of_accelerate(cases: Cases, tmp_path: Path) -> dict[str, str]:
    modules = ("sklearn.datasets", "torch._dynamo", "accelerate")
    return wrong(cases, "with_accelerate.py", *modules, tmp_path=tmp_path)


def test_accelerate_resumes_exactly_or_is_refused(tmp_path: Path) -> None:
    assert of_accelerate(ACCELERATE, tmp_path) == {}


@pytest.mark.smoke
def test_a_script_with_accelerate_resumes_exactly(tmp_path: Path) -> None:
    assert of_accelerate({"as it stands": ACCELERATE["as it stands"]}, tmp_path) == {}
