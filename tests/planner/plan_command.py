"""`headrace plan` in the process of the test."""

from typer.testing import CliRunner

from headrace_services.planner.command import plan


def run(*words: str) -> str:
    """What it prints to stdout. It must end well."""
    result = CliRunner().invoke(plan, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def said(*words: str) -> str:
    """What it prints, to stderr too."""
    result = CliRunner().invoke(plan, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
