"""What a trial's process reports to its worker about the code that it runs: each source file of the study's
folder, once.

It reports before the function is called, and before a training report if more was imported since. So the worker
knows of a file before it gets a value that the file produced. Shipped code is already known.
"""

from collections.abc import Callable

from headrace import sources
from headrace.trial.line import Line, UnknownCallError
from headrace.v1 import event_pb2, runtime_pb2, spec_pb2


class CodeTeller:
    """Reports to the worker, on behalf of one lease or one bundle."""

    def __init__(self, line: Line, request: Callable[[], runtime_pb2.LoadedRequest]) -> None:
        """`request` creates a message that names the lease or the grant."""
        self._line = line
        self._request = request
        self._sources: sources.Sources | None = None
        self._untold: list[sources.SourceFile] = []

    def begin(self, template: spec_pb2.TrialTemplate) -> None:
        """The study is known: reports what was imported so far, and records later imports."""
        if template.working_dir and not template.code.digest:
            self._sources = sources.watch(template.working_dir)
            self._sources.again()
            self.tell()

    def tell(self) -> None:
        """Reports what was imported since the last call. Raises the errors of any call to the worker."""
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
            self._sources = None  # an older worker does not need this
        self._untold.clear()
