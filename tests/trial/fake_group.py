"""A fused group in integers: exact, and each member's row depends only on its own settings, state and step."""

from collections.abc import Mapping, Sequence
from typing import Any

_PRIME = 1_000_003


class MemberError(ValueError):
    def __init__(self, message: str, *, member: int) -> None:
        super().__init__(message)
        self.member = member


class StaticShapeError(MemberError): ...


class FakeGroup:
    def __init__(self, width: int = 1) -> None:
        self.width = width
        self.rows: dict[int, dict[str, Any]] = {}
        self.next_id = 0

    @property
    def ids(self) -> list[int]:
        return list(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def add(
        self, members: Sequence[Mapping[str, Any]], states: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        ids = list(range(self.next_id, self.next_id + len(members)))
        for number, one in zip(ids, members, strict=True):
            if one.get("width", self.width) != self.width:
                raise StaticShapeError(f"member {number}: fc has other shapes", member=number)
        for place, (number, one) in enumerate(zip(ids, members, strict=True)):
            row = {"lr": one["lr"], "w": one.get("seed", 0), "m": 0, "seen": 0}
            if states is not None:
                state = states[place]
                row |= {"w": state["model"]["w"], "m": state["optimizer"]["m"], "seen": state["seen"]}
            self.rows[number] = row
        self.next_id += len(members)
        return ids

    def drop(self, members: Sequence[int]) -> None:
        for number in members:
            del self.rows[number]

    def member_state(self, member: int) -> dict[str, Any]:
        row = self.rows[member]
        return {
            "model": {"w": row["w"]},
            "optimizer": {"m": row["m"]},
            "seen": row["seen"],
            "settings": {"lr": row["lr"]},
        }

    def seen(self) -> dict[int, int]:
        return {number: row["seen"] for number, row in self.rows.items()}

    def step(self) -> list[int]:
        for row in self.rows.values():
            row["m"] = (3 * row["m"] + row["w"] + row["seen"]) % _PRIME
            row["w"] = (row["w"] * 7 + row["lr"] * row["m"]) % _PRIME
            row["seen"] += 1
        return [row["w"] for row in self.rows.values()]
