"""The batch script of a worker: the site's template with its placeholders filled in. Pure.

A template is a batch script with `#SBATCH` lines, whatever the site needs to set up (`module load`, `source
env/bin/activate`), and `{{worker}}` as the last line. The job's name, array, dependency, signal and time limit are
given to sbatch on its command line, which goes before `#SBATCH` lines.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.errors import InvalidFieldError, Violation
from headrace.launch.decision import Kind
from headrace.launch.options import worker_options

SIGNAL_S: Final = 90
"""How long before the job's time limit Slurm sends SIGTERM to the worker; up to a minute more."""
DRAIN_GRACE_S: Final = 60
"""How long trials have after that to save and leave. With the time to stop, it is less than `SIGNAL_S`."""
TOKEN_WAIT_S: Final = 600

DEFAULT: Final = """\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={{slots}}
{{worker}}
"""
DEFAULT_GPUS: Final = """\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gres=gpu:{{gpus}}
{{worker}}
"""
_PLACEHOLDER: Final = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_NAME: Final = 'slurm-"${SLURM_ARRAY_JOB_ID}-${SLURM_ARRAY_TASK_ID}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    """What each job runs."""

    scheduler: str
    store: str
    kind: Kind
    idle_exit: str
    lifetime: str | None = None
    tls_ca: str = ""
    tokens: str = ""
    """The folder where the job asks for its join token; empty: it joins without one."""
    pass_env: str = ""

    @property
    def lines(self) -> str:
        """Shell commands; the last one becomes the worker, so that Slurm's signals reach it."""
        shared = worker_options(
            scheduler=self.scheduler,
            store=self.store,
            kind=self.kind,
            idle_exit=self.idle_exit,
            lifetime=self.lifetime,
            pass_env=self.pass_env,
            drain_grace_s=DRAIN_GRACE_S,
        )
        trusted = (f"--tls-ca={self.tls_ca}",) if self.tls_ca else ()
        command = f'exec headrace worker --name {_NAME} --home "$home" {shlex.join((*shared, *trusted))}'
        if not self.tokens:
            return f"{_HOME}\n{command}"
        return f"{_HOME}\n" + _WAIT.format(
            ask=f"{shlex.quote(self.tokens)}/{_NAME}",
            wait_s=TOKEN_WAIT_S,
            command=f'{command} --join @"$ask.token"',
        )


# /tmp is everybody's: under a name that can be guessed, another user might have made the folder before.
_HOME: Final = f'home=$(mktemp -d "${{TMPDIR:-/tmp}}"/headrace-{_NAME}-XXXXXX) || exit 1'

_WAIT: Final = """\
umask 077
ask={ask}
if [ ! -d "${{ask%/*}}" ]; then
  echo "headrace: this node does not see ${{ask%/*}}. Give 'headrace launch slurm' a --folder that it sees." >&2
  exit 1
fi
rm -f "$ask".*  # left by an earlier start, if this job was requeued
: > "$ask.ask"  # `headrace launch slurm` answers with a join token for this worker alone
for _ in $(seq {wait_s}); do
  [ -s "$ask.token" ] && break
  sleep 1
done
rm -f "$ask.ask"
if [ ! -s "$ask.token" ]; then
  echo "headrace: no join token arrived within {wait_s} seconds. Is 'headrace launch slurm' running?" >&2
  exit 1
fi
{command}"""


def filled(template: str, worker: WorkerCommand, *, field: str = "--template") -> str:
    """The batch script. Raises InvalidFieldError that names the placeholders that are missing or unknown."""
    known: dict[str, str] = {"worker": worker.lines, "slots": str(worker.kind.slots)}
    required = ["worker"]
    if worker.kind.on_gpu:
        known["gpus"] = str(worker.kind.slots)
        required.append("gpus")
    found = [match[1] for match in _PLACEHOLDER.finditer(template)]
    problems = [*_missing(found, required, field), *_unknown(found, known, field)]
    if not template.startswith("#!"):
        problems.append(
            Violation(
                field=field,
                value=repr(template.partition("\n")[0][:40]),
                message="is no batch script: its first line is not an interpreter",
                remedy="Begin it with #!/bin/bash.",
            )
        )
    if problems:
        raise InvalidFieldError(problems)
    return _PLACEHOLDER.sub(lambda match: known[match[1]], template)


def _missing(found: list[str], required: list[str], field: str) -> list[Violation]:
    uses = {
        "worker": "Write it as the last line: it starts the worker.",
        "gpus": "Write it where the job requests GPUs, as in #SBATCH --gres=gpu:{{gpus}}.",
    }
    return [
        Violation(field=field, message=f"has no placeholder {{{{{name}}}}}", remedy=uses[name])
        for name in required
        if name not in found
    ]


def _unknown(found: list[str], known: Mapping[str, str], field: str) -> list[Violation]:
    return [
        Violation(
            field=field,
            value=f"{{{{{name}}}}}",
            message="has an unknown placeholder",
            remedy=f"It may use {', '.join(f'{{{{{one}}}}}' for one in known)}.",
        )
        for name in dict.fromkeys(found)
        if name not in known
    ]
