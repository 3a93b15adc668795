#!/usr/bin/env bash
# Run the tests; those that failed run once more, alone, when the others are done.
# The second run is a new process: no fixture, no service and no name of the first one is left in its way.
# usage: pytest.sh ARGUMENTS...   of pytest; `-n` counts for the first run.
set -euo pipefail
most=5  # more failures than this are no accident

cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
# A thread that waits for another one sleeps: spinning would take the core from those that work.
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

status=0
pytest -o cache_dir="$cache" "$@" || status=$?
[ "$status" = 1 ] || exit "$status"
case " $* " in
  *" -x "* | *" --exitfirst "* | *" --maxfail"*) exit "$status" ;;  # it stopped there: the others have not run
esac

failed=$(python -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' "$cache/v/cache/lastfailed")
if [ "$failed" -gt "$most" ]; then
  echo "pytest: $failed tests failed. Up to $most would run once more." >&2
  exit "$status"
fi
echo "pytest: the $failed that failed run once more, alone"
pytest -o cache_dir="$cache" "$@" -n 0 --last-failed --last-failed-no-failures none
