#!/bin/sh
# Starts a worker of docker-compose.yml: as root, with the few rights that it needs to run trials as the user `trials`,
# who has no access to the worker's files.
#
# Each container of the service takes the first free name: compose, compose-2, compose-3. A lock marks a name as taken,
# and ends with its container. So a new container gets the name, the home and the certificate of an earlier one, and
# needs no token.
set -eu
umask 077
cd "$HEADRACE_HOME"
[ "$(stat -c %u .)" = 0 ] || chown -R root:root . # of releases whose worker was not root
mkdir -p workers
chmod 711 . workers # trials pass through to the folders that are theirs

number=1
name=compose
exec 9>"workers/.$name"
until flock --nonblock 9; do
  number=$((number + 1))
  name=compose-$number
  exec 9>"workers/.$name"
done

umask 022
exec headrace worker --name "$name" --home "$PWD/workers/$name" \
  --join "@${HEADRACE_RUN:-/run/headrace}/joining/$name" --run-as trials "$@"
