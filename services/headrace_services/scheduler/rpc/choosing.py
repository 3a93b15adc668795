"""The project of a call, if its caller may choose it: an admin whose token is not bound to a project."""

from collections.abc import Iterable
from dataclasses import replace

from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.spec.names import PROJECT
from headrace_services.identity.roles import Role
from headrace_services.scheduler.rpc.caller import Caller

HEADER = "headrace-project"


def in_chosen_project(who: Caller, metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller:
    """The caller, in the project that the call names. Raises InvalidFieldError if the call may not name another
    one."""
    wanted = next((value for key, value in metadata or () if key == HEADER), None)
    if wanted is None or wanted == who.project:
        return who
    name = wanted.decode(errors="replace") if isinstance(wanted, bytes) else wanted
    problem = PROJECT.problem(name, HEADER)
    if problem is not None:
        raise InvalidFieldError([problem.violation()])
    if who.token or who.role is not Role.ADMIN:
        raise InvalidFieldError(
            [
                Violation(
                    field=HEADER,
                    value=show_value(name),
                    message=f"is not the project of the caller's token, which is '{who.project}'",
                    remedy="Leave HEADRACE_PROJECT unset: the token says the project.",
                )
            ]
        )
    return replace(who, project=name)
