"""MLflow's client, with its errors as the exporter knows them."""

import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from headrace.track.tracker import AwayError, ForgottenError, RefusedError

T = TypeVar("T")
LONGEST_SHOWN: Final = 300
_SILENT: Final = re.compile(r"\[Errno -?\d+\] [\w ]+|Read timed out|timed out")
"""What an error says, several levels deep, if there is no answer."""
_REFUSED: Final = ("error code 401", "error code 403", "UNAUTHENTICATED", "PERMISSION_DENIED")


def shown(uri: str) -> str:
    """The URI without a user and a password."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class DeletedError(RefusedError):
    """The run or its experiment was deleted."""


class ExistsError(RefusedError):
    """There is an experiment of this name."""


class InvalidError(AwayError):
    """MLflow does not take a value."""


def experiment_deleted(experiment_id: str) -> RefusedError:
    """The error for a deleted experiment."""
    return RefusedError(
        f"the experiment with the ID {experiment_id} was deleted.",
        remedy=f"Restore it with `mlflow experiments restore -x {experiment_id}`, or remove it for good with "
        "`mlflow gc`.",
    )


class Client:
    """The client of a server."""

    def __init__(self, uri: str) -> None:
        # The exporter has its own pauses. MLflow's would hold it for minutes, and say so on every try.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # stdout has our results
        self._client = MlflowClient(tracking_uri=uri)

    def __getattr__(self, name: str) -> Any:
        return partial(_called, getattr(self._client, name))


def _called(call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    try:
        return call(*arguments, **named)
    except MlflowException as error:
        text = str(error.message).partition("\n")[0][:LONGEST_SHOWN].rstrip(".")
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            raise ForgottenError(f"{text}.") from None
        if error.error_code == "RESOURCE_ALREADY_EXISTS":
            raise ExistsError(f"{text}.", remedy="Rename that experiment in MLflow.") from None
        if "must be in the 'active' state" in text:
            raise DeletedError(f"{text}.") from None
        if any(sign in text or sign == error.error_code for sign in _REFUSED):
            raise RefusedError(
                f"the server rejects the credentials: {text}.",
                remedy="Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN.",
            ) from None
        if error.error_code == "INVALID_PARAMETER_VALUE":
            raise InvalidError(f"{text}.") from None
        silent = _SILENT.search(str(error.message))
        raise AwayError(
            f"it does not answer: {silent[0]}." if silent else f"no usable answer: {text}."
        ) from None
