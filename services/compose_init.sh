#!/bin/sh
# Makes what a cluster in containers needs to be closed: an authority, a password, the first token. Each in a volume of
# its own, so that nobody holds more than it uses. It runs at every `docker compose up`, and keeps what is there.
#
#     compose_init secrets    before the database: the authority, the servers' certificate, the passwords
#     compose_init token      once the database is there: the schema, and the first admin's token
#     compose_init join       once a scheduler serves: the token by which workers join
#
# What is written appears by a rename, so a run that is killed leaves nothing half done.
set -eu
umask 077
cd /run/headrace

put() { # FILE: what comes on standard input
  cat >"$1.new"
  [ -s "$1.new" ]
  mv "$1.new" "$1"
}

case $1 in
secrets)
  for file in secrets/password watching/password; do # the database's, and Grafana's
    [ -s "$file" ] || python3 -c 'import secrets; print(secrets.token_urlsafe(32), end="")' | put "$file"
  done
  printf '*:*:*:*:%s\n' "$(cat secrets/password)" | put secrets/pgpass
  hosts="scheduler-1 scheduler-2 planner localhost 127.0.0.1 ${HEADRACE_HOSTS:-}"
  # shellcheck disable=SC2086  # several hosts
  if [ ! -s authority/ca/ca.pem ]; then
    rm -rf authority/ca.new
    headrace ca init authority/ca.new $hosts
    mv authority/ca.new authority/ca
  elif [ "$(cat authority/hosts)" != "$hosts" ]; then
    headrace ca server authority/ca $hosts
  fi
  echo "$hosts" | put authority/hosts
  put serving/server.pem <authority/ca/server.pem
  put serving/server.key <authority/ca/server.key
  put serving/ca.pem <authority/ca/ca.pem
  put access/ca.pem <authority/ca/ca.pem
  put joining/ca.pem <authority/ca/ca.pem
  ;;
token)
  headrace migrate
  if [ ! -s access/token ]; then
    headrace token create --role admin --name compose --expires never | put access/token
  fi
  ;;
join)
  HEADRACE_TOKEN=$(cat access/token)
  export HEADRACE_TOKEN
  headrace worker-token create --uses 1000 --expires 30d | put joining/token
  ;;
*)
  echo "compose_init: secrets, token or join, not '$1'" >&2
  exit 2
  ;;
esac
