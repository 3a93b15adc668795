"""Which variables of a worker's environment its trials get: those listed here, and those that somebody names.

A worker's environment often contains credentials: for the checkpoint store, for a database, for other services.
A trial runs a user's program, which may print its environment or send it elsewhere. So a trial gets the
variables in `PASSED`, those that the worker's operator names (`headrace worker --pass-env`), and those that its
study sets (`env` of the trial template). A listed name is left out if the name or the value looks like a secret.

What a batch system or a launcher told the worker about its own job is not passed either: `SLURM_*`, `PMIX_*`,
ranks of Open MPI. A training library would mistake the trial for a part of that job.

This keeps secrets out of logs and crash reports. It is not a security boundary: a trial runs as its worker's
user, unless the worker has `--run-as`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.errors import InvalidFieldError, Violation

NAMED_IN: Final = "HEADRACE_PASS_ENV"
"""Names more variables to pass, as `--pass-env` does."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Some variables that a trial gets. A name that ends with `*` stands for all names with that prefix."""

    names: str
    why: str


PASSED: Final = (
    Passed("PATH HOME USER LOGNAME SHELL TERM HOSTNAME TMPDIR TMP TEMP XDG_CACHE_HOME XDG_CONFIG_HOME "
           "XDG_DATA_HOME XDG_RUNTIME_DIR", "the user and the places for files"),
    Passed("LANG LANGUAGE LC_* TZ", "language and time zone"),
    Passed("PYTHON* VIRTUAL_ENV CONDA_* MAMBA_* PYENV_*", "the Python environment"),
    Passed("LD_LIBRARY_PATH LD_PRELOAD DYLD_* LIBRARY_PATH CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH CC CXX CFLAGS "
           "CXXFLAGS LDFLAGS MAX_JOBS", "libraries and compilers"),
    Passed("CUDA* CUDNN* CUBLAS* NVIDIA_* NVTE_* NVSHMEM_* ROCM* ROCR_* HIP_* HSA_* MIOPEN_* XPU_* ZE_* ONEAPI_* "
           "SYCL_*", "accelerators"),
    Passed("GRPC_* NCCL_* RCCL_* GLOO_* UCX_* UCC_* FI_* TP_SOCKET_IFNAME OMPI_MCA_*",
           "processes that talk to each other"),
    Passed("OMP_* GOMP_* KMP_* MKL_* OPENBLAS_* BLIS_* VECLIB_* NUMEXPR_* NUMBA_* MALLOC_*", "threads and memory"),
    Passed("TORCH* PYTORCH_* TRITON_* JAX_* XLA_* TF_* KERAS_* DS_* DEEPSPEED_* ACCELERATE_* HF_* HUGGINGFACE_* "
           "TRANSFORMERS_* DATASETS_* TOKENIZERS_* NLTK_DATA TFDS_* MPLBACKEND MPLCONFIGDIR",
           "training libraries and their caches"),
    Passed("HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy SSL_CERT_FILE "
           "SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE", "the way to the network"),
)  # fmt: skip

_SECRET_NAME: Final = re.compile(
    r"(^|_)(SECRETS?|TOKENS?|JWT|PASS|PASSWD|PASSWORDS?|CREDENTIALS?|(API|SECRET|ACCESS)?KEYS?)(_|$)|^TF_VAR_",
    re.I,
)
_SECRET_VALUE: Final = re.compile(r"://[^/@\s]+@")
"""An address that contains a user, a password or a token."""
_OF_SHELLS: Final = frozenset({"_", "PWD", "OLDPWD", "SHLVL"})
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")
_SHORTEST: Final = 4
"""A shorter name may occur in an error by chance."""


@dataclass(frozen=True, slots=True)
class Selection:
    """An environment, split into what is passed and what is not."""

    passed: Mapping[str, str]
    withheld: tuple[str, ...]
    """The names of variables that are not passed, without those that would mean nothing to a trial."""


def select(environ: Mapping[str, str], named: Iterable[str] = ()) -> Selection:
    """What a trial gets from an environment; `named` are further names, or prefixes with `*`, that are always
    passed.
    """
    asked_for = _matcher(named)
    passed, withheld = {}, []
    for name, value in environ.items():
        if name.startswith("HEADRACE_"):
            continue
        if asked_for.fullmatch(name) or (_LISTED.fullmatch(name) and not _is_secret(name, value)):
            passed[name] = value
        elif name not in _OF_SHELLS:
            withheld.append(name)
    return Selection(passed, tuple(sorted(withheld)))


def is_named(name: str, named: Iterable[str]) -> bool:
    """Whether a variable is among the further names to pass."""
    return bool(_matcher(named).fullmatch(name))


def names_to_pass(text: str | None, *, field: str = "--pass-env") -> tuple[str, ...]:
    """The names in `NAME,PREFIX*`, the value of `field`. Raises InvalidFieldError."""
    names = tuple(re.split(r"[,\s]+", text.strip(", \t\n"))) if text and text.strip(", \t\n") else ()
    for name in names:
        if not _NAME.fullmatch(name) or name.startswith("HEADRACE_"):
            reason = (
                "is not passed to trials" if name.startswith("HEADRACE_") else "is not the name of a variable"
            )
            remedy = "Write names, or beginnings of names with * after them, as in WANDB_API_KEY,AWS_*."
            raise InvalidFieldError([Violation(field=field, value=repr(name), message=reason, remedy=remedy)])
    return names


def hint(error: str, withheld: Iterable[str]) -> str:
    """A note to add to an error that names a variable which was not passed; empty for any other error."""
    for name in withheld:
        if len(name) >= _SHORTEST and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", error):
            return f" ({name} is set for the worker, and is not passed to trials: `headrace worker --pass-env {name}`)"
    return ""


def _is_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def _matcher(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in names) or r"(?!)", re.DOTALL)


_LISTED: Final = _matcher(name for row in PASSED for name in row.names.split())
