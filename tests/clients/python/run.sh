#!/usr/bin/env bash
# One Python client's tests: run.sh pymemcache|pylibmc|redis
set -euo pipefail
cd "$(dirname "$0")"
cache=${CLIENTS_CACHE:-$PWD/../../../target/clients}
exec "$cache/python/bin/python" -B -m unittest "test_$1"
