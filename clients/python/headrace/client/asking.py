"""What a loop of the user's own asks for: one trial after the other, each with the end of the one before it.

A request keeps its id until it is answered: where the answer got lost, the same request gets the same trial, and where
two hear of it, it counts once. Threads and tasks may end their trials at once: only the trial that the loop yielded
last asks ahead, and only once.
"""

import threading
import uuid

from google.protobuf.duration_pb2 import Duration

from headrace.client.model import Lease
from headrace.client.names import study_name
from headrace.v1 import study_pb2 as pb


class Asking:
    """The next request for a trial, and its answer where that came with the end of the last one."""

    def __init__(self, study: str, client_id: str | None, lease_s: float | None) -> None:
        """`lease_s` is how long a trial may go without a report; None leaves it to the scheduler."""
        self._request = pb.SuggestTrialRequest(
            request_id=uuid.uuid4().hex, study=study_name(study), client_id=client_id or uuid.uuid4().hex
        )
        if lease_s is not None:
            lease_time = Duration()
            lease_time.FromNanoseconds(round(lease_s * 1e9))
            self._request.lease_time.CopyFrom(lease_time)
        self._lock = threading.Lock()
        self._answer: pb.SuggestTrialResponse | None = None
        self._last: Lease | None = None
        self._refused = False

    @property
    def request(self) -> pb.SuggestTrialRequest:
        """What to ask when there is no answer yet."""
        with self._lock:
            return self._request

    def yielded(self, lease: Lease) -> None:
        """The loop goes on with this trial, whose end may ask ahead."""
        with self._lock:
            self._last = lease

    def with_end_of(self, lease: Lease) -> pb.SuggestTrialRequest | None:
        """What to ask with the end of a trial; None where it is not the loop's last one, or has asked before."""
        with self._lock:
            if self._last != lease or self._answer is not None:
                return None
            self._last = None
            return self._request

    def note(self, request: pb.SuggestTrialRequest, answer: pb.SuggestTrialResponse) -> None:
        """Take an answer in. One that there is nothing to run now is forgotten: the next request asks again."""
        with self._lock:
            if request.request_id != self._request.request_id:
                return
            if answer.HasField("trial") or answer.done:
                self._answer = answer
            self._refused = False
            renewed = pb.SuggestTrialRequest()
            renewed.CopyFrom(self._request)
            renewed.request_id = uuid.uuid4().hex
            self._request = renewed

    def note_refused(self) -> None:
        """The end of a trial was refused. What was asked with it may have been carried out."""
        with self._lock:
            self._refused = True

    def take(self) -> pb.SuggestTrialResponse | None:
        """The answer, if there is one, which is the caller's from now on."""
        with self._lock:
            answer, self._answer, self._last = self._answer, None, None
            return answer

    def leave(self) -> pb.SuggestTrialRequest | None:
        """Ask for nothing any more. Returns the request that may have got a trial of which nobody has heard."""
        with self._lock:
            self._last = None
            refused, self._refused = self._refused, False
            return self._request if refused and self._answer is None else None
