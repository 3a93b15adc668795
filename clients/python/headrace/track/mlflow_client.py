"""MLflow's client, with its errors as the exporter knows them."""

import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from headrace.errors import HeadraceError
from headrace.track.redaction import redacted
from headrace.track.tracker import AwayError, ForgottenError, RefusedError

T = TypeVar("T")
LONGEST_SHOWN: Final = 300
_SILENT: Final = re.compile(r"\[Errno -?\d+\] [\w ]+|Read timed out|timed out")
"""What an error says, several levels deep, if there is no answer."""
_REFUSED: Final = ("error code 401", "error code 403", "UNAUTHENTICATED", "PERMISSION_DENIED")
_INVALID: Final = "INVALID_PARAMETER_VALUE"
"""What MLflow says about a request that it will never take."""
_TOO_LARGE: Final = ("BAD_REQUEST", "MALFORMED_REQUEST", "error code 400", "error code 413")
"""What MLflow, or a proxy in front of it, says about a request that it may take in parts, or later."""


class DeletedError(RefusedError):
    """The run or its experiment was deleted."""


class ExistsError(RefusedError):
    """There is an experiment of this name."""


class TooLargeError(AwayError):
    """The request is not taken as it is."""


class InvalidError(TooLargeError):
    """MLflow does not take something in the request."""


class UnusableUriError(HeadraceError):
    """MLflow's library has no client for the URI."""


def experiment_deleted(experiment_id: str) -> RefusedError:
    """The error for a deleted experiment."""
    return RefusedError(
        f"the experiment with the ID {experiment_id} was deleted.",
        remedy=f"Restore it with `mlflow experiments restore -x {experiment_id}`, or remove it for good with "
        "`mlflow gc`.",
    )


class Client:
    """The client of a server. Raises UnusableUriError."""

    def __init__(self, uri: str) -> None:
        # The exporter has its own pauses. MLflow's would hold it for minutes, and say so on every try.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # stdout has our results
        try:
            self._client = MlflowClient(tracking_uri=uri)
        except (MlflowException, ValueError) as error:
            raise UnusableUriError(_first_line(error)) from None

    def __getattr__(self, name: str) -> Any:
        return partial(_called, getattr(self._client, name))


def _called(call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    try:
        return call(*arguments, **named)
    except MlflowException as error:
        raise _translated(error) from None
    except Exception as error:  # noqa: BLE001 - what its library raises about an answer that is not MLflow's
        raise AwayError(f"no usable answer: {type(error).__name__}: {_first_line(error)}.") from None


def _translated(error: MlflowException) -> HeadraceError:
    text = _first_line(error)

    def says(*signs: str) -> bool:
        return any(sign in text or sign == error.error_code for sign in signs)

    if error.error_code == "RESOURCE_DOES_NOT_EXIST":
        return ForgottenError(f"{text}.")
    if error.error_code == "RESOURCE_ALREADY_EXISTS":
        return ExistsError(f"{text}.", remedy="Rename that experiment in MLflow.")
    if says("must be in the 'active' state"):
        return DeletedError(f"{text}.")
    if says(*_REFUSED):
        return RefusedError(
            f"the server rejects the credentials: {text}.",
            remedy="Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN.",
        )
    if says(_INVALID):
        return InvalidError(f"{text}.")
    if says(*_TOO_LARGE):
        return TooLargeError(f"no usable answer: {text}.")
    silent = _SILENT.search(str(error))
    return AwayError(f"it does not answer: {silent[0]}." if silent else f"no usable answer: {text}.")


def _first_line(error: Exception) -> str:
    """What people see of an error: short, and without the secrets of an address."""
    return redacted(str(error).strip().partition("\n")[0])[:LONGEST_SHOWN].rstrip(".")
