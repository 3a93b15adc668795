"""The command line, `headrace`.

Every command is a plain function with typer annotations, in the module of its subject (`run`, `listings`, `why`,
`control`, ...), and `app` assembles them. Commands that start services come from the entry points
`headrace.commands` and are imported only when they are called. A command talks to the scheduler only through the
SDK, prints through `output`, and fails by raising a `HeadraceError`. `main` turns that into one line, a remedy
and an exit code (`failure`).
"""

import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command and exits."""
    # gRPC's own messages about a connection would appear between the lines of a live view.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from headrace.cli.app import build
    from headrace.cli.failure import FAILED, INTERRUPTED, exit_code, tell
    from headrace.errors import HeadraceError

    try:
        arguments = hoist_address(list(sys.argv[1:] if argv is None else argv))
        build(_command(arguments))(args=arguments, prog_name="headrace")
    except HeadraceError as error:
        tell(error)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader needs no more output (`headrace trials digits | head -3`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get("HEADRACE_DEBUG"):
            raise
        package = error.name if isinstance(error, ModuleNotFoundError) and error.name else "headrace"
        if package.startswith("headrace"):
            print(f"error: headrace itself failed: {type(error).__name__}: {error}", file=sys.stderr)
            print("Set HEADRACE_DEBUG=1 to see where, and please report it.", file=sys.stderr)
        else:
            from headrace.client.missing import MissingExtraError

            tell(MissingExtraError.of_package(package.partition(".")[0]))
        sys.exit(FAILED)


def hoist_address(arguments: list[str]) -> list[str]:
    """Allows `--address` after the command as well as before it."""
    from headrace.cli.failure import USAGE, CommandError

    hoisted: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word == "--address":
            value = next(words, None)
            if value is None:
                raise CommandError(
                    "--address has no value.", remedy="Give the scheduler's, as HOST:PORT.", code=USAGE
                )
            hoisted += [word, value]
        elif word.startswith("--address="):
            hoisted.append(word)
        else:
            rest.append(word)
    return hoisted + rest


def _command(arguments: list[str]) -> str | None:
    """The command's name: the first word that is not `--address` or its value."""
    skip = False
    for word in arguments:
        if skip or word.startswith("-"):
            skip = word == "--address"
        else:
            return word
    return None
