"""A study in the user's own process: the production core over rows in memory, without a server.

What is real: the core (`core.decide` and all below it), with its policies, its explanations and its reasons, and the
samplers. What is not: the database and its transactions (`simulator.cycle` answers the core from rows in memory), and
the process pool of the samplers (`proposing` asks the same learners here).

The study is one of ask and tell, and there is one caller: `headrace.optimize`. So one trial runs at a time, no lease
expires, and nothing is said twice. A proposal is made when the caller asks for it, from all results that there are.
"""

from headrace_services.scheduler.in_process.study import InProcessStudy

__all__ = ["InProcessStudy"]
