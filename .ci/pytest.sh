#!/usr/bin/env bash
# Run the tests; those that failed run once more, alone, when the others are done.
# The second run is a new process without any fixture, service or name of the first one. Tests that pass only then are
# printed and written to reruns.txt: they depend on time or on other tests, and need a fix.
# usage: pytest.sh ARGUMENTS...   of pytest; `-n` applies to the first run.
set -euo pipefail
most=5  # more failures than this are not accidental
list=reruns.txt

cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
# A thread that waits for another one sleeps: spinning would take the core from threads that work.
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

failed() {  # the tests that failed last, one a line
  python -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$cache/v/cache/lastfailed" | sed '/^$/d' | sort
}

status=0
pytest -o cache_dir="$cache" "$@" || status=$?
case "$status: $* " in
  "5: "*" --changed"*) echo "pytest: the change touches no test"; exit 0 ;;
esac
[ "$status" = 1 ] || exit "$status"
case " $* " in
  *" -x "* | *" --exitfirst "* | *" --maxfail"*) exit "$status" ;;  # it stopped there: the other tests have not run
esac

failed > "$cache/first"
count=$(wc -l < "$cache/first")
if [ "$count" = 0 ] || grep -qv :: "$cache/first"; then
  exit "$status"  # tests were not collected, so nothing has run
fi
if [ "$count" -gt "$most" ]; then
  echo "pytest: $count tests failed. Up to $most would run once more." >&2
  exit "$status"
fi
echo "pytest: the $count that failed run once more, alone"
status=0
pytest -o cache_dir="$cache" "$@" -n 0 --last-failed --last-failed-no-failures none || status=$?

failed > "$cache/second"
comm -23 "$cache/first" "$cache/second" > "$cache/passed"
if [ -s "$cache/passed" ]; then
  echo "pytest: passed only when run again, so there is a race to fix (kept in $list):"
  sed 's/^/  /' "$cache/passed"
  when="$(date -u +%FT%TZ) $(git rev-parse --short HEAD 2>/dev/null || echo '-') load $(cut -d' ' -f1 /proc/loadavg 2>/dev/null || echo '-')"
  sed "s|^|$when  |" "$cache/passed" >> "$list"
fi
exit "$status"
