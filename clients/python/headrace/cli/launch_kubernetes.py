"""`headrace launch kubernetes`."""

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from headrace.cli import launching as shared
from headrace.cli.session import Session
from headrace.client import Client
from headrace.launch.decision import Kind
from headrace.launch.kubernetes import manifest
from headrace.launch.kubernetes.access import access
from headrace.launch.kubernetes.api import Api
from headrace.launch.kubernetes.engine import Kubernetes
from headrace.userfile import MIB, UserFile

_TEMPLATE = UserFile(largest_bytes=MIB, remedy="--template names a PodTemplate in YAML.")


def kubernetes(
    context: typer.Context,
    most: shared.Most,
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where checkpoints go: s3://BUCKET/PREFIX, or file:///DIR of a volume in your template.",
            show_default=False,
        ),
    ],
    name: shared.Name = "workers",
    gpus_per_worker: shared.Gpus = 0,
    cpu_slots: shared.CpuSlots = 0,
    label: shared.Labels = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="The workers' image, with Headrace and what trials need: the target `worker` of services/Dockerfile, "
            "or yours.",
            show_default=False,
        ),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your own PodTemplate in YAML instead of --image: resources, tolerations, volumes, environment. Its "
            "container `worker` gets the options of `headrace worker`.",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            help="Where the Jobs are. Default: that of the kubeconfig's context.", show_default=False
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Default: KUBECONFIG, or ~/.kube/config; in a pod its service account.",
            show_default=False,
        ),
    ] = None,
    kube_context: Annotated[
        str | None,
        typer.Option(
            "--context", help="A context of the kubeconfig. Default: its current one.", show_default=False
        ),
    ] = None,
    idle_exit: shared.IdleExit = "10m",
    lifetime: shared.Lifetime = None,
    scheduler: shared.Scheduler = None,
    pass_env: shared.PassEnv = None,
    interval: shared.Interval = "15s",
    once: shared.Once = False,
    dry_run: shared.DryRun = False,
) -> None:
    """Create Jobs in Kubernetes that run workers, while trials wait.

    Each worker is one Job with one pod, and has the pod's name. It exits when it has been idle for --idle-exit, and
    drains when its pod is evicted or deleted.

    Over TLS the command needs an admin's login: when a pod has a node, it creates a secret for it with a join token for
    this pod's worker alone. So it must keep running: see deploy/kubernetes/launch for a Deployment.

    [bold]Examples[/bold]

    headrace launch kubernetes --max 8 --gpus-per-worker 1 --image registry.example/worker:1 --store s3://bucket/x

    headrace launch kubernetes --max 8 --gpus-per-worker 4 --template pod.yaml --store s3://bucket/x --dry-run
    """
    session = Session.of(context)
    manifest.check_name(name)
    kind = shared.kind_of(gpus_per_worker, cpu_slots, label or [])
    turns = shared.Turns(kind=kind, most=most, interval=interval, once=once, dry_run=dry_run)
    shared.check_workers(idle_exit, lifetime, pass_env)
    pod = manifest.checked(_pod(image, template, kind), kind)
    api = Api(access(kubeconfig, kube_context), namespace or "")
    with session.client() as client:
        worker = _worker(client, scheduler, store, kind, idle_exit, lifetime or "", pass_env or "")
        if worker.tokens:
            manifest.check_token_is_readable(pod)
        shared.warn_of_loopback(session, worker.scheduler, "no pod")
        shared.drive(
            session,
            Kubernetes(api, pod, worker, launch=name, most=most),
            client=client,
            turns=turns,
        )


def _pod(image: str | None, template: Path | None, kind: Kind) -> Any:
    """The template of the pods, or one made for an image. Raises InvalidFieldError."""
    if (image is None) == (template is None):
        said = "are both missing" if image is None else "exclude each other"
        raise shared.refused("--image and --template", "", said, "Give one of them.")
    if image is not None:
        return manifest.default_template(image, kind)
    assert template is not None
    try:
        return yaml.safe_load(_TEMPLATE.text(template))
    except yaml.YAMLError as error:
        why = str(error).replace("\n", " ")
        raise shared.refused("--template", str(template), f"is not YAML: {why}", "Correct it.") from None


def _worker(
    client: Client,
    scheduler: str | None,
    store: str,
    kind: Kind,
    idle_exit: str,
    lifetime: str,
    pass_env: str,
) -> manifest.Worker:
    target = client.transport.target
    return manifest.Worker(
        scheduler=shared.scheduler_for(scheduler, target),
        store=store,
        kind=kind,
        idle_exit=idle_exit,
        lifetime=lifetime,
        tokens=target.tls,
        authority=shared.authority_of(target),
        pass_env=pass_env,
    )
