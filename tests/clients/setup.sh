#!/usr/bin/env bash
# Gets what the clients' tests need: Debian's packages by name where they are
# missing, everything else by its own package manager into target/clients.
# Does nothing, quickly, where everything is there already.
set -euo pipefail
cd "$(dirname "$0")"
cache=${CLIENTS_CACHE:-$PWD/../../target/clients}
mkdir -p "$cache/logs"
cache=$(cd "$cache" && pwd)

as_root=()
[[ $(id -u) == 0 ]] || as_root=(sudo)

packages() {
  local missing=()
  need() { command -v "$1" >/dev/null || missing+=("$2"); }
  need memcached memcached
  need redis-server redis-server
  need redis-cli redis-tools
  need memccapable libmemcached-tools
  need prove perl
  need ruby ruby
  { command -v php >/dev/null && php -m | grep -qx redis; } || missing+=(php-cli php-redis)
  { command -v ruby >/dev/null && ruby -e 'require "dalli"; require "minitest"' 2>/dev/null; } ||
    missing+=(ruby-dalli ruby-minitest)
  ((${#missing[@]})) || return 0
  echo "installing: ${missing[*]}"
  # RUNLEVEL keeps the packages from starting a service now.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -qy --no-install-recommends "${missing[@]}"
}

# unchanged NAME FILE…: whether NAME was set up from files with these contents.
# `done_with NAME` says so once it is.
unchanged() {
  local name=$1
  shift
  mkdir -p "$cache/$name"
  cat "$@" | sha256sum >"$cache/$name/.wanted"
  cmp -s "$cache/$name/.wanted" "$cache/$name/.done"
}

done_with() {
  mv "$cache/$1/.wanted" "$cache/$1/.done"
}

python_packages() {
  unchanged python python/requirements.txt && return
  python3 -m venv --clear "$cache/python"
  cat python/requirements.txt | sha256sum >"$cache/python/.wanted"
  "$cache/python/bin/pip" install --quiet --disable-pip-version-check --cache-dir "$cache/pip" \
    --requirement python/requirements.txt
  done_with python
}

# Tests that packages carry in their source archives: of those only the tests.
package_sources() {
  unchanged packages packages/sources.txt && return
  local folder=$cache/packages
  rm -rf "$folder"/{archives,django,dogpile,redis}
  mkdir -p "$folder"/{archives,django,dogpile,redis}
  python3 -m pip download --quiet --disable-pip-version-check --cache-dir "$cache/pip" --no-deps \
    --no-binary :all: --dest "$folder/archives" --requirement packages/sources.txt
  local name
  for name in django dogpile redis; do
    tar -xf "$folder/archives/$name"[-_]*.tar.gz --strip-components=1 -C "$folder/$name" \
      --wildcards '*/tests' '*/pyproject.toml' --no-wildcards-match-slash
  done
  rm -rf "$folder/archives"
  done_with packages
}

go_tests() {
  unchanged go go/*.go go/go.mod go/go.sum && return
  # Without cgo there is less of the standard library to compile, and nothing is
  # optimised: two thirds of the time. The modules' files can be removed like all
  # others of the target folder.
  (cd go && CGO_ENABLED=0 GOMODCACHE=$cache/go/modules GOCACHE=$cache/go/build \
    go test -modcacherw -vet=off -gcflags='all=-N -l' -c -o "$cache/go/clients.test" .)
  done_with go
}

java_classes() {
  local sources=(java/pom.xml java/src/main/java/trefoil/*.java)
  unchanged java "${sources[@]}" && return
  # Maven runs too shortly for the second compiler to pay.
  MAVEN_OPTS="${MAVEN_OPTS:-} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC" \
    mvn --batch-mode --quiet --no-transfer-progress -Dstyle.color=never -f java/pom.xml \
    -Dmaven.repo.local="$cache/maven" -Dclients.build="$cache/java" compile
  done_with java
}

node_modules() {
  unchanged node node/package.json node/package-lock.json && return
  cp node/package.json node/package-lock.json node/.npmrc "$cache/node/"
  (cd "$cache/node" && npm ci --silent --cache "$cache/npm")
  done_with node
}

# debian_source FOLDER PACKAGE: downloads the source of a package into FOLDER. It comes
# from where the machine gets its packages: the same sources, read as sources of source.
debian_source() {
  local apt=$cache/apt file
  local options=(-q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$apt/sources"
    -o Dir::State::Lists="$apt/lists" -o APT::Sandbox::User="$(id -un)")
  # Another package asked for them a moment ago.
  if ! [[ $(find "$apt/.updated" -mmin -60 2>/dev/null) ]]; then
    rm -rf "$apt"
    mkdir -p "$apt/sources" "$apt/lists/partial"
    for file in /etc/apt/sources.list.d/*.sources; do
      [[ -f $file ]] && sed 's/^Types:.*/Types: deb-src/' "$file" >"$apt/sources/${file##*/}"
    done
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
      [[ -f $file ]] && sed -n 's/^deb /deb-src /p' "$file" >"$apt/sources/${file##*/}.list"
    done
    apt-get "${options[@]}" update
    touch "$apt/.updated"
  fi
  rm -rf "$1"
  mkdir -p "$1"
  (cd "$1" && apt-get "${options[@]}" source --download-only "$2")
}

# memcached's own tests are in its source package.
memcached_source() {
  unchanged memcached-t memcached-t/list.txt && return
  local folder=$cache/memcached-t
  rm -rf "$folder/source"
  mkdir -p "$folder/source"
  debian_source "$folder/apt" memcached
  tar -xf "$folder"/apt/memcached_*.orig.tar.* --strip-components=1 -C "$folder/source"
  # The tests ask the program for its options, and decide by them what to look
  # at. This one has none: no TLS test build, no storage on disk, no proxy.
  printf '#!/bin/sh\nexit 0\n' >"$folder/source/memcached-debug"
  chmod +x "$folder/source/memcached-debug"
  rm -rf "$folder/apt"
  done_with memcached-t
}

# So are phpredis' own. They are of the version that the system has.
phpredis_source() {
  unchanged phpredis <(dpkg-query --show php-redis) && return
  local folder=$cache/phpredis
  rm -rf "$cache/packages/phpredis"
  mkdir -p "$cache/packages/phpredis"
  debian_source "$folder/apt" php-redis
  tar -xf "$folder"/apt/php-redis_*.orig.tar.* --strip-components=1 -C "$cache/packages/phpredis" \
    --wildcards 'redis-[5-9]*/tests/*'
  rm -rf "$folder/apt"
  done_with phpredis
}

# One step by its name. As a process of its own, because `set -e` has no effect
# inside a condition.
if (($#)); then
  "$1"
  exit
fi

# What a step prints is of interest only when it fails.
step() {
  local begin=$SECONDS
  if ! "./${0##*/}" "$1" >"$cache/logs/setup-$1.log" 2>&1; then
    echo "tests/clients/setup.sh: $1 failed:" >&2
    cat "$cache/logs/setup-$1.log" >&2
    return 1
  fi
  echo "$1: $((SECONDS - begin)) s"
}

step packages
# Two at a time: one processor is busy compiling Go while the other waits for
# downloads.
code=0
step go_tests &
compiling=$!
for name in python_packages package_sources node_modules memcached_source phpredis_source java_classes; do
  step "$name" || code=1
done
wait "$compiling" || code=1
exit "$code"
