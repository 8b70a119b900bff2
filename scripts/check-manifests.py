#!/usr/bin/env python3
"""Holds the manifests in packaging/kubernetes against Kubernetes' schemas.

check-manifests.py [--set-up] [TREFOIL [SESSIONS]]: with the programs, the options
that containers give them as well. A dry run without a cluster: the schemas, with
every unknown field refused, come from the Python package kubernetes-validate, which
goes into target/manifests. `--set-up` only fetches it.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "packaging/kubernetes"
PLACE = ROOT / "target/manifests"
PACKAGE = "kubernetes-validate==1.37.0"
# The oldest that is looked at, and the newest that the package has.
RELEASES = ["1.30.0", "1.37.0"]


def set_up():
    """A Python that has the package; does nothing, quickly, where it is there."""
    python, done = PLACE / "bin/python", PLACE / "done"
    if not done.exists() or done.read_text() != PACKAGE:
        subprocess.run([sys.executable, "-m", "venv", "--clear", PLACE], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, PACKAGE], check=True)
        done.write_text(PACKAGE)
    return python


def documents():
    """Every object in the manifests, with the name of its file."""
    import yaml

    for file in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            yield file.name, document


def schema_faults(document):
    import kubernetes_validate

    for release in RELEASES:
        try:
            kubernetes_validate.validate(document, release, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"Kubernetes {release}: {'.'.join(map(str, error.path))}: {error.message}"


def containers(document):
    spec = document.get("spec", {}).get("template", {}).get("spec", {})
    for container in spec.get("containers", []):
        yield spec, container


def inner_faults(document):
    """What the schema does not see: names that have to be the same in two places."""
    kind, spec = document["kind"], document.get("spec", {})
    if kind in ("StatefulSet", "Deployment"):
        labels = spec["template"]["metadata"]["labels"]
        if spec["selector"]["matchLabels"].items() - labels.items():
            yield "its selector does not find its own pods"
    for pod, container in containers(document):
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if port is not None and port not in ports:
                yield f"{probe} asks port {port}, which the container does not have"
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                yield f"there is no volume {mount['name']}"
        known = {variable["name"] for variable in container.get("env", [])}
        for name in re.findall(r"\$\((\w+)\)", " ".join(container.get("args", []))):
            if name not in known:
                yield f"$({name}) is in no variable of the container"


def outer_faults(objects):
    """Selectors, budgets and services that find nothing."""
    pods = [o["spec"]["template"]["metadata"]["labels"] for o in objects if o["kind"] in ("StatefulSet", "Deployment")]
    services = {o["metadata"]["name"] for o in objects if o["kind"] == "Service"}
    for document in objects:
        kind, name, spec = document["kind"], document["metadata"]["name"], document["spec"]
        selector = spec.get("selector", {}) if kind == "Service" else spec.get("selector", {}).get("matchLabels", {})
        if not any(selector.items() <= labels.items() for labels in pods):
            yield f"{kind} {name}: its selector finds no pod"
        for expression in spec.get("podSelector", {}).get("matchExpressions", []):
            for value in expression["values"]:
                if not any(labels.get(expression["key"]) == value for labels in pods):
                    yield f"{kind} {name}: no pod has {expression['key']}={value}"
        if kind == "StatefulSet" and spec["serviceName"] not in services:
            yield f"{kind} {name}: there is no service {spec['serviceName']}"


def option_faults(document, programs):
    """Options that a program does not have."""
    for _, container in containers(document):
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
        for command in ([*container["command"], *container.get("args", [])], hook):
            program = programs.get(command[0]) if command else None
            if program is None:
                continue
            words = [word for word in command[1:] if not word.startswith("-")]
            known = subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True).stdout
            for option in command[1:]:
                name = option.split("=")[0]
                if name.startswith("--") and not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", known):
                    yield f"{' '.join([command[0], *words])} has no option {name}"


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--set-up"]
    python = set_up()
    if "--set-up" in sys.argv[1:]:
        return 0
    if pathlib.Path(sys.prefix).resolve() != PLACE.resolve():
        return subprocess.run([python, __file__, *arguments]).returncode
    programs = dict(zip(("trefoil", "sessions"), arguments))
    everything = list(documents())
    faults, objects = [], []
    for file, document in everything:
        # Kustomize's own file is none of the cluster's objects.
        if document["apiVersion"].startswith("kustomize."):
            named = set(document["resources"])
            there = {other for other, _ in everything if other != file}
            faults += [f"{file}: {name} is not there" for name in named - there]
            faults += [f"{file}: {name} is not named" for name in there - named]
            continue
        objects.append(document)
        what = f"{file}: {document['kind']} {document['metadata']['name']}"
        found = [*schema_faults(document), *inner_faults(document), *option_faults(document, programs)]
        faults += [f"{what}: {fault}" for fault in found]
    faults += outer_faults(objects)
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(objects)} objects held against Kubernetes {' and '.join(RELEASES)}: {len(faults)} faults")
    return 1 if faults or not objects else 0


if __name__ == "__main__":
    sys.exit(main())
