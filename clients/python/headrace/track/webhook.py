"""Webhooks, as the Standard Webhooks specification has them: signed, retried, with an id.

`webhook-signature` is `v1,` and the base64 of an HMAC-SHA256 over `ID.TIMESTAMP.BODY`, with the secret as the key.
A notice is sent until the receiver answers 2xx, at most for a day. The position is stored after the answer: a kill
between the two sends the notice again, with the same id.

A study that was created before the webhook was first used is followed from its present state: its past is no news.
"""

import base64
import hashlib
import hmac
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from headrace.client.events import Update
from headrace.client.model import Report, StudyInfo, TrialInfo
from headrace.errors import InvalidFieldError, Violation
from headrace.track.notices import Best, Notice, best_of, notices
from headrace.track.tracker import AwayError, Say

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - says what a secret is, and is none
SHORTEST_SECRET: Final = 16
TIMEOUT_S: Final = 10.0
GIVE_UP_AFTER_S: Final = 86_400.0


class Post(Protocol):
    """Sends a request; returns the status of the answer. Raises OSError without one."""

    def __call__(self, url: str, body: bytes, headers: dict[str, str]) -> int: ...


def secret_of(text: str) -> bytes:
    """The key in a secret: the base64 after `whsec_`, or else the text itself. Raises InvalidFieldError."""
    key = text.encode()
    if text.startswith(SECRET_PREFIX):
        try:
            key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
        except ValueError:
            key = b""
    if len(key) < SHORTEST_SECRET:
        raise InvalidFieldError([
            Violation(
                field="HEADRACE_WEBHOOK_SECRET",
                message=f"needs a key of at least {SHORTEST_SECRET} bytes, as text or as whsec_BASE64",
                remedy="Make one with `openssl rand -hex 32`, and give it to the receiver too.",
            )
        ])  # fmt: skip
    return key


def signature(key: bytes, notice_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`."""
    signed = hmac.new(key, f"{notice_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(signed.digest()).decode()}"


def body_of(notice: Notice) -> bytes:
    """The JSON that is sent; the same for the same notice."""
    content = {
        "id": notice.id,
        "type": notice.kind,
        "timestamp": notice.time.astimezone(UTC).isoformat() if notice.time else None,
        "data": notice.data,
    }
    return json.dumps(content, ensure_ascii=False, default=str).encode()


def post(url: str, body: bytes, headers: dict[str, str]) -> int:
    """Sends a request. A redirect is an answer like any other: it is not followed."""
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - checked by `of`
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirect)


@dataclass(frozen=True, kw_only=True)
class WebhookTarget:
    """A URL that gets notices, and the file with the position in each study."""

    url: str
    key: bytes
    positions: Path
    send: Post = post
    now_s: Callable[[], float] = time.time

    @property
    def title(self) -> str:
        """For people: without the path and the query, which often contain a key."""
        return f"the webhook at {urlsplit(self.url).hostname}"

    def first_used_s(self) -> float:
        """When this webhook was first used, in seconds since 1970."""
        file = self.positions / "first-used"
        if not file.exists():
            self.positions.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{self.now_s()}\n")
        return float(file.read_text())

    def open(self, study: StudyInfo, say: Say, *, again: bool) -> "WebhookSink":  # noqa: ARG002
        """Reads back the position in a study."""
        return WebhookSink(self, study, say)


class WebhookSink:
    """The notices of one study."""

    def __init__(self, target: WebhookTarget, study: StudyInfo, say: Say) -> None:
        self._target, self._say = target, say
        self._file = target.positions / f"{study.uid}.json"
        self._failing_since: float | None = None
        self._sent: set[str] = set()
        stored = self._stored()
        self.cursor: int
        self._best: Best | None
        if stored is not None:
            self.cursor, self._best = stored
        elif study.created is not None and study.created.timestamp() >= target.first_used_s():
            self.cursor, self._best = 0, None
        else:
            self.cursor, self._best = study.cursor, best_of(study)
            self._store()

    def write(self, update: Update) -> None:
        """Sends the notices of the new events, then stores the position."""
        new = tuple(event for event in update.events if event.cursor > self.cursor)
        if not new:
            return
        found = list(notices(Update(events=new, study=update.study), self._best))
        for notice in found:
            if notice.id not in self._sent:
                self._deliver(notice)
                self._sent.add(notice.id)
        self.cursor, self._best = new[-1].cursor, best_of(update.study)
        if found:
            self._store()
            self._sent.clear()

    def write_tables(self, study: StudyInfo, trials: Sequence[TrialInfo], reports: Sequence[Report]) -> None:
        """Nothing: what is in the tables is no news."""

    def close(self, *, ended: bool) -> None:  # noqa: ARG002
        """Stores the position."""
        self._store()

    def _deliver(self, notice: Notice) -> None:
        body = body_of(notice)
        now_s = self._target.now_s()
        headers = {
            "content-type": "application/json",
            "user-agent": "headrace",
            "webhook-id": notice.id,
            "webhook-timestamp": str(int(now_s)),
            "webhook-signature": signature(self._target.key, notice.id, int(now_s), body),
        }
        try:
            status = self._target.send(self._target.url, body, headers)
            problem = "" if 200 <= status < 300 else f"it answered {status}"
        except (OSError, ValueError) as error:
            problem = f"it does not answer ({getattr(error, 'reason', None) or error})"
        if not problem:
            self._failing_since = None
            return
        self._failing_since = now_s if self._failing_since is None else self._failing_since
        if now_s - self._failing_since < GIVE_UP_AFTER_S:
            raise AwayError(f"{problem}.", remedy="Check the URL and the receiver.")
        self._failing_since = None
        self._say(
            f"{notice.kind} of {notice.data['study']} was not delivered within a day, and is dropped: {problem}."
        )

    def _stored(self) -> tuple[int, Best | None] | None:
        try:
            content = json.loads(self._file.read_text())
            best = content["best"]
            return int(content["cursor"]), None if best is None else (best[0], best[1])
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            return None

    def _store(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"cursor": self.cursor, "best": self._best}))
        new.replace(self._file)
