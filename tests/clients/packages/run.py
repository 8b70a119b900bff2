#!/usr/bin/env python3
"""The tests of a package that speaks to caches, as their authors wrote them.

    run.py SUITE [--fast]

runs them against MEMCACHED_ADDR and REDIS_ADDR (`servers.py` gives both), and holds
what failed against the suite's list, `left-out/PACKAGE.toml`: every test that fails
has to be on it, with a reason, and none that is on it may pass.

--fast does not run what is left out, and leaves out what is slow.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("CLIENTS_CACHE", HERE.parents[2] / "target" / "clients"))
PYTHON = CACHE / "python" / "bin" / "python"
TREFOIL = ("serve", "gateway")


def django(*classes):
    def run(sources, environment):
        command = ["runtests.py", "--settings=django_settings", "--parallel=1", "--verbosity=0"]
        command += [f"cache.tests.{name}" for name in classes]
        return command, sources / "django" / "tests", environment

    return "django", run


def pytest(package, *selection):
    """Files, and classes of files, of a package's `tests`."""

    def run(sources, environment):
        host, port = environment["REDIS_ADDR"].rsplit(":", 1)
        # Python's own form of tracebacks: for each of pytest's it parses the whole file again,
        # which takes minutes where hundreds fail as they are to.
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "record", "--tb=native"]
        command += ["--timeout=120", *[f"tests/{name}" for name in selection]]
        if package == "redis":
            command += [f"--redis-url=redis://{host}:{port}/0"]
        return command, sources / package, environment

    return package, run


def phpredis(which):
    """phpredis' own tests, by the runner beside this file."""

    def run(sources, environment):
        # Its sessions are those of further processes, for which it would look for a
        # build of its own unless told of arguments.
        environment = environment | {"TEST_PHP_ARGS": "--define display_errors=1"}
        return [str(HERE / "phpredis.php"), which], sources / "phpredis" / "tests", environment

    return "phpredis", run


def classes(file, *names):
    return [f"{file}::{name}" for name in names]


SUITES = {
    "django-pymemcache": django("PyMemcacheCacheTests"),
    "django-pylibmc": django("PyLibMCCacheTests"),
    "django-redis": django("RedisCacheTests"),
    "dogpile-pymemcache": pytest(
        "dogpile",
        *classes(
            "cache/test_memcached_backend.py",
            "PyMemcacheTest",
            "PyMemcacheSerializerTest",
            "PyMemcacheDistributedTest",
            "PyMemcacheDistributedMutexTest",
            "PyMemcacheDistributedMutexWithTimeoutTest",
        ),
    ),
    "dogpile-pylibmc": pytest(
        "dogpile",
        *classes(
            "cache/test_memcached_backend.py",
            "PylibmcTest",
            "PylibmcSerializerTest",
            "PylibmcDistributedTest",
            "PylibmcDistributedMutexTest",
        ),
    ),
    "dogpile-redis": pytest("dogpile", "cache/test_redis_backend.py"),
    "phpredis-sessions": phpredis("sessions"),
    "phpredis-rest": phpredis("rest"),
    "redis-py-commands": pytest("redis", "test_commands.py"),
    "redis-py-locks": pytest(
        "redis",
        "test_lock.py",
        "test_pipeline.py",
        "test_scripting.py",
        "test_encoding.py",
        "test_asyncio/test_lock.py",
        "test_asyncio/test_pipeline.py",
        "test_asyncio/test_scripting.py",
        "test_asyncio/test_encoding.py",
    ),
}


class LeftOut:
    """What a list says of one suite and target."""

    def __init__(self, package, suite, target, fast):
        path = HERE / "left-out" / f"{package}.toml"
        entries = tomllib.loads(path.read_text())
        unknown = set(entries) - {"fails", "not-run", "slow"}
        if unknown:
            sys.exit(f"{path}: {', '.join(unknown)}: there are fails, not-run, slow")
        self.fails = self._names(entries.get("fails", []), suite, target, path)
        self.not_run = self._names(entries.get("not-run", []), suite, target, path)
        if fast:
            self.not_run |= self._names(entries.get("slow", []), suite, target, path)
            self.not_run |= self.fails
            self.fails = set()

    @staticmethod
    def _names(entries, suite, target, path):
        names = set()
        for entry in entries:
            if not entry.get("reason"):
                sys.exit(f"{path}: an entry has no reason: {entry}")
            if target not in entry.get("targets", TREFOIL):
                continue
            if suite in entry.get("suites", [suite]):
                names |= set(entry["tests"])
        return names


def judge(record, left_out):
    """What is wrong, a line each."""
    ended = record["ended"]
    for name, how in sorted(ended.items()):
        if how == "failed" and name not in left_out.fails:
            yield f"{name} failed: {record['failed'][name]}"
    for name in sorted(left_out.fails):
        if ended.get(name) != "failed":
            how = ended.get(name, "there is no such test")
            yield f"{name} is on the list of those that fail, and: {how}"
    for name in sorted(left_out.not_run - set(record["unrun"])):
        yield f"{name} is on the list of those that are not run, and there is no such test"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--fast", action="store_true")
    options = parser.parse_args()
    package, make = SUITES[options.suite]
    target = os.environ["CLIENTS_TARGET"]
    fast = options.fast or bool(os.environ.get("PACKAGES_FAST"))
    left_out = LeftOut(package, options.suite, target, fast)
    with tempfile.TemporaryDirectory(prefix="trefoil-packages-") as folder:
        result = pathlib.Path(folder) / "record.json"
        environment = os.environ | {
            "RECORD": str(result),
            "NOT_RUN": json.dumps(sorted(left_out.not_run)),
            "PYTHONPATH": str(HERE),
            "DOGPILE_REDIS_PORT": os.environ["REDIS_ADDR"].rsplit(":", 1)[1],
            "DOGPILE_MEMCACHED_PORT": os.environ["MEMCACHED_ADDR"].rsplit(":", 1)[1],
        }
        command, home, environment = make(CACHE / "packages", environment)
        ran = subprocess.run(
            [*(["php"] if package == "phpredis" else [PYTHON, "-B"]), *command],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if not result.exists():
            sys.exit(f"the tests broke off with {ran.returncode}\n{ran.stdout.decode(errors='replace')}")
        record = json.loads(result.read_text())
    wrong = list(judge(record, left_out))
    if wrong:
        print(ran.stdout.decode(errors="replace"))
        print("\n".join(wrong))
    count = {how: sum(1 for one in record["ended"].values() if one == how) for how in ("passed", "skipped")}
    print(
        f"{count['passed']} tests passed, {count['skipped']} skipped by the suite, "
        f"{len(left_out.fails)} fail as listed, {len(record['unrun'])} not run, {len(wrong)} wrong"
    )
    return 1 if wrong or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
