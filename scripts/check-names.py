#!/usr/bin/env python3
"""What documentation names exists: files, commands, packages, options.

check-names.py [TREFOIL]: with a program built with all features, its
subcommands and options as well. Looks at Markdown, at comments of Rust, and at
scripts. Prose that nobody checks rots.
"""

import functools
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Under these, a path that is named has to be there.
TOP = "crates docs scripts dashboards examples packaging tests fuzz".split()
# What programs and people make, or what belongs to others.
MADE = re.compile(r"^(target|out|java|/|~|\$|http)|[*<>{}$…]|\bNAME\b|\bDIR\b|\bFILE\b")


def tracked(*endings):
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    for name in listed.stdout.split("\0"):
        if name.endswith(endings) and (ROOT / name).exists():
            yield pathlib.Path(name)


@functools.cache
def packages():
    """Manifests by package name."""
    found = {}
    for manifest in tracked("Cargo.toml"):
        data = tomllib.loads((ROOT / manifest).read_text())
        if "package" in data:
            found[data["package"]["name"]] = (manifest.parent, data)
    return found


def text_of(file):
    """What of a file is prose or commands: of Rust, the comments."""
    text = (ROOT / file).read_text()
    if file.suffix != ".rs":
        return text
    return "\n".join(match[1] for match in re.finditer(r"^\s*//[/!]? ?(.*)$", text, re.M))


def paths(file, text):
    """Paths that do not exist."""
    for match in re.finditer(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text if file.suffix == ".md" else ""):
        if not MADE.search(match[1]) and not (ROOT / file.parent / match[1]).exists():
            yield f"no file {match[1]}"
    # A file of a crate may be named from the crate's folder on.
    shape = rf"(?<![\w/.@-])((?:{'|'.join(TOP)}|[a-z][\w-]*/(?:src|tests|examples))/[\w./*-]*[\w/*])"
    for match in re.finditer(shape, text):
        name = match[1].rstrip(".")
        bases = [ROOT, ROOT / "crates", ROOT / "examples", ROOT / file.parent, *(p for p, _ in crates_above(file))]
        # Drawings leave the ending out.
        if not MADE.search(name) and not any((base / end).exists() for base in bases for end in (name, f"{name}.rs")):
            yield f"no file {name}"


def crates_above(file):
    for folder, data in packages().values():
        if folder in file.parents:
            yield ROOT / folder, data


def cargo(text):
    """Packages, examples, test programs and features that cargo does not know."""
    for match in re.finditer(r"cargo (?:\+nightly )?(?:build|run|test|clippy|miri)((?:[^\n`#&|;)\\]|\\\n)*)", text):
        words = match[1].replace("\\\n", " ").split()
        names = [after for word, after in zip(words, words[1:]) if word in ("-p", "--package")]
        for name in names:
            if not MADE.search(name) and name not in packages():
                yield f"no package {name}"
        chosen = [packages()[name] for name in names if name in packages()]
        for word, after in zip(words, words[1:]):
            if word in ("--example", "--test", "--bin") and chosen and not MADE.search(after):
                folders = {"--example": "examples", "--test": "tests", "--bin": "src/bin"}
                places = [ROOT / folder / folders[word] / after for folder, _ in chosen]
                if not any(p.with_suffix(".rs").exists() or (p / "main.rs").exists() for p in places):
                    yield f"cargo has no {word} {after} in {', '.join(names)}"
            if word == "--features" and not MADE.search(after):
                for feature in after.split(","):
                    package, _, feature = feature.rpartition("/")
                    owners = [packages()[package]] if package in packages() else chosen
                    if owners and not any(feature in data.get("features", {}) for _, data in owners):
                        yield f"no feature {feature}"


def make(text):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for name in re.findall(r"`make ([a-z-]+)`", text):
        if name not in targets:
            yield f"the Makefile has no {name}"


@functools.cache
def help_of(program, *words):
    """The long help of a subcommand; nothing if there is none."""
    done = subprocess.run([program, *words, "--help"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout if done.returncode == 0 else None


def commands(program, text):
    """Subcommands and options that the program does not have."""
    shape = r"(?:^|`|\$ |exec |\()trefoil ([a-z][^\n`#&|;)]*)"
    for match in re.finditer(shape, text, re.M):
        try:
            words = shlex.split(match[1])
        except ValueError:
            words = match[1].split()
        path, rest = [], words
        while rest and re.fullmatch(r"[a-z][a-z-]*", rest[0]) and "Commands:" in (help_of(program, *path) or ""):
            if not re.search(rf"^  {re.escape(rest[0])}\b", help_of(program, *path), re.M):
                # `cell backend` and its like are hidden.
                if help_of(program, *path, rest[0]) is None:
                    yield f"trefoil has no command {' '.join([*path, rest[0]])}"
                    break
            path, rest = [*path, rest[0]], rest[1:]
        else:
            known = help_of(program, *path) or ""
            for word in rest:
                option = re.match(r"--[a-z][a-z-]*", word)
                if option and not re.search(rf"{option[0]}\b(?!-)", known):
                    yield f"trefoil {' '.join(path)} has no option {option[0]}"


def map_of_crates():
    """Every folder of crates/ is a row of ARCHITECTURE's map, and the other way round."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = set(re.findall(r"^\| `([a-z-]+)` \| .* \| .* \|$", text, re.M))
    folders = {folder.name for folder in (ROOT / "crates").iterdir() if (folder / "Cargo.toml").exists()}
    for name in sorted(folders - rows):
        yield f"ARCHITECTURE.md: crates/{name} is on no map"


def test_programs():
    """One test program a crate; others say in the manifest why they are alone."""
    for folder, data in packages().values():
        declared = {test["name"] for test in data.get("test", [])}
        for file in [*(ROOT / folder).glob("tests/*.rs"), *(ROOT / folder).glob("tests/*/main.rs")]:
            name = file.parent.name if file.name == "main.rs" else file.stem
            if name != "all" and name not in declared and "fuzz" not in folder.parts:
                yield f"{file.relative_to(ROOT)}: make it a module of tests/all, or say in Cargo.toml why not"


def main(program=None):
    complaints = [*map_of_crates(), *test_programs()]
    for file in tracked(".md", ".rs", ".sh", ".py"):
        if file == pathlib.Path(__file__).relative_to(ROOT):
            continue
        text = text_of(file)
        found = [*paths(file, text), *cargo(text), *make(text)]
        if program and file.suffix == ".md":
            found += commands(program, text)
        complaints += [f"{file}: {what}" for what in found]
    for complaint in complaints:
        print(complaint)
    print(f"{len(complaints)} names of nothing")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
