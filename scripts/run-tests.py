#!/usr/bin/env python3
"""Runs the tests of every crate, several suites at a time: run-tests.py PROFILE [NAMES]

`cargo test` runs its suites one after another, and many of ours wait for
servers, leases and clocks more than they compute. A very busy machine can make
such a suite give up: one or two that failed are repeated, once and alone, and
named in the file NAMES. What is broken fails again.
"""

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
REPEATED_MAX = 2
# A bound for what hangs.
SUITE_S_MAX = 600


@dataclasses.dataclass
class Suite:
    """A program of tests, or the examples in the documentation."""

    name: str
    command: list
    folder: pathlib.Path


@dataclasses.dataclass
class Result:
    suite: Suite
    good: bool
    passed: int
    failed: int
    skipped: int
    seconds: float
    output: str


def programs(profile):
    """Builds the test programs; gives them as suites."""
    command = ["cargo", "test", "--profile", profile, "--workspace", "--lib", "--bins", "--tests"]
    command += ["--locked", "--quiet", "--no-run", "--message-format", "json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            folder = pathlib.Path(message["manifest_path"]).parent
            target = message["target"]
            name = f"{folder.relative_to(ROOT)} {target['kind'][0]} {target['name']}"
            yield Suite(name, [message["executable"]], folder)


def examples(profile):
    """The examples in the documentation, of the crates that have some."""
    for manifest in [*ROOT.glob("crates/*/Cargo.toml"), *ROOT.glob("examples/**/Cargo.toml")]:
        if "doctest = false" in manifest.read_text():
            for file in manifest.parent.glob("src/**/*.rs"):
                if has_example(file):
                    sys.exit(f"{file} has an example that nobody tests: {manifest} says `doctest = false`")
    command = ["cargo", "test", "--profile", profile, "--doc", "--workspace", "--locked", "--quiet"]
    return Suite("documentation", command, ROOT)


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
    """A line; of what failed, all that it printed."""
    word = "ok" if result.good else "FAILED"
    tests = f"{result.passed} passed" + (f", {result.failed} failed" if result.failed else "")
    print(f"{word:6} {result.seconds:6.1f} s  {result.suite.name}: {tests}", flush=True)
    if not result.good:
        print(result.output, flush=True)


def main(profile, names=None):
    suites = [examples(profile), *programs(profile)]
    results = {}
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, suite) for suite in suites]):
            result = done.result()
            results[result.suite.name] = result
            report(result)
    bad = [result.suite for result in results.values() if not result.good]
    repeated = bad if len(bad) <= REPEATED_MAX else []
    for suite in repeated:
        print(f"\nfailed, and repeated alone: {suite.name}")
        results[suite.name] = run(suite)
        report(results[suite.name])
    if names:
        pathlib.Path(names).write_text("".join(f"{suite.name}\n" for suite in repeated))
    passed, failed, skipped = (
        sum(getattr(result, count) for result in results.values())
        for count in ("passed", "failed", "skipped")
    )
    print(f"\n{len(results)} suites\n{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
