#!/usr/bin/env python3
"""Runs the tests of every crate, several suites at a time.

`cargo test` runs its programs one after another, and many of our tests wait for
servers, leases and clocks more than they compute. A suite is a module of a
crate's test program, in a process of its own.

Nothing is repeated: what fails, fails. To find out how often something fails,
`--hunt N` runs every suite N times and counts.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Each runs two tests at a time, and many of these run several servers.
AT_A_TIME = 2
# Crates whose tests only compute, in virtual time if in any: nothing in them waits, and
# nobody waits for them. They have what others leave over of the cores.
COMPUTES = [
    "client-core",
    "freshness-core",
    "history",
    "layout",
    "linked-sim",
    "linklet-core",
    "recovery",
    "sharder",
    "sim",
    "softnic-core",
    "store",
]
COMPUTING_AT_A_TIME = 2
ONLY_WHAT_IS_LEFT = ["chrt", "--idle", "0"]
# What takes longest begins first: nothing is left running alone at the end.
FIRST = [
    "crates/linked-sim test all seeds",
    "crates/trefoil test all controller",
    "crates/sim test all",
    "crates/store test all memory",
    "crates/bench lib",
    "crates/backend test memory",
    "crates/sharder lib",
    "crates/trefoil test all bench",
    "crates/trefoil test all failures",
    "crates/trefoil test all etcd",
]
# A bound for what hangs; of what has only what others leave, four times as much.
SUITE_S_MAX = 600
# Commands that servers do not need, and their tests.
FEATURES = ["--features", "trefoil/full"]


@dataclasses.dataclass
class Suite:
    """A module of a test program, or the examples in the documentation."""

    name: str
    command: list
    folder: pathlib.Path
    again: str

    def computes(self):
        return any(self.name.startswith(f"crates/{crate} ") for crate in COMPUTES)


@dataclasses.dataclass
class Result:
    suite: Suite
    good: bool
    passed: int
    failed: int
    skipped: int
    seconds: float
    # Of the processors, by its servers, too, as far as it has waited for their end.
    cpu_seconds: float
    output: str

    def failures(self):
        """What those that failed have printed; all, if the program broke down."""
        kept, is_success = [], False
        for line in self.output.splitlines():
            is_success = line == "successes:" or (is_success and line != "failures:")
            if not is_success:
                kept.append(line)
        return "\n".join(kept)

    def left_out(self):
        """What tests say that they did not do here, for want of a right or a tool."""
        return re.findall(r"^skipped\b.*$", self.output, re.M | re.I)


def programs(profile):
    """Builds the test programs; gives them as suites."""
    command = ["cargo", "test", "--profile", profile, "--workspace", *FEATURES, "--lib", "--bins", "--tests"]
    command += ["--locked", "--no-run", "--message-format", "json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            folder = pathlib.Path(message["manifest_path"]).parent
            target = message["target"]
            kind = target["kind"][0]
            crate = re.search(r"^name = \"(.*)\"", (folder / "Cargo.toml").read_text(), re.M)[1]
            select = {"lib": "--lib", "bin": f"--bin {target['name']}", "test": f"--test {target['name']}"}[kind]
            again = f"cargo test --profile {profile} -p {crate} {select}"
            if crate == "trefoil":
                again += " --features full"
            name = f"{folder.relative_to(ROOT)} {kind} {target['name']}"
            if kind == "test":
                yield from modules(name, message["executable"], folder, again)
            else:
                yield Suite(name, [message["executable"], "--show-output"], folder, again)


def modules(name, program, folder, again):
    """The modules of a crate's test program, each as a suite."""
    command = [program, "--list", "--format", "terse"]
    listed = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    tests = {}
    for test in re.findall(r"^(.*): test$", listed.stdout, re.M):
        module, inside, _ = test.partition("::")
        tests.setdefault(module if inside else "", []).append(test)
    for module, names in tests.items():
        part = f"{again} {module}::" if module else again
        yield Suite(f"{name} {module}".rstrip(), [program, "--show-output", "--exact", *names], folder, part)


def examples(profile):
    """The examples in the documentation, of the crates that have some."""
    for manifest in [*ROOT.glob("crates/*/Cargo.toml"), *ROOT.glob("examples/**/Cargo.toml")]:
        if "doctest = false" in manifest.read_text():
            for file in manifest.parent.glob("src/**/*.rs"):
                if has_example(file):
                    sys.exit(f"{file} has an example that nobody tests: {manifest} says `doctest = false`")
    command = ["cargo", "test", "--profile", profile, "--workspace", *FEATURES, "--doc", "--locked", "--quiet"]
    return Suite("documentation", command, ROOT, " ".join(command))


