"""A study in the user's own process: the production core over rows in memory, without a server.

The core is the real one (`core.decide` and everything below it), with its policies, explanations and reasons, and
so are the samplers. The database and its transactions are replaced (`simulator.cycle` answers the core from rows
in memory), and so is the process pool of the samplers (`proposing` calls the same learners here).

The study is an ask/tell study with one caller: `headrace.optimize`. So one trial runs at a time, no lease expires,
and no message is repeated. A proposal is made when the caller asks for it, from all results so far.
"""

from headrace_services.scheduler.in_process.study import InProcessStudy

__all__ = ["InProcessStudy"]
