"""`headrace plan` in the test's own process."""

from typer.testing import CliRunner

from headrace_services.planner.command import plan


def run(*words: str) -> str:
    """Run it and return its stdout. It must succeed."""
    result = CliRunner().invoke(plan, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def said(*words: str) -> str:
    """Run it and return its output, stderr included."""
    result = CliRunner().invoke(plan, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
