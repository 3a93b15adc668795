"""What a trial's process tells its worker of the code that it runs: each source file of the study's folder, once.

It is told before the function is called, and before a report where more was imported since: so the worker knows of a
file before it hears of a value that the file made. Shipped code is known already.
"""

from collections.abc import Callable

from headrace import sources
from headrace.trial.line import Line, UnknownCallError
from headrace.v1 import event_pb2, runtime_pb2, spec_pb2


class CodeTeller:
    """Tells the worker, on behalf of one lease or one bundle."""

    def __init__(self, line: Line, request: Callable[[], runtime_pb2.LoadedRequest]) -> None:
        """`request` makes a message that names the lease or the grant."""
        self._line = line
        self._request = request
        self._sources: sources.Sources | None = None
        self._untold: list[sources.SourceFile] = []

    def begin(self, template: spec_pb2.TrialTemplate) -> None:
        """The study is known: tells what was imported until now, and notes what is from now on."""
        if template.working_dir and not template.code.digest:
            self._sources = sources.watch(template.working_dir)
            self.tell()

    def tell(self) -> None:
        """Tells what was imported since the last call. Raises what any call to the worker raises."""
        if self._sources is None:
            return
        self._untold += self._sources.new_files()
        if not self._untold:
            return
        request = self._request()
        request.files.extend(
            event_pb2.SourceFile(path=file.path, digest=file.digest) for file in self._untold
        )
        try:
            self._line.call(self._line.stub.Loaded, request)
        except UnknownCallError:
            self._sources = None  # an older worker asks for nothing of the kind
        self._untold.clear()
