#!/bin/sh
# Makes what a cluster in containers needs for access control: an authority, passwords, tokens. Each is in a separate
# volume, so that no container holds more than it uses. It runs at every `docker compose up`, and keeps what exists.
#
#     compose_init secrets    before the database: the authority, the servers' certificates, the passwords
#     compose_init tokens     once the database is available: the schema, the first admin's token, the workers' join tokens
#
# Files are renamed into place when they are complete, so a run that is killed leaves nothing half done.
set -eu
umask 077
cd "${HEADRACE_RUN:-/run/headrace}"
here=$(dirname "$(readlink -f "$0")")

put() { # FILE: what comes on standard input
  cat >"$1.new"
  [ -s "$1.new" ]
  mv "$1.new" "$1"
}

drawn() { # FILE: a secret that nobody can guess, unless there is one
  [ -s "$1" ] || python3 -c 'import secrets; print(secrets.token_urlsafe(32), end="")' | put "$1"
}

certified() { # FOLDER HOST…: a certificate for a server, with a key of its own; a new one where its hosts are others
  folder=$1
  shift
  if [ ! -s "$folder/server.pem" ] || [ "$(cat "authority/hosts-$folder" 2>/dev/null)" != "$*" ]; then
    rm -rf authority/server.new
    headrace ca server authority/ca "$@" --to authority/server.new
    put "$folder/server.key" <authority/server.new/server.key
    put "$folder/server.pem" <authority/server.new/server.pem
    rm -r authority/server.new
    echo "$*" | put "authority/hosts-$folder"
  fi
}

case $1 in
secrets)
  drawn secrets/password # of the database's superuser
  printf '*:*:*:headrace:%s\n' "$(cat secrets/password)" | put secrets/pgpass
  drawn database/password # of the schedulers' role
  printf '*:*:*:scheduler:%s\n' "$(cat database/password)" | put database/pgpass
  drawn watching/password # of Grafana's admin
  drawn scraping/token
  chmod 444 scraping/token # Prometheus is nobody; its containers are the only ones where others reach the folder
  hosts="localhost 127.0.0.1 ${HEADRACE_HOSTS:-}"
  # shellcheck disable=SC2086  # several hosts
  if [ ! -s authority/ca/ca.pem ]; then
    rm -rf authority/ca.new
    headrace ca init authority/ca.new scheduler-1 scheduler-2 $hosts
    mv authority/ca.new authority/ca
  elif [ "$(cat authority/hosts)" != "scheduler-1 scheduler-2 $hosts" ]; then
    headrace ca server authority/ca scheduler-1 scheduler-2 $hosts
  fi
  echo "scheduler-1 scheduler-2 $hosts" | put authority/hosts
  # shellcheck disable=SC2086
  certified serving planner $hosts
  # shellcheck disable=SC2086
  certified watching grafana $hosts
  for folder in serving access joining trust; do
    put "$folder/ca.pem" <authority/ca/ca.pem
  done
  ;;
token)
  headrace migrate
  if [ ! -s access/token ]; then
    headrace token create --role admin --name compose --expires 30d | put access/token
  fi
  names=compose number=1
  while [ "$number" -lt "${HEADRACE_WORKERS:-8}" ]; do
    number=$((number + 1))
    names="$names compose-$number"
  done
  # shellcheck disable=SC2086  # several names
  python3 "$here/compose_join.py" joining $names
  ;;
*)
  echo "compose_init: secrets or token, not '$1'" >&2
  exit 2
  ;;
esac
