"""The bubble agent beside a daemon (`headrace worker --bubbles`): a process that lives as long as the daemon does.

The daemon holds a pipe to it and never writes: when the daemon ends, however it ends, the agent ends too. An agent
that ends by itself is restarted, after a wait that grows. So is one that was refused because another agent is
already running.
"""

import asyncio
import logging
import os
import sys
from contextlib import suppress
from typing import Final

from headrace_worker.backoff import Backoff

log = logging.getLogger(__name__)

STEADY_S: Final = 30.0
"""An agent that ran for this long had no trouble when it started."""
STOP_S: Final = 5.0


async def keep_bubble_agent() -> None:
    """Runs the agent until this task is cancelled, then ends it."""
    backoff = Backoff(cap_s=30.0)
    while True:
        began = asyncio.get_running_loop().time()
        code = await _run()
        if asyncio.get_running_loop().time() - began > STEADY_S:
            backoff.succeeded()
        log.warning("the bubble agent exited with status %d; restarting it", code)
        await backoff.wait()


async def _run() -> int:
    read_end, write_end = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.cli.tether", str(read_end), "bubble-agent"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(read_end,),
        )
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    try:
        return await process.wait()
    finally:
        os.close(write_end)  # which ends the agent
        if process.returncode is None:
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
