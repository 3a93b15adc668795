#!/bin/sh
# Starts like the official image: creates a database at the first start, then becomes the server, as the user postgres.
set -eu
if [ "$(id -u)" = 0 ]; then
  mkdir -p "$PGDATA"
  chown -R postgres /var/lib/postgresql
  cp -L "${POSTGRES_PASSWORD_FILE:-/dev/null}" /run/password 2>/dev/null && chown postgres /run/password
  exec setpriv --reuid=postgres --regid=postgres --clear-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  [ -z "${POSTGRES_PASSWORD_FILE:-}" ] || POSTGRES_PASSWORD=$(cat /run/password)
  : "${POSTGRES_PASSWORD:?is not given, nor POSTGRES_PASSWORD_FILE}"
  user=${POSTGRES_USER:-postgres} database=${POSTGRES_DB:-${POSTGRES_USER:-postgres}}
  hidden=$(mktemp)
  printf '%s\n' "$POSTGRES_PASSWORD" >"$hidden"
  initdb --username="$user" --pwfile="$hidden" --auth-local=trust --auth-host=scram-sha-256 >/dev/null
  rm "$hidden"
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  if [ "$database" != postgres ]; then
    pg_ctl -D "$PGDATA" -w -o "-c listen_addresses=''" start >/dev/null
    createdb --host=/tmp --username="$user" --maintenance-db=postgres "$database"
    pg_ctl -D "$PGDATA" -m fast -w stop >/dev/null
  fi
fi
exec "$@" -c listen_addresses='*'
