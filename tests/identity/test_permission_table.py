"""The table of permissions against the descriptors: every method of every service has one, and none is left over."""

import pytest
from served import METHODS

from headrace.errors import PermissionDeniedError
from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.identity.gate import Gate, Identity
from headrace_services.identity.permissions import PERMISSIONS, Permission, may_give
from headrace_services.identity.roles import Role
from headrace_services.identity.tokens import Token, new_token


def test_every_method_has_a_permission_and_none_is_left_over() -> None:
    assert len(METHODS) >= 66
    assert set(PERMISSIONS) == set(METHODS), "a method needs a line in headrace_services.identity.permissions"


READS = ("Get", "List", "Watch", "Explain", "Preview", "Find", "Measure", "Read", "Plan", "Simulate")
"""The verbs of calls that only read."""


def expected(method: str, project: str) -> set[Role]:
    """Who in a project may call a method, by the method's name: written independently of the table."""
    operators = {Role.ADMIN} if project == DEFAULT_PROJECT else set()
    service, name = method.strip("/").split("/")
    match service.rpartition(".")[2]:
        case "StudyService" if name.endswith(("Worker", "Devices", "CleanUp")):
            return operators
        case "StudyService" | "PlannerService":
            return {Role.EDITOR, Role.ADMIN, *([Role.VIEWER] if name.startswith(READS) else [])}
        case "CodeService":
            return set() if name == "GetCode" else {Role.EDITOR, Role.ADMIN}
        case "ProjectService":
            return {Role.EDITOR, Role.ADMIN, Role.VIEWER} if name.startswith(READS) else operators
        case "JoinService":
            return {"Join": set(Role), "Renew": {Role.WORKER}}.get(name, operators)
        case "IdentityService":
            return set(Role) if name == "WhoAmI" else {Role.ADMIN}
        case "WorkerService":
            return {Role.WORKER}
        case "BubbleService" if name == "ShareProgress":
            return {Role.WORKER}
        case "Health" | "ServerReflection":
            return set(Role)
    return set()


class OneToken:
    """Knows one token."""

    def __init__(self, role: Role, project: str = "p") -> None:
        self._role = role
        self._project = project

    async def identify(self, token: Token) -> Identity:
        return Identity(project=self._project, role=self._role, token=token.id)


async def refusal(gate: Gate, method: str, header: list[tuple[str, str]]) -> PermissionDeniedError | None:
    try:
        await gate.admit(method, header)
    except PermissionDeniedError as error:
        return error
    return None


@pytest.mark.parametrize("project", ["p", DEFAULT_PROJECT])
@pytest.mark.parametrize("role", Role)
async def test_the_gate_lets_in_whom_it_should(role: Role, project: str) -> None:
    gate, header = Gate(OneToken(role, project)), [("authorization", f"Bearer {new_token().text}")]
    for method in METHODS:
        if role in expected(method, project):
            who = await gate.admit(method, header)
            assert who is None or who.role is role
            continue
        denied = await refusal(gate, method, header)
        assert denied is not None, f"{role.value} of project '{project}' may call {method}"
        name = method.rpartition("/")[2]
        assert f"the role {role.value} of project '{project}' may not call {name}" in str(denied)
        assert denied.remedy


async def test_a_method_that_is_not_in_the_table_is_refused_to_everybody() -> None:
    gate = Gate(OneToken(Role.ADMIN))
    with pytest.raises(PermissionDeniedError, match="may not call Erase"):
        await gate.admit("/headrace.v1.StudyService/Erase", [("authorization", f"Bearer {new_token().text}")])


def test_open_is_what_carries_its_own_secret_or_none() -> None:
    opened = {method for method, rule in PERMISSIONS.items() if rule.permission is Permission.OPEN}
    assert opened == {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/headrace.v1.JoinService/Join",  # its token is in the request
    }


@pytest.mark.parametrize(
    ("role", "project", "to_role", "to_project", "may"),
    [
        (Role.ADMIN, "p", Role.ADMIN, "p", True),
        (Role.ADMIN, "p", Role.VIEWER, "q", False),
        (Role.ADMIN, "p", Role.WORKER, "p", False),
        (Role.ADMIN, "default", Role.WORKER, "default", True),
        (Role.ADMIN, "default", Role.ADMIN, "p", True),
        (Role.EDITOR, "default", Role.VIEWER, "default", False),
        (Role.WORKER, "default", Role.WORKER, "default", False),
    ],
)
def test_whose_tokens_an_admin_may_give(
    role: Role, project: str, to_role: Role, to_project: str, may: bool
) -> None:
    assert may_give(role, project, to_role=to_role, to_project=to_project) is may
