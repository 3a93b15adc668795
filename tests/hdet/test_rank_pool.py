"""The pool of ranks outlives a rank that dies."""

import pytest
from rank_pool import RankPool


def test_a_rank_that_dies_fails_its_call_and_the_next_one_has_a_new_pool() -> None:
    pool = RankPool(size=2)
    try:
        with pytest.raises(AssertionError, match=r"rank \d ended with 3 and gave no answer to os:_exit"):
            pool.run("os:_exit", status=3)
        before = pool.run("os:getpid")
        pool._processes[1].kill()
        pool._processes[1].join()
        assert set(before).isdisjoint(pool.run("os:getpid"))
    finally:
        pool.close()
