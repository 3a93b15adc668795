"""Makes the job of a Hydra program a trial: it attaches before the task function, and reports what that returns."""

from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from headrace.trial import script


class JobIsTrial(Callback):
    """Attaches to the trial of this process. A task function that has reported nothing reports what it returns: a
    number, or metrics by name.

    Hydra only warns of errors in callbacks, so these leave another way.
    """

    def on_job_start(self, *_: Any, **__: Any) -> None:
        """Attaches, and seeds the random generators before the task function runs."""
        try:
            script.current(argv=[])
        except Exception as error:
            raise SystemExit(f"headrace: {error}") from error

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:  # noqa: ARG002  # Hydra's
        """Reports the returned value. An error becomes the job's."""
        if job_return.status is not JobStatus.COMPLETED:
            return
        try:
            script.report_returned(job_return.return_value)
        except Exception as error:  # noqa: BLE001  # Hydra raises it as the job's
            job_return.status, job_return.return_value = JobStatus.FAILED, error
