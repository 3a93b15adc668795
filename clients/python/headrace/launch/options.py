"""The options of `headrace worker` that all launches give."""

from headrace.launch.decision import Kind


def worker_options(
    *,
    scheduler: str,
    store: str,
    kind: Kind,
    idle_exit: str,
    lifetime: str | None,
    pass_env: str,
    drain_grace_s: int,
) -> tuple[str, ...]:
    """One argument for each option. Empty values are left out."""
    given = {
        "--scheduler": scheduler,
        "--store": store,
        "--cpu-slots": "0" if kind.on_gpu else f"{kind.slots}",
        "--idle-exit": idle_exit,
        "--lifetime": lifetime,
        "--drain-grace": f"{drain_grace_s}",
        "--pass-env": pass_env,
    }
    labels = [f"--label={key}={value}" for key, value in kind.labels.items()]
    return (*(f"{name}={value}" for name, value in given.items() if value), *labels, "--ephemeral")
