#!/bin/sh
# Starts a worker of docker-compose.yml: as root, with the few rights by which it runs trials as the user `trials`, who
# reaches nothing of the worker's.
#
# Each container of the service takes the first name that no other one has: compose, compose-2, compose-3. A lock says
# which names are taken, and ends with its container. So a container that is made again has the name, the home and the
# certificate of one before it, and needs no token.
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
