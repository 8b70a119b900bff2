#!/usr/bin/env python3
"""Runs suites of real clients against targets, two at a time, and prints a table.

    run.py [--only SUITE]… [TARGET…]

Every suite gets servers of its own, so that none disturbs another's keys.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import servers

HERE = pathlib.Path(__file__).resolve().parent
# A bound for what hangs, above that of one of memcached's files.
SUITE_S_MAX = 600
AT_A_TIME = 2
# What makes a measuring suite a short check, and leaves out tests that sleep for long.
CHECKS_ONLY = {"YCSB_PEER": "", "YCSB_OPERATIONS": "8000", "PACKAGES_FAST": "1"}
ALL = servers.TARGETS
TREFOIL = ("serve", "gateway")


@dataclasses.dataclass
class Suite:
    """A command, run for each target; the last of its lines that match is its word."""

    name: str
    command: list
    closing: str
    targets: tuple = ALL
    # Whether the command starts servers by itself; it then gets the target's name.
    own_servers: bool = False
    # Measures: nothing runs beside it.
    alone: bool = False
    # Not with --checks-only.
    long: bool = False


# The long ones first.
SUITES = [
    Suite("memcached's t/*.t", ["memcached-t/run.py"], r"\d+ files, \d+ tests", own_servers=True),
    Suite("YCSB A B C D F", ["ycsb/run.py"], r"operations on", own_servers=True, alone=True),
    Suite("a backend killed", ["kill-backend/run.py"], r"killed ", ("gateway",), own_servers=True, alone=True),
    Suite("locks, servers die", ["locks/run.py"], r"^locks: ", ("memcached", "gateway"), own_servers=True),
    Suite("Django's, pymemcache", ["packages/run.py", "django-pymemcache"], r" wrong$"),
    Suite("Django's, pylibmc", ["packages/run.py", "django-pylibmc"], r" wrong$"),
    Suite("Django's, redis", ["packages/run.py", "django-redis"], r" wrong$"),
    Suite("dogpile's, pymemcache", ["packages/run.py", "dogpile-pymemcache"], r" wrong$"),
    Suite("dogpile's, pylibmc", ["packages/run.py", "dogpile-pylibmc"], r" wrong$"),
    Suite("dogpile's, redis", ["packages/run.py", "dogpile-redis"], r" wrong$"),
    Suite("redis-py's, locks", ["packages/run.py", "redis-py-locks"], r" wrong$", TREFOIL),
    Suite("redis-py's, commands", ["packages/run.py", "redis-py-commands"], r" wrong$", TREFOIL, long=True),
    Suite("phpredis', sessions", ["packages/run.py", "phpredis-sessions"], r" wrong$"),
    Suite("phpredis', the rest", ["packages/run.py", "phpredis-rest"], r" wrong$", TREFOIL, long=True),
    Suite("memccapable -a", ["memccapable/run.sh", "ascii"], r"\d+ checks"),
    Suite("memccapable -b", ["memccapable/run.sh", "binary"], r"\d+ checks"),
    Suite("pylibmc", ["python/run.sh", "pylibmc"], r"Ran \d+"),
    Suite("spymemcached", ["java/run.sh", "Spymemcached"], r"\d+ tests successful"),
    Suite("xmemcached", ["java/run.sh", "Xmemcached"], r"\d+ tests successful"),
    Suite("pymemcache", ["python/run.sh", "pymemcache"], r"Ran \d+"),
    Suite("gomemcache", ["go/run.sh", "Gomemcache"], r"^\d+ tests"),
    Suite("memjs", ["node/run.sh", "memjs"], r"^. (pass|fail) \d+"),
    Suite("dalli", ["ruby/run.sh", "dalli"], r"\d+ runs,"),
    Suite("redis-py", ["python/run.sh", "redis"], r"Ran \d+"),
    Suite("go-redis", ["go/run.sh", "Goredis"], r"^\d+ tests"),
    Suite("Jedis", ["java/run.sh", "Jedis"], r"\d+ tests successful"),
    Suite("ioredis", ["node/run.sh", "ioredis"], r"^. (pass|fail) \d+"),
    Suite("node-redis", ["node/run.sh", "noderedis"], r"^. (pass|fail) \d+"),
    Suite("go-redis' locks", ["go/run.sh", "Locks"], r"^\d+ tests"),
    Suite("Node's limiters", ["node/run.sh", "limits"], r"^. (pass|fail) \d+"),
    Suite("redis-cli", ["resp/run.sh", "cli"], r"^redis-cli: "),
    Suite("redis-benchmark", ["resp/run.sh", "benchmark"], r"requests per second", alone=True),
]


running = set()


@dataclasses.dataclass
class Result:
    suite: Suite
    target: str
    passed: bool
    seconds: float
    output: str

    def closing(self):
        lines = [line for line in self.output.splitlines() if re.search(self.suite.closing, line)]
        return re.sub(r"\s+", " ", ", ".join(lines[-2:])).strip("[ ]") if lines else "(nothing)"


def run(suite, target, checks_only):
    begin = time.monotonic()
    command = [str(HERE / suite.command[0]), *suite.command[1:]]
    starter = [sys.executable, str(HERE / "servers.py"), target]
    command = [*command, target] if suite.own_servers else [*starter, *command]
    # In a group of its own, to be ended with everything that it started.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=os.environ | (CHECKS_ONLY if checks_only else {}),
    )
    running.add(process)
    try:
        output, _ = process.communicate(timeout=SUITE_S_MAX)
        passed = process.returncode == 0
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        output += f"\nnot done after {SUITE_S_MAX} s: killed\n".encode()
        passed = False
    running.discard(process)
    output = output.decode(errors="replace")
    return Result(suite, target, passed, time.monotonic() - begin, output)


def end(*_):
    """Ended from outside: so is all that was started. Servers end with their starter."""
    for process in list(running):
        os.killpg(process.pid, signal.SIGTERM)
    os._exit(143)


def report(result):
    """At once what failed, with all it printed."""
    word = "ok" if result.passed else "FAILED"
    print(f"{word:6} {result.suite.name} / {result.target}: {result.closing()}", flush=True)
    if not result.passed:
        print(result.output, flush=True)


def table(results):
    width = max(len(result.suite.name) for result in results)
    print(f"\n{'suite':{width}}  {'target':9}  {'':6}  {'s':>5}  closing line")
    for result in sorted(results, key=lambda one: (SUITES.index(one.suite), ALL.index(one.target))):
        word = "pass" if result.passed else "FAIL"
        print(
            f"{result.suite.name:{width}}  {result.target:9}  {word:6}  "
            f"{result.seconds:5.1f}  {result.closing()}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="memcached, serve, gateway; or trefoil for the last two")
    parser.add_argument("--only", action="append", metavar="SUITE", help="part of a suite's name; may be repeated")
    parser.add_argument("--checks-only", action="store_true", help="measure nothing: shorter, and figures are not printed")
    options = parser.parse_args()
    targets = []
    for target in options.targets or ["memcached", "trefoil"]:
        if target not in (*ALL, "trefoil"):
            parser.error(f"no target {target!r}: memcached, serve, gateway or trefoil")
        targets += TREFOIL if target == "trefoil" else [target]
    wanted = [
        (suite, target)
        for suite in SUITES
        for target in dict.fromkeys(targets)
        if target in suite.targets
        and not (suite.long and options.checks_only)
        and (not options.only or any(part in suite.name for part in options.only))
    ]
    if not wanted:
        parser.error(f"no such suite; there are: {', '.join(suite.name for suite in SUITES)}")

    def needs_quiet(suite):
        """Where nothing is measured, those that measure may run beside others."""
        return suite.alone and not options.checks_only

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    results = []
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        runs = [
            pool.submit(run, suite, target, options.checks_only)
            for suite, target in wanted
            if not needs_quiet(suite)
        ]
        for done in concurrent.futures.as_completed(runs):
            results.append(done.result())
            report(results[-1])
    for suite, target in wanted:
        if needs_quiet(suite):
            results.append(run(suite, target, options.checks_only))
            report(results[-1])
    table(results)
    for result in results:
        if result.passed and result.suite.alone and not options.checks_only:
            print(f"\n{result.suite.name} / {result.target}\n{result.output.rstrip()}")
    failed = [result for result in results if not result.passed]
    print(f"\n{len(results)} runs of suites, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
