"""Webhooks, as the Standard Webhooks specification has them: signed, retried, with an id.

`webhook-signature` is `v1,` and the base64 of an HMAC-SHA256 over `ID.TIMESTAMP.BODY`, with the secret as the key.

The notices of an update are stored, with the position after it, before the first of them is sent. So a notice that
is sent again after a kill has the same id and the same body, and a full disk sends nothing new. A notice is sent
until the receiver answers 2xx. It is dropped if the receiver has failed for a day, and the notice is a day old.

A study that was created before the webhook was first used is followed from its present state: its past is no news.
"""

import base64
import hashlib
import hmac
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, Protocol

from headrace import durable
from headrace.client.events import Update
from headrace.client.model import Report, StudyInfo, TrialInfo
from headrace.errors import InvalidFieldError, Violation
from headrace.track.notices import best_of, notices
from headrace.track.outbox import Letter, Outbox
from headrace.track.positions import unwritable
from headrace.track.redaction import redacted, shown_host
from headrace.track.tracker import AwayError, EventsGoneError, Say, Start, missing

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - says what a secret is, and is none
SHORTEST_SECRET: Final = 16
TIMEOUT_S: Final = 10.0
GIVE_UP_AFTER_S: Final = 86_400.0


class Post(Protocol):
    """Sends a request; returns the status of the answer. Raises OSError or HTTPException without one."""

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
                remedy="Make one with `echo whsec_$(openssl rand -base64 32)`, and give it to the receiver too.",
            )
        ])  # fmt: skip
    return key


def signature(key: bytes, notice_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`."""
    signed = hmac.new(key, f"{notice_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(signed.digest()).decode()}"


def post(url: str, body: bytes, headers: dict[str, str]) -> int:
    """Sends a request. A redirect is an answer like any other: it is not followed."""
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - `targets` checks it
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
    """A URL that gets notices, and the folder with the outbox of each study."""

    url: str
    key: bytes
    folder: Path
    send: Post = post
    now_s: Callable[[], float] = time.time

    @property
    def title(self) -> str:
        """For people: without the path and the query, which often contain a key."""
        return f"the webhook at {shown_host(self.url)}"

    def first_used_s(self) -> float:
        """When this webhook was first used, in seconds since 1970; now, if never. Raises AwayError."""
        file = self.folder / "first-used"
        try:
            return float(file.read_text())
        except (FileNotFoundError, ValueError):
            pass
        except OSError as error:
            raise unwritable(file, error, "read") from None
        now_s = self.now_s()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            durable.replace(file, f"{now_s}\n".encode())
        except OSError as error:
            raise unwritable(file, error) from None
        return now_s

    def open(self, study: StudyInfo, say: Say, start: Start) -> "WebhookSink":
        """Reads back the outbox of a study."""
        return WebhookSink(self, study, say, start)


class WebhookSink:
    """The notices of one study."""

    def __init__(self, target: WebhookTarget, study: StudyInfo, say: Say, start: Start) -> None:
        self._target, self._say = target, say
        self._file = target.folder / f"{study.uid}.json"
        first_used_s = target.first_used_s()
        stored = Outbox.read(self._file)
        if stored is not None and start is not Start.SET_ASIDE:
            self._outbox = stored
        elif study.created is not None and study.created.timestamp() >= first_used_s and stored is None:
            self._outbox = Outbox(cursor=0)
        else:
            self._put(Outbox(cursor=study.cursor, best=best_of(study)))
        self.newest = self._outbox.cursor

    @property
    def cursor(self) -> int:
        """Events up to here have been delivered, as far as they need to be."""
        return self._outbox.before if self._outbox.letters else self._outbox.cursor

    def write(self, update: Update) -> None:
        """Delivers what is left of the last update, then stores and sends the notices of this one."""
        self._deliver_all()
        new = tuple(event for event in update.events if event.cursor > self.cursor)
        if not new:
            if missing(update, self.cursor):
                raise EventsGoneError(f"Events of {update.study.name} were deleted by age.")
            return
        found = notices(Update(events=new, study=update.study), self._outbox.best)
        letters = tuple(Letter.of(notice) for notice in found)
        after = Outbox(
            cursor=new[-1].cursor,
            before=self.cursor,
            best=best_of(update.study, self._outbox.best),
            letters=letters,
            failing_since_s=self._outbox.failing_since_s,
        )
        if letters:
            self._put(after)
            self._deliver_all()
        else:  # reading it again would find nothing to send either
            self._outbox = after

    def write_tables(self, study: StudyInfo, trials: Sequence[TrialInfo], reports: Sequence[Report]) -> None:  # noqa: ARG002 - the protocol's
        """Sends nothing: what is in the tables is no news."""
        self._put(replace(self._outbox, cursor=study.cursor, best=best_of(study, self._outbox.best)))

    def close(self, *, ended: bool) -> None:
        """Stores the position; delivers what is left only if the study has ended, so that a stop is quick."""
        if ended:
            self._deliver_all()
        self._put(self._outbox)

    def _deliver_all(self) -> None:
        """Sends the letters in order. One that was sent is not sent again by this process, whatever the disk does."""
        if not self._outbox.letters:
            return
        while self._outbox.letters:
            self._deliver(self._outbox.letters[0])
            self._outbox = replace(self._outbox, letters=self._outbox.letters[1:])
        self._put(self._outbox)

    def _deliver(self, letter: Letter) -> None:
        body = letter.body.encode()
        now_s = self._target.now_s()
        headers = {
            "content-type": "application/json",
            "user-agent": "headrace",
            "webhook-id": letter.id,
            "webhook-timestamp": str(int(now_s)),
            "webhook-signature": signature(self._target.key, letter.id, int(now_s), body),
        }
        try:
            status = self._target.send(self._target.url, body, headers)
            problem = "" if 200 <= status < 300 else f"it answered {status}"
        except (OSError, HTTPException, ValueError) as error:
            reason = str(getattr(error, "reason", None) or repr(error))
            shown = redacted(reason.replace(self._target.url, shown_host(self._target.url)))
            problem = f"it does not answer ({shown})"
        if not problem:
            if self._outbox.failing_since_s is not None:
                self._outbox = replace(self._outbox, failing_since_s=None)
            return
        since_s = self._outbox.failing_since_s
        if since_s is None:
            since_s = now_s
            self._outbox = replace(self._outbox, failing_since_s=now_s)
            with suppress(AwayError):  # on a full disk: it then counts from the next start
                self._put(self._outbox)
        if now_s - max(since_s, letter.time_s) < GIVE_UP_AFTER_S:
            raise AwayError(f"{problem}.", remedy="Check the URL and the receiver.")
        self._say(f"{letter.title} was not delivered within a day, and is dropped: {problem}.")

    def _put(self, outbox: Outbox) -> None:
        outbox.write(self._file)
        self._outbox = outbox
