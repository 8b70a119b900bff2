#!/usr/bin/env bash
# Installs what is missing of a compiler and of the servers named, by package:
# scripts/setup.sh [memcached] [redis] [postgres] [etcd] [tlc]. Does nothing, quickly,
# where everything is there already. Of tlc it brings what runs and fetches it.
set -euo pipefail

missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need cc build-essential
for server in "$@"; do
  case $server in
    memcached) need memcached memcached ;;
    redis) need redis-server redis-server ;;
    postgres)
      # Debian keeps the server's programs out of the path.
      compgen -G '/usr/lib/postgresql/*/bin/pg_ctl' >/dev/null || need pg_ctl postgresql
      ;;
    etcd)
      need etcd etcd-server
      need etcdctl etcd-client
      ;;
    tlc)
      need java default-jre-headless
      need mvn maven
      ;;
    *)
      echo "scripts/setup.sh: no server is called $server: memcached, redis, postgres, etcd, tlc" >&2
      exit 2
      ;;
  esac
done
if ((${#missing[@]})); then
  as_root=()
  [[ $(id -u) == 0 ]] || as_root=(sudo)
  echo "installing: ${missing[*]}" >&2
  # Benchmarks and tests start the servers themselves, on ports of their own:
  # RUNLEVEL keeps the packages from starting a service.
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
  "${as_root[@]}" apt-get update -q >&2
  "${as_root[@]}" env RUNLEVEL=1 apt-get install -qy --no-install-recommends "${missing[@]}" >&2
fi
command -v cargo >/dev/null || {
  echo "cargo is missing: install Rust 1.95 or newer with rustup" >&2
  exit 1
}
