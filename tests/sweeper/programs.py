"""Three Hydra programs of different shape, in folders as their users would have them."""

from pathlib import Path
from textwrap import dedent

GROUPS = {  # configuration groups, a log file, a trial handle that reports and keeps its state
    "conf/config.yaml": "defaults: [_self_, {model: small}]\nlr: 0.1\nepochs: 9\nseed: 3\n",
    "conf/model/small.yaml": "name: small\nwidth: 2\n",
    "conf/model/big.yaml": "name: big\nwidth: 4\n",
    "train.py": """
        import logging
        import random

        import hydra

        from headrace.hydra import current

        log = logging.getLogger(__name__)  # into the job's folder


        @hydra.main(version_base=None, config_path="conf", config_name="config")
        def train(cfg):
            t = current(steps=cfg.epochs)
            random.seed(cfg.seed)
            t.state.setdefault("value", 1.0)
            for step in t.steps():
                t.state["value"] *= 1 - cfg.lr / cfg.model.width * random.uniform(0.9, 1.1)
                log.info("step %s: %r", step, t.state["value"])
                t.report(loss=t.state["value"])


        if __name__ == "__main__":
            train()
        """,
}
RETURNS = {  # structured and nested configuration; returns its result, and knows nothing of Headrace
    "tune.py": """
        import logging
        from dataclasses import dataclass, field

        import hydra
        from hydra.core.config_store import ConfigStore

        log = logging.getLogger(__name__)


        @dataclass
        class Model:
            lr: float = 0.1
            layers: list[int] = field(default_factory=lambda: [8])
            name: str = "plain"


        @dataclass
        class Config:
            model: Model = field(default_factory=Model)
            seed: int = 0


        ConfigStore.instance().store(name="config", node=Config)


        @hydra.main(version_base=None, config_name="config")
        def tune(cfg) -> float:
            if cfg.model.lr > 0.9:
                raise ValueError("diverged at lr " + str(cfg.model.lr))
            loss = cfg.model.lr * sum(cfg.model.layers) + cfg.seed + len(cfg.model.name) / 100
            log.info("loss %r", loss)
            return loss


        if __name__ == "__main__":
            tune()
        """,
}
MODULE = {  # a package started with -m, a configuration chosen by option, a job that changes its folder
    "pkg/__init__.py": "",
    "pkg/app.py": """
        import logging
        from pathlib import Path

        import hydra

        from headrace.hydra import current

        log = logging.getLogger(__name__)


        @hydra.main(version_base=None, config_path="conf", config_name="missing")
        def app(cfg):
            Path("here.txt").write_text(cfg.optimizer.name)
            t = current(steps=4)
            for step in t.steps():
                loss = t.state["loss"] = (cfg.optimizer.get("momentum") or 0.5) ** step + cfg.depth
                log.info("step %s: %r", step, loss)
                t.report({"val/loss": loss})


        if __name__ == "__main__":
            app()
        """,
    "pkg/conf/other.yaml": "optimizer: {name: sgd}\ndepth: 1\nhydra: {job: {chdir: true}}\n",
}


def write(folder: Path, program: dict[str, str]) -> None:
    """Writes a program's files."""
    for name, text in program.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"))
