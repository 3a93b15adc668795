"""What a loop of the user's own asks for: one trial after the other, each with the end of the one before it.

The request keeps its id until it is answered: where the answer got lost, the same request gets the same trial.
"""

import uuid

from google.protobuf.duration_pb2 import Duration

from headrace.client.names import study_name
from headrace.v1 import study_pb2 as pb


class Asking:
    """The next request for a trial, and its answer where that is there already."""

    def __init__(self, study: str, client_id: str | None, lease_s: float | None) -> None:
        """`lease_s` is how long a trial may go without a report; None leaves it to the scheduler."""
        self._request = pb.SuggestTrialRequest(
            study=study_name(study), client_id=client_id or uuid.uuid4().hex
        )
        if lease_s is not None:
            lease_time = Duration()
            lease_time.FromNanoseconds(round(lease_s * 1e9))
            self._request.lease_time.CopyFrom(lease_time)
        self._answer: pb.SuggestTrialResponse | None = None
        self._renew()

    @property
    def request(self) -> pb.SuggestTrialRequest | None:
        """What is to be asked; None while there is an answer."""
        return None if self._answer else self._request

    @property
    def held(self) -> pb.SuggestTrialResponse | None:
        """An answer with a trial that nobody has taken yet."""
        return self._answer if self._answer and self._answer.HasField("trial") else None

    def note(self, answer: pb.SuggestTrialResponse) -> None:
        """Take an answer in. One that there is nothing to run now is forgotten: the next request asks again."""
        self._answer = answer if answer.HasField("trial") or answer.done else None
        self._renew()

    def take(self) -> pb.SuggestTrialResponse | None:
        """The answer, if there is one, which is the caller's from now on."""
        answer, self._answer = self._answer, None
        return answer

    def _renew(self) -> None:
        request = pb.SuggestTrialRequest()
        request.CopyFrom(self._request)
        request.request_id = uuid.uuid4().hex
        self._request = request
