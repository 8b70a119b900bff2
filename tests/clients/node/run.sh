#!/usr/bin/env bash
# One Node client's tests: run.sh memjs|ioredis|noderedis
set -euo pipefail
cd "$(dirname "$0")"
cache=${CLIENTS_CACHE:-$PWD/../../../target/clients}
# Modules are looked for beside the tests, and stand in the cache.
cp ./*.mjs "$cache/node/"
cd "$cache/node"
exec node --test --test-timeout=30000 --test-reporter=spec "$1.test.mjs"
