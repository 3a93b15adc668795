"""Random programs that keep state: each member equals itself under torch.optim, or the program is refused by name.

The reference for a member is the plain program in a copy of its own (`remembering_worlds`), trained by
`torch.optim`. Engines, batches, joins, drops, saves, losses and settings that the user changes are random.
`make yardstick` draws 2,000 programs from each of four seeds (HEADRACE_MODULES, HEADRACE_MODULES_SEED) and prints
the outcomes.
"""

import io
import os
import random
import re
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from remembering_worlds import EFFECTS, FREEZES, HOLDERS, Program, World, data
from tiers import drawn
from torch import Tensor, nn

from headrace.trial.codec import decode, encode
from headrace_torch import hydro

CASES = int(os.environ.get("HEADRACE_MODULES", drawn(first=15, full=60)))
SEED = int(os.environ.get("HEADRACE_MODULES_SEED", "0"))
STEPS, ROWS, SIZE = 9, 10, 4
MOST = 1e-7
TELL_EVERY = 250  # cases
OUTCOMES: Counter[str] = Counter()
HERE = ("join", "join", "drop", "drop", "user", "user")
EVENTS = (*HERE, "move", "save")
ITERATORS = {"count", "global count", "iterator", "generator"}


@dataclass(slots=True)
class Alone:
    """A member under torch.optim, in a world of its own."""

    program: Program
    settings: dict[str, Any]
    optimizer_name: str
    state: dict[str, Any] | None = None
    world: World = field(init=False)
    model: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    seen: int = 0

    def __post_init__(self) -> None:
        self.world = self.program.world()
        torch.manual_seed(self.settings.get("seed", 0))
        self.model = self.world.net()
        kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[self.optimizer_name]
        chosen = {key: value for key, value in self.settings.items() if key not in ("seed", "batch_size")}
        self.optimizer = kind(self.model.parameters(), **chosen)

    def step(self, batch: tuple[Tensor, Tensor], *, plain: bool) -> float:
        batch = tuple(one[: self.settings.get("batch_size")] for one in batch)
        self.optimizer.zero_grad()
        loss = (self.world.plain if plain else self.world.loss)(self.model, batch)
        loss.backward()
        self.optimizer.step()
        self.seen += 1
        return float(loss.detach())


class Run:
    """A group next to its members alone; `go` plays a history and fails if they differ."""

    def __init__(
        self, draw: random.Random, program: Program, engine: str, events: tuple[str, ...] = EVENTS
    ) -> None:
        self.draw, self.program, self.engine, self.kinds = draw, program, engine, events
        self.optimizer = draw.choice(["adamw", "sgd"])
        self.epochs = draw.random() < 0.4
        self.sizes = not self.epochs and draw.random() < 0.5
        self.as_module = draw.random() < 0.3
        self.begins = draw.choice([0, 0, 0, 3])
        self.world = program.world()
        self.alone: dict[int, Alone] = {}
        self.events: list[str] = []
        count = draw.choice([1, 2, 2, 3])
        members = [self.member() for _ in range(count)]
        self.group = self.made(members)
        self.alone = {i: self.solo(one) for i, one in enumerate(members)}

    def member(self) -> dict[str, Any]:
        draw = self.draw
        found: dict[str, Any] = {
            "lr": draw.choice([0.01, 0.03]),
            "seed": 0 if self.as_module else draw.randint(0, 2),
        }
        if self.optimizer == "sgd":
            found["momentum"] = 0.9
        else:
            found["eps"] = 1e-4
        if self.sizes and draw.random() < 0.6:
            found["batch_size"] = 3
        return found

    def solo(self, settings: dict[str, Any]) -> Alone:
        found = Alone(self.program, settings, self.optimizer)
        found.world.loss.beta = self.world.loss.beta
        return found

    def made(self, members: list[dict[str, Any]] | None) -> hydro.Group:
        source: Any = self.world.net
        if self.as_module:
            torch.manual_seed(0)
            source = self.world.net()
        return hydro.fuse(source, members, self.optimizer, engine=self.engine)  # type: ignore[arg-type]  # drawn

    def go(self) -> None:
        x, y = data(ROWS)
        for step in range(STEPS):
            if step and self.draw.random() < 0.4:
                self.event()
            if self.epochs:
                batches = hydro.EpochBatches(self.group, x, y, batch_size=SIZE)
                batch: Any = next(iter(batches))
            else:
                rows = [(step + i) % ROWS for i in range(SIZE)]
                batch = x[rows], y[rows]
            ids = self.group.ids
            plain = step < self.begins  # at first another loss, which keeps no state
            losses = self.group.step(batch, self.world.plain if plain else self.world.loss)
            for number, found in zip(ids, losses, strict=True):
                one = self.alone[number]
                own = batches.of(one.seen) if self.epochs else batch
                expected = one.step(own, plain=plain)
                what = (
                    f"loss of member {number} at step {step}: {float(found)}, alone {expected}; {self.events}"
                )
                assert float(found) == pytest.approx(expected, rel=MOST), what
            assert self.world.loss.beta == one.world.loss.beta
        for number in self.group.ids:
            self.compare(number)

    def event(self) -> None:
        what = self.draw.choice(self.kinds)
        self.events.append(f"{what} before step {len(self.events)}")
        group, ids = self.group, self.group.ids
        one = self.draw.choice(ids)
        if what == "join":
            settings = self.member()
            (number,) = group.add([settings])
            self.alone[number] = self.solo(settings)
        elif what == "drop" and len(ids) > 1:
            self.compare(one)
            group.drop([one])
        elif what == "move":  # a trial pauses and comes back
            state = decode(encode(group.member_state(one), "state", for_json=False))
            (number,) = group.add([self.alone[one].settings], [state])
            self.alone[number] = self.alone[one]
            group.drop([one])
        elif what == "save":  # a new process
            torch.save(group.state_dict(), written := io.BytesIO())
            written.seek(0)
            self.world = self.program.world()
            self.group = self.made(None)
            self.group.load_state_dict(torch.load(written, weights_only=True))
            for number in ids:
                self.alone[number].world.loss.beta = self.world.loss.beta
        elif what == "user":
            self.world.loss.beta = self.draw.choice([0.5, 2.0])
            for number in ids:
                self.alone[number].world.loss.beta = self.world.loss.beta

    def compare(self, number: int) -> None:
        ours, theirs = self.group.member_model(number), self.alone[number].model
        for name, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], value, rtol=MOST, atol=MOST)
        for name, value in vars(theirs).items():
            if isinstance(value, int | float | list):  # its state in Python, too
                assert vars(ours)[name] == pytest.approx(value, rel=MOST), (name, self.events)


