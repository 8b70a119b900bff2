#!/usr/bin/env bash
# Installs what is missing of a compiler and of the servers named, by package:
# scripts/setup.sh [memcached] [redis] [postgres] [etcd] [tlc] [rocksdb] [rdma]. Does nothing, quickly,
# where everything is there already. Of tlc it brings what runs and fetches it.
# memcached-1.6.45 and valkey-8.1.1 are built from their sources, into target/peers: they
# are newer than what Debian 12 has.
set -euo pipefail
cd "$(dirname "$0")/.."

as_root=()
[[ $(id -u) == 0 ]] || as_root=(sudo)

# fetched NAME SHA256 SHA1 PATH: a source archive of Debian's, by its path in the pool, taken
# apart to target/peers/NAME. The pool has it as long as a release has; the snapshots have it
# for good, by its SHA-1.
fetched() {
  local name=$1 sum=$2 sha1=$3 path=$4 archive
  archive=target/peers/$name.tar.xz
  mkdir -p "target/peers/$name"
  local get=(curl --silent --show-error --fail --location --output "$archive")
  "${get[@]}" "http://deb.debian.org/debian/pool/main/$path" ||
    "${get[@]}" "http://snapshot.debian.org/file/$sha1"
  echo "$sum  $archive" | sha256sum --check --quiet
  tar -xf "$archive" --strip-components=1 -C "target/peers/$name"
  rm "$archive"
}

# The library's headers without installing anything.
libevent() {
  [[ -f /usr/include/event.h ]] && return
  local folder=target/peers/libevent
  mkdir -p "$folder"
  # A fresh machine has no lists of packages.
  (cd "$folder" && apt-get download -q libevent-dev 2>/dev/null) || {
    "${as_root[@]}" apt-get update -q >&2
    (cd "$folder" && apt-get download -q libevent-dev)
  }
  (cd "$folder" && dpkg-deb -x libevent-dev_*.deb .)
}

# not_built NAME: says why, by the end of its log.
not_built() {
  echo "scripts/setup.sh: $1 cannot be built; the end of target/peers/$1.log:" >&2
  tail -n 20 "target/peers/$1.log" >&2
  exit 1
}

memcached_1_6_45() {
  local name=memcached-1.6.45 headers=$PWD/target/peers/libevent/usr
  [[ -x target/peers/$name/memcached ]] && return
  fetched "$name" c383a2ad8f973b627c3de472702f46ee33b402750de4fd2d25cef65a00140110 \
    9e75fc6c4b3ff3cef2fa1927aed75971d555ca04 m/memcached/memcached_1.6.45.orig.tar.xz
  libevent
  (cd "target/peers/$name" && CPPFLAGS=-I$headers/include \
    LDFLAGS="-L$headers/lib/$(uname -m)-linux-gnu" ./configure --quiet --disable-docs \
    --disable-dependency-tracking && make --silent memcached) >"target/peers/$name.log" 2>&1 ||
    not_built "$name"
}

valkey_8_1_1() {
  local name=valkey-8.1.1 built_in=src
  [[ -x target/peers/$name/$built_in/valkey-server ]] && return
  fetched "$name" d9bbd82eecb82f359e649a0007ad3dc1b47cc15afa626348ca86b73c4ae2c7ee \
    40f52feab50d74dc579abf6702429bbd080dce39 v/valkey/valkey_8.1.1+dfsg1.orig.tar.xz
  make --silent -C "target/peers/$name" BUILD_TLS=no >"target/peers/$name.log" 2>&1 ||
    not_built "$name"
}

missing=()
built=()
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
    rocksdb)
      # A library, which is loaded by whoever uses it.
      /sbin/ldconfig -p | grep 'librocksdb\.so' >/dev/null || missing+=(librocksdb7.8)
      ;;
    rdma)
      # What scripts/rdma-vm.sh makes a machine of, and the drivers for its devices.
      need qemu-system-x86_64 qemu-system-x86
      need busybox busybox-static
      need cpio cpio
      need xz xz-utils
      need ip iproute2
      compgen -G '/usr/lib/*-linux-gnu/libibverbs/librxe-*.so' >/dev/null || missing+=(ibverbs-providers)
      ;;
    memcached-1.6.45) built+=(memcached_1_6_45) ;;
    valkey-8.1.1) built+=(valkey_8_1_1) ;;
    *)
      echo "scripts/setup.sh: no server is called $server: memcached, memcached-1.6.45, redis," \
        "valkey-8.1.1, postgres, etcd, tlc, rocksdb, rdma" >&2
      exit 2
      ;;
  esac
done
if ((${#built[@]})); then
  need curl curl
  need make make
  need xz xz-utils
fi
if ((${#missing[@]})); then
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
for server in "${built[@]}"; do
  "$server"
done
