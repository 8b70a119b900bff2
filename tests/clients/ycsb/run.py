#!/usr/bin/env python3
"""YCSB's workloads A, B, C, D and F against a target, beside memcached: run.py TARGET

YCSB_PEER names what it is measured beside, nothing if empty; YCSB_RECORDS and
YCSB_OPERATIONS say how much is done.

Fails on any operation that did not succeed. The clients are YCSB's threads
with spymemcached (java/src/main/java/trefoil/SpyDb.java).
"""

import contextlib
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import servers

CACHE = pathlib.Path(os.environ.get("CLIENTS_CACHE", servers.ROOT / "target" / "clients"))
RECORDS = int(os.environ.get("YCSB_RECORDS", 5_000))
OPERATIONS = int(os.environ.get("YCSB_OPERATIONS", 40_000))
PEER = os.environ.get("YCSB_PEER", "memcached")
THREADS = 8
# D inserts, so it comes last.
WORKLOADS = "abcfd"
RUN_S_MAX = 60


class Failed(Exception):
    pass


def ycsb(server, workload, *arguments):
    """Runs YCSB; gives its measurements by section and name."""
    command = [
        "java",
        "-XX:TieredStopAtLevel=1",
        "-Dnet.spy.log.LoggerImpl=net.spy.memcached.compat.log.SLF4JLogger",
        "-cp",
        f"{CACHE / 'java' / 'classes'}:{CACHE / 'java' / 'lib'}/*",
        "site.ycsb.Client",
        *("-db", "trefoil.SpyDb", "-threads", str(THREADS)),
        *("-P", str(HERE / "workloads" / "common.properties")),
        *("-P", str(HERE / "workloads" / f"{workload}.properties")),
        *("-p", f"recordcount={RECORDS}", "-p", f"operationcount={OPERATIONS}"),
        *arguments,
    ]
    try:
        done = subprocess.run(
            command,
            env=server.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
        )
    except subprocess.TimeoutExpired as late:
        raise Failed(f"workload {workload} on {server.target}: not done after {RUN_S_MAX} s\n"
                     f"{(late.stdout or b'').decode()}") from late
    found = {}
    for section, name, value in re.findall(r"^\[([^\]]+)\], ([^,]+), (\S+)$", done.stdout, re.M):
        found[section, name] = float(value)
    # YCSB ends with 0 whatever its operations came to.
    bad = [f"{section} {name}: {value:.0f}" for (section, name), value in found.items()
           if section.endswith("-FAILED") or name.startswith("Return=") and name != "Return=OK"]
    operations = RECORDS if "-load" in arguments else OPERATIONS
    done_well = sum(value for (section, name), value in found.items()
                    if name == "Return=OK" and section != "READ-MODIFY-WRITE")
    # A read-modify-write is a read and an update more.
    done_well -= found.get(("READ-MODIFY-WRITE", "Operations"), 0)
    if done.returncode != 0 or bad or done_well != operations:
        raise Failed(
            f"workload {workload} on {server.target}: exit code {done.returncode}, "
            f"{done_well:.0f} of {operations} operations succeeded; {', '.join(bad)}\n"
            f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
    return found


def line(server, workload, found):
    cells = [f"{workload.upper()}  {server.target:10} {found['OVERALL', 'Throughput(ops/sec)']:9,.0f} /s"]
    for section in ("READ", "UPDATE", "INSERT", "READ-MODIFY-WRITE"):
        if (section, "Operations") in found:
            p50, p99 = (found[section, f"{percentile}thPercentileLatency(us)"] for percentile in (50, 99))
            cells.append(f"{section.lower()} {p50:.0f} / {p99:.0f} µs")
    return "  ".join(cells)


def main(target):
    print(f"{RECORDS:,} records of 1,000 bytes, {OPERATIONS:,} operations, {THREADS} threads; p50 / p99")
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(servers.Servers(name)) for name in dict.fromkeys((target, PEER)) if name
        ]
        for server in running:
            ycsb(server, "a", "-load")
        for workload in WORKLOADS:
            for server in running:
                print(line(server, workload, ycsb(server, workload, "-t")), flush=True)
    print(f"{len(WORKLOADS) * OPERATIONS:,} operations on {target}, all succeeded")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        main(sys.argv[1])
    except (Failed, servers.StartFailed) as failure:
        print(failure)
        sys.exit(1)
