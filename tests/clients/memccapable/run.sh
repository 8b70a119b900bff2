#!/usr/bin/env bash
# libmemcached's own check of a server's protocol: run.sh ascii|binary
set -euo pipefail
case $1 in
ascii) protocol=-a ;;
binary) protocol=-b ;;
*) echo "run.sh ascii|binary, not $1" >&2 && exit 2 ;;
esac
# It reports a failed check on its last line, not by its exit code alone.
output=$(memccapable -h "${MEMCACHED_ADDR%:*}" -p "${MEMCACHED_ADDR##*:}" -t 5 "$protocol" 2>&1) || code=$?
grep -v '\[pass\]$' <<<"$output" || true
if [[ ${code:-0} != 0 ]] || ! grep -qx 'All tests passed' <<<"$output"; then
  exit 1
fi
echo "$(grep -c '\[pass\]$' <<<"$output") checks, all passed"
