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
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
AT_A_TIME = 3
# What takes longest begins first: nothing is left running alone at the end.
FIRST = [
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
# A bound for what hangs.
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


@dataclasses.dataclass
class Result:
    suite: Suite
    good: bool
    passed: int
    failed: int
    skipped: int
    seconds: float
    output: str

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
    try:
        done = subprocess.run(
            suite.command,
            cwd=suite.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SUITE_S_MAX,
        )
        output, good = done.stdout, done.returncode == 0
    except subprocess.TimeoutExpired as late:
        output, good = (late.stdout or b"") + b"\nnot done in time: killed", False
    output = output.decode(errors="replace")
    counts = re.findall(r"^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored", output, re.M)
    passed, failed, skipped = (sum(int(count[at]) for count in counts) for at in range(3))
    # A program that broke down has not counted what failed.
    failed = failed if good else max(failed, 1)
    return Result(suite, good, passed, failed, skipped, time.monotonic() - begin, output)


def report(result):
    """A line, and what was skipped; of what failed, all that it printed and how to run it alone."""
    word = "ok" if result.good else "FAILED"
    tests = f"{result.passed} passed" + (f", {result.failed} failed" if result.failed else "")
    print(f"{word:6} {result.seconds:6.1f} s  {result.suite.name}: {tests}", flush=True)
    for line in result.left_out():
        print(f"       {line}", flush=True)
    if not result.good:
        print(f"{result.output}\nalone: {result.suite.again}\n", flush=True)


def run_all(suites):
    """Runs and reports suites as they end."""
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, suite) for suite in suites]):
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
    args = parser.parse_args()
    suites = [examples(args.profile), *programs(args.profile)]
    suites = [suite for suite in suites if (args.only or "") in suite.name]
    place = {name: number for number, name in enumerate(FIRST)}
    suites.sort(key=lambda suite: min((place[name] for name in place if suite.name.startswith(name)), default=len(place)))
    if not suites:
        sys.exit(f"no suite's name contains {args.only!r}")
    if args.hunt:
        return hunt(suites, args.hunt)
    return close(list(run_all(suites)))


if __name__ == "__main__":
    sys.exit(main())
