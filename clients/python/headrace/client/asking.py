"""What a loop of the user's own asks for: one trial after the other, each with the end of the one before it.

Threads and tasks may end their trials at once: only the trial that the loop yielded last asks ahead, and only once.
Each request is out on one way at a time, and its answer counts once. One that nobody has heard of is asked again with
the same id, and gets the same trial.
"""

import threading
import uuid
from collections import deque

from google.protobuf.duration_pb2 import Duration

from headrace.client.model import Lease
from headrace.client.names import study_name
from headrace.v1 import study_pb2 as pb


class Asking:
    """The requests of a loop that are out, and the answers that it has not taken yet."""

    def __init__(self, study: str, client_id: str | None, lease_s: float | None) -> None:
        """`lease_s` is how long a trial may go without a report; None leaves it to the scheduler."""
        self._request = pb.SuggestTrialRequest(
            study=study_name(study), client_id=client_id or uuid.uuid4().hex
        )
        if lease_s is not None:
            lease_time = Duration()
            lease_time.FromNanoseconds(round(lease_s * 1e9))
            self._request.lease_time.CopyFrom(lease_time)
        self._lock = threading.RLock()
        self._out: dict[str, pb.SuggestTrialRequest] = {}
        self._failed: deque[pb.SuggestTrialRequest] = deque()
        self._answers: deque[pb.SuggestTrialResponse] = deque()
        self._done = False
        self._last: Lease | None = None

    def begin(self) -> pb.SuggestTrialRequest:
        """What the loop asks now: what it asked before and has not heard of, else something new."""
        with self._lock:
            return self._send(self._failed.popleft() if self._failed else self._new())

    def with_end_of(self, lease: Lease) -> pb.SuggestTrialRequest | None:
        """What to ask with the end of a trial; None where it is not the loop's last one, or has asked before."""
        with self._lock:
            if self._last != lease:
                return None
            self._last = None
            return self._send(self._failed.popleft() if self._failed else self._new())

    def note(self, request: pb.SuggestTrialRequest, answer: pb.SuggestTrialResponse) -> None:
        """Take the answer to a request that is out."""
        with self._lock:
            if self._out.pop(request.request_id, None) is None:
                return
            if answer.HasField("trial"):
                self._answers.append(answer)
            self._done |= answer.done

    def fail(self, request: pb.SuggestTrialRequest) -> None:
        """A request came to nothing, as far as is known here."""
        with self._lock:
            if self._out.pop(request.request_id, None) is not None:
                self._failed.append(request)

    def take(self) -> pb.SuggestTrialResponse | None:
        """An answer, if there is one, which is the caller's from now on."""
        with self._lock:
            self._last = None
            if self._answers:
                return self._answers.popleft()
            return pb.SuggestTrialResponse(done=True) if self._done else None

    def yielded(self, lease: Lease) -> None:
        """The loop goes on with this trial, whose end may ask ahead."""
        with self._lock:
            self._last = lease

    def leave(self) -> tuple[list[pb.SuggestTrialResponse], list[pb.SuggestTrialRequest]]:
        """Ask for nothing any more. Returns the trials that nobody took, and the requests that nobody heard of."""
        with self._lock:
            self._last = None
            held, unheard = list(self._answers), [*self._failed, *self._out.values()]
            self._answers.clear()
            self._failed.clear()
            self._out.clear()
            return held, unheard

    def _new(self) -> pb.SuggestTrialRequest:
        request = pb.SuggestTrialRequest()
        request.CopyFrom(self._request)
        request.request_id = uuid.uuid4().hex
        return request

    def _send(self, request: pb.SuggestTrialRequest) -> pb.SuggestTrialRequest:
        self._out[request.request_id] = request
        return request
