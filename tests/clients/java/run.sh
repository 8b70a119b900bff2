#!/usr/bin/env bash
# One Java client's tests: run.sh Spymemcached|Xmemcached|Jedis
set -euo pipefail
cd "$(dirname "$0")"
cache=${CLIENTS_CACHE:-$PWD/../../../target/clients}
build=$cache/java
classes=()
for file in "$build/classes/trefoil/$1"Test\$*Test.class; do
  file=${file##*/}
  classes+=(-c "trefoil.${file%.class}")
done
# A client may leave threads behind; the launcher ends with the tests all the same.
exec java -XX:TieredStopAtLevel=1 -Dnet.spy.log.LoggerImpl=net.spy.memcached.compat.log.SLF4JLogger \
  -cp "$build/classes:$build/lib/*" org.junit.platform.console.ConsoleLauncher execute \
  --config junit.jupiter.execution.timeout.default=30s \
  --disable-banner --disable-ansi-colors --details=summary --fail-if-no-tests "${classes[@]}"