def has_example(file):
    # Every second fence closes; a block that is no Rust says what it is.
    fences = re.findall(r"^\s*//[/!] ```(.*)$", file.read_text(), re.M)
    return any(kind.split(",")[0] in ("", "rust", "no_run", "should_panic") for kind in fences[::2])


def run(suite):
    begin = time.monotonic()
    command = [*ONLY_WHAT_IS_LEFT, *suite.command] if suite.computes() else suite.command
    program = subprocess.Popen(
        command, cwd=suite.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    is_late = threading.Event()
    late = threading.Timer(SUITE_S_MAX * (4 if suite.computes() else 1), lambda: (is_late.set(), program.kill()))
    late.start()
    output = program.stdout.read().decode(errors="replace")
    _, status, used = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)
    late.cancel()
    good = program.returncode == 0
    if is_late.is_set():
        output, good = output + "\nnot done in time: killed", False
    counts = re.findall(r"^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored", output, re.M)
    passed, failed, skipped = (sum(int(count[at]) for count in counts) for at in range(3))
    # A program that broke down has not counted what failed.
    failed = failed if good else max(failed, 1)
    cpu_seconds = used.ru_utime + used.ru_stime
    return Result(suite, good, passed, failed, skipped, time.monotonic() - begin, cpu_seconds, output)


def report(result):
    """A line, and what was skipped; of what failed, what it printed and how to run it alone."""
    word = "ok" if result.good else "FAILED"
    tests = f"{result.passed} passed" + (f", {result.failed} failed" if result.failed else "")
    times = f"{result.seconds:6.1f} s  CPU {result.cpu_seconds:6.1f} s"
    print(f"{word:6} {times}  {result.suite.name}: {tests}", flush=True)
    for line in result.left_out():
        print(f"       {line}", flush=True)
    if not result.good:
        print(f"{result.failures()}\nalone: {result.suite.again}\n", flush=True)


def run_all(suites):
    """Runs and reports suites as they end."""
    executor = concurrent.futures.ThreadPoolExecutor
    with executor(AT_A_TIME) as pool, executor(COMPUTING_AT_A_TIME) as beside:
        under_way = [(beside if suite.computes() else pool).submit(run, suite) for suite in suites]
        for done in concurrent.futures.as_completed(under_way):
            report(done.result())
            yield done.result()


def close(results):
    """The last lines: what was run, and the names of what failed."""
    bad = [result for result in results if not result.good]
    passed, failed, skipped = (
        sum(getattr(result, count) for result in results) for count in ("passed", "failed", "skipped")
    )
    for result in bad:
        print(f"FAILED: {result.suite.name}")
    word = "FAILED" if bad else "ok"
    left_out = sum(len(result.left_out()) for result in results)
    if left_out:
        print(f"{left_out} tests, or parts of tests, said that they were skipped: see above")
    print(f"\ntest result: {word}. {len(results)} suites; {passed} passed; {failed} failed; {skipped} ignored")
    return 1 if bad else 0


def hunt(suites, count):
    """Runs every suite `count` times: how often each has failed."""
    failures = collections.Counter()
    for number in range(count):
        print(f"\n-- run {number + 1} of {count}", flush=True)
        failures.update(result.suite.name for result in run_all(suites) if not result.good)
    print(f"\n{len(suites)} suites, {count} runs of each")
    for name, bad in failures.most_common():
        print(f"{bad:4} of {count} failed: {name}")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", help="cargo's profile: tested, release")
    parser.add_argument("--hunt", type=int, metavar="N", help="run every suite N times and count the failures")
    parser.add_argument("--only", metavar="TEXT", help="only suites whose name contains this")
    parser.add_argument("--part", choices=["computes", "waits"], help="only those that compute, or the others")
    args = parser.parse_args()
    suites = list(programs(args.profile))
    if args.part != "computes":
        suites.append(examples(args.profile))
    suites = [suite for suite in suites if (args.only or "") in suite.name]
    if args.part:
        suites = [suite for suite in suites if suite.computes() == (args.part == "computes")]
    place = {name: number for number, name in enumerate(FIRST)}
    suites.sort(key=lambda suite: min((place[name] for name in place if suite.name.startswith(name)), default=len(place)))
    if not suites:
        sys.exit(f"no suite's name contains {args.only!r}")
    if args.hunt:
        return hunt(suites, args.hunt)
    return close(list(run_all(suites)))


if __name__ == "__main__":
    sys.exit(main())
