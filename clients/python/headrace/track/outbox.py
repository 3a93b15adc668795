"""A webhook's notices that were not delivered yet, with the position in a study, as a file."""

import json
from dataclasses import asdict, dataclass
from datetime import UTC
from pathlib import Path

from headrace import durable
from headrace.track.notices import Best, Notice
from headrace.track.positions import unwritable


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A notice as it is sent, however often: the same id and the same bytes."""

    id: str
    title: str
    """For people."""
    time_s: float
    """When it happened, in seconds since 1970."""
    body: str

    @classmethod
    def of(cls, notice: Notice) -> "Letter":
        """The letter of a notice."""
        content = {
            "id": notice.id,
            "type": notice.kind,
            "timestamp": notice.time.astimezone(UTC).isoformat() if notice.time else None,
            "data": notice.data,
        }
        return cls(
            id=notice.id,
            title=f"{notice.kind} of {notice.data['study']}",
            time_s=notice.time.timestamp() if notice.time else 0.0,
            body=json.dumps(content, ensure_ascii=False, default=str),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """The position in a study, and the letters of the events between `before` and `cursor`."""

    cursor: int
    before: int = 0
    best: Best | None = None
    """The best trial as of the cursor."""
    letters: tuple[Letter, ...] = ()
    failing_since_s: float | None = None
    """Since when the receiver has not taken a letter; None if it took the last one."""

    @classmethod
    def read(cls, file: Path) -> "Outbox | None":
        """What is stored; None if nothing is, or nothing that can be used. Raises AwayError."""
        try:
            content = json.loads(file.read_text())
            letters = tuple(Letter(**letter) for letter in content.pop("letters"))
            best = content.pop("best")
            return cls(
                **content, letters=letters, best=None if best is None else (int(best[0]), float(best[1]))
            )
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
            return None
        except OSError as error:
            raise unwritable(file, error, "read") from None

    def write(self, file: Path) -> None:
        """Replaces what is stored, whole or not at all. Raises AwayError."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            durable.replace(file, json.dumps(asdict(self)).encode())
        except OSError as error:
            raise unwritable(file, error) from None
