"""`headrace launch`: workers from a cluster manager, while trials wait."""

import typer

from headrace.cli.launch_kubernetes import kubernetes
from headrace.cli.launch_ray import ray
from headrace.cli.launch_slurm import slurm

launch = typer.Typer(
    no_args_is_help=True,
    help="Get workers from a cluster manager while trials wait.",
)


@launch.callback()
def _group() -> None:
    """Get workers from a cluster manager while trials wait.

    Requests whole workers, never more than --max at once, and cancels none: workers leave by themselves when they are
    idle. The command keeps no state. Stop it, restart it, or run it twice: nothing is requested twice.
    """


launch.command("slurm")(slurm)
launch.command("kubernetes")(kubernetes)
launch.command("ray")(ray)