def outcome(draw: random.Random, program: Program, engine: str) -> str:
    """Plays a history; returns its outcome."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run = Run(draw, program, engine)
            run.go()
        except hydro.HydroError as error:
            return f"refused: {re.sub('[0-9]+', 'N', str(error))[:60]}"
    return str(run.group.engine)


def check(name: str, draw: random.Random, program: Program, engine: str) -> None:
    try:
        OUTCOMES[outcome(draw, program, engine)] += 1
    except Exception as error:
        error.add_note(f"{name}: {program}, engine {engine}")
        raise


def test_a_program_that_remembers_equals_torch_optim_or_is_refused() -> None:
    for case in range(CASES):
        draw = random.Random(f"{SEED} {case}")
        kinds = list(HOLDERS)
        program = Program(
            net=draw.choice([*kinds, *["nothing"] * len(kinds)]),
            net_effect=draw.choice([*EFFECTS, "late"]),
            loss=draw.choice([*kinds, *["nothing"] * (len(kinds) // 3)]),
            loss_effect=draw.choice([*EFFECTS, "late"]),
            freeze=draw.choice([*FREEZES, *["never"] * 2 * len(FREEZES)]),
        )
        check(
            f"seed {SEED}, case {case}",
            draw,
            program,
            draw.choice(["auto", "auto", "grouped", "vmap", "separate"]),
        )
        if (case + 1) % TELL_EVERY == 0:
            told = ", ".join(f"{number} {what}" for what, number in OUTCOMES.most_common())
            print(f"seed {SEED}, {case + 1} cases, none differs: {told}", flush=True)


@pytest.mark.cases(12)
@pytest.mark.parametrize("engine", ["auto", "separate"])
@pytest.mark.parametrize("kind", [one for one in HOLDERS if one != "nothing"])
def test_each_way_to_remember_alone(kind: str, engine: str) -> None:
    """Every way once in the loss and once in the model, so that no draw omits one. Only iterators are refused."""
    for case, program in enumerate(
        (Program(loss=kind, loss_effect="late"), Program(net=kind, net_effect="late"))
    ):
        events = HERE if kind in ITERATORS else EVENTS
        run = Run(random.Random(f"{kind} {case}"), program, engine, events)
        # each member's model has an iterator of its own
        if kind not in ITERATORS or (kind, case) == ("count", 1):
            run.go()
        else:
            with pytest.raises(hydro.FuseError, match=r"a call advances .*an iterator"):
                run.go()
