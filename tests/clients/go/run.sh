#!/usr/bin/env bash
# One Go client's tests: run.sh Gomemcache|Goredis
set -euo pipefail
cd "$(dirname "$0")"
cache=${CLIENTS_CACHE:-$PWD/../../../target/clients}
code=0
output=$("$cache/go/clients.test" -test.run "^Test$1" -test.timeout 120s -test.v 2>&1) || code=$?
grep -vE '^=== |^ +--- PASS' <<<"$output" || true
echo "$(grep -c -- '--- PASS' <<<"$output") tests passed, $(grep -c -- '--- FAIL' <<<"$output") failed"
exit "$code"
