"""What is in `deploy/` agrees with the code: commands, ports, names, times; and with the schemas of what reads it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from perdure.cli.commands import make_app
from perdure.cli.stores import VARIABLE
from perdure.engine.engine import Settings
from perdure.records.durations import parse_duration
from perdure.server.auth import OPEN_PATHS
from perdure.server.serve import DRAIN_SECONDS
from perdure.telemetry.instruments import Histogram
from perdure.telemetry.metrics import ALL

DEPLOY = Path(__file__).parents[2] / "deploy"
YAML = sorted([*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.yml")])
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted(path for path in (DEPLOY / "kubernetes").glob("*.yaml") if path.name != "kustomization.yaml")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
IMAGE = f"perdure:{version('perdure')}"


def shown(path: Path) -> str:
    return path.relative_to(DEPLOY).as_posix()


def unit(path: Path) -> dict[str, list[str]]:
    """The settings of a unit, by name; several may have one name."""
    found: dict[str, list[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def manifests() -> list[dict[str, Any]]:
    return [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text("utf-8"))]


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [document for document in manifests() if document["kind"] in kinds]


def pods() -> list[dict[str, Any]]:
    return [document["spec"]["template"]["spec"] for document in of_kind("Deployment", "StatefulSet", "Job")]


def containers() -> list[dict[str, Any]]:
    return [container for pod in pods() for container in pod["containers"]]


def services(image: str = IMAGE) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in COMPOSE["services"].items() if service["image"] == image}


def commands() -> Iterator[list[str]]:
    """All commands of ours, without the program's name."""
    (command,) = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text("utf-8"), re.M)
    yield json.loads(command)
    yield from (service["command"] for service in services().values())
    yield from (container["args"] for container in containers())
    for path in UNITS:
        program, *words = shlex.split(unit(path)["ExecStart"][0].replace("%i", "7373"))
        assert program.endswith("/bin/perdure")
        yield words
    for line in re.findall(r"compose\.yaml run (.*)$", (DEPLOY / "compose.yaml").read_text("utf-8"), re.M):
        words = [word for word in line.split() if not word.startswith("--")][1:]
        yield words or COMPOSE["services"]["command"]["command"]


def option(command: list[str], name: str) -> str | None:
    return command[command.index(name) + 1] if name in command else None


def port_of(command: list[str]) -> int:
    health = option(command, "--health")
    return int(health.rpartition(":")[2] if health else option(command, "--port") or 7373)


# --- what the files say is understood


@pytest.mark.parametrize("path", YAML, ids=shown)
def test_yaml_is_yaml(path: Path) -> None:
    assert [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document]


@pytest.mark.parametrize("command", sorted({" ".join(each): each for each in commands()}.values()), ids=" ".join)
def test_commands_are_ours(command: list[str]) -> None:
    make_app().parse_args(command, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("document", manifests(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_manifests_fit_their_schemas(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_the_schemas_refuse_what_is_wrong() -> None:
    document = manifests()[0] | {"sepc": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
@pytest.mark.parametrize("path", UNITS, ids=shown)
def test_units_are_what_systemd_understands(path: Path, tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "perdure"
    (tmp_path / path.name).write_text(
        path.read_text("utf-8").replace("/opt/perdure/bin/perdure", str(program)), "utf-8"
    )
    instance = tmp_path / path.name.replace("@.", "@7373.")
    verified = ["systemd-analyze", "verify", "--man=no", str(instance)]
    done = subprocess.run(verified, check=False, capture_output=True, text=True, timeout=60)
    about_ours = [line for line in done.stderr.splitlines() if path.name.partition("@")[0] in line]
    assert (done.returncode, about_ours) == (0, [])


# --- names


def test_names_of_variables_are_those_of_the_code() -> None:
    known = set(re.findall(r"^\| `(PERDURE_\w+)`", _configuration(), re.M)) | {VARIABLE}
    named = {name for path in DEPLOY.rglob("*") if path.is_file() for name in _variables(path)}
    assert VARIABLE in named
    assert named <= known


def _configuration() -> str:
    return (DEPLOY.parent / "docs" / "reference" / "configuration.md").read_text("utf-8")


def _variables(path: Path) -> set[str]:
    return set(re.findall(r"\bPERDURE_[A-Z_]+\b", path.read_text("utf-8")))


def test_each_says_which_store() -> None:
    assert all(VARIABLE in service["environment"] for service in services().values())
    (secret,) = of_kind("Secret")
    assert list(secret["stringData"]) == [VARIABLE]
    names = {source["secretRef"]["name"] for container in containers() for source in container["envFrom"]}
    assert names == {secret["metadata"]["name"]}
    example = (DEPLOY / "systemd" / "perdure.env.example").read_text("utf-8")
    assert f"\n{VARIABLE}=postgresql://" in example
    assert all(unit(path)["EnvironmentFile"] == ["/etc/perdure/perdure.env"] for path in UNITS)


def test_there_is_one_image() -> None:
    assert {container["image"] for container in containers()} == {IMAGE}
    assert set(services()) == {"command", "server-1", "server-2", "worker-1", "worker-2"}
    (image,) = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text("utf-8"))["images"]
    assert f"{image['name']}:{image['newTag']}" == IMAGE
    made = (DEPLOY / "Dockerfile").read_text("utf-8")
    assert f"-t {IMAGE} " in made
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base) for base in re.findall(r"^FROM (\S+)", made, re.M))


def test_the_image_has_what_the_project_ships() -> None:
    made = (DEPLOY / "Dockerfile").read_text("utf-8")
    (extras,) = re.findall(r'install "\.\[([\w,]+)\]"', made)
    assert set(extras.split(",")) == {"postgres", "metrics", "telemetry"}
    let_in = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    copied = [
        name.removeprefix("./") for line in re.findall(r"^COPY ([^-].*) \S+$", made, re.M) for name in line.split()
    ]
    assert copied
    for name in copied:
        assert f"!{name}" in let_in
        assert (DEPLOY.parent / name).exists()


def test_kustomization_names_what_is_there() -> None:
    named = set(yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text("utf-8"))["resources"])
    assert named | {"secret.example.yaml", "migrate.yaml"} == {path.name for path in MANIFESTS}


def test_selectors_find_pods() -> None:
    labels = [document["spec"]["template"]["metadata"]["labels"] for document in of_kind("Deployment", "StatefulSet")]
    for document in of_kind("Deployment", "StatefulSet", "PodDisruptionBudget"):
        assert document["spec"]["selector"]["matchLabels"] in labels
    for service in of_kind("Service"):
        assert service["spec"]["selector"] in labels
    (workers,) = of_kind("StatefulSet")
    headless = [each["metadata"]["name"] for each in of_kind("Service") if each["spec"].get("clusterIP") == "None"]
    assert [workers["spec"]["serviceName"]] == headless


def test_every_container_is_an_ordinary_user_that_writes_to_its_volumes_only() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"]
        claimed = {each["metadata"]["name"] for each in of_kind("StatefulSet")[0]["spec"]["volumeClaimTemplates"]}
        there = {volume["name"] for volume in pod["volumes"]} | claimed
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= there
            assert "/var/lib/perdure" in {mount["mountPath"] for mount in container["volumeMounts"]}


# --- ports, probes, times


def test_probes_ask_what_is_answered() -> None:
    for container in containers():
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        assert set(ports.values()) <= {port_of(container["args"])}
        for probe in [value for name, value in container.items() if name.endswith("Probe")]:
            assert probe["httpGet"]["path"] in OPEN_PATHS
            assert ports[probe["httpGet"]["port"]] == port_of(container["args"])
    for service in services().values():
        if "healthcheck" in service:
            (port, path) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", " ".join(service["healthcheck"]["test"]))[0]
            assert (int(port), path in OPEN_PATHS) == (port_of(service["command"]), True)


def test_the_image_exposes_the_ports_in_use() -> None:
    (exposed,) = re.findall(r"^EXPOSE (.*)$", (DEPLOY / "Dockerfile").read_text("utf-8"), re.M)
    used = {port_of(command) for command in commands() if command[0] in ("serve", "worker")}
    assert used == {int(port) for port in exposed.split()}


def test_the_balancer_knows_the_servers() -> None:
    balancer = (DEPLOY / "Caddyfile").read_text("utf-8")
    servers = {
        f"{name}:{port_of(each['command'])}" for name, each in services().items() if each["command"][0] == "serve"
    }
    assert set(re.findall(r"\b[\w-]+:7373\b", balancer)) == servers
    assert re.findall(r"health_uri (\S+)", balancer) == ["/readyz"]
    assert "flush_interval -1" in balancer


def _grace(command: list[str]) -> float:
    """What a process takes at most to stop by itself, in seconds."""
    return Settings().drain + DRAIN_SECONDS if command[0] == "worker" else DRAIN_SECONDS


def test_nothing_is_killed_while_it_stops() -> None:
    for service in services().values():
        if service["command"][0] in ("serve", "worker"):
            assert parse_duration(service["stop_grace_period"]) / 1e6 > _grace(service["command"])
    for pod in pods():
        command = pod["containers"][0]["args"]
        if command[0] in ("serve", "worker"):
            (waited,) = (
                pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [0])[-1:]
            )
            assert pod["terminationGracePeriodSeconds"] > _grace(command) + int(waited)
    for path in UNITS:
        assert int(unit(path)["TimeoutStopSec"][0]) > _grace(shlex.split(unit(path)["ExecStart"][0])[1:])


def test_a_restart_of_a_worker_s_unit_leaves_its_processes_alone() -> None:
    (worker,) = [unit(path) for path in UNITS if "worker" in path.name]
    assert worker["KillMode"] == ["process"]
    assert worker["OOMPolicy"] == ["continue"]
    assert worker["ReadWritePaths"] == ["/tmp /var/tmp"]
    # These would be removed with the unit, under the processes that live on.
    assert not {"PrivateTmp", "RuntimeDirectory", "DynamicUser"} & set(worker)


def test_each_worker_has_a_folder_of_its_own() -> None:
    volumes = [tuple(each["volumes"]) for name, each in services().items() if name.startswith("worker")]
    assert len(set(volumes)) == len(volumes) > 1
    assert of_kind("StatefulSet")[0]["spec"]["volumeClaimTemplates"]


# --- what is watched


def _families() -> dict[str, set[str]]:
    """Names of series as Prometheus has them, with their labels."""
    found: dict[str, set[str]] = {}
    for instrument in ALL:
        ends = ("_bucket", "_count", "_sum") if isinstance(instrument, Histogram) else ("",)
        found |= {
            instrument.name + end: set(instrument.labels) | ({"le"} if end == "_bucket" else set()) for end in ends
        }
    return found


def _expressions() -> list[str]:
    rules = yaml.safe_load((DEPLOY / "monitoring" / "alerts.yml").read_text("utf-8"))
    board = json.loads((DEPLOY / "monitoring" / "grafana-dashboard.json").read_text("utf-8"))
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return alerts + [target["expr"] for panel in board["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("expression", _expressions())
def test_what_is_watched_is_there(expression: str) -> None:
    families = _families()
    named = set(re.findall(r"\bperdure_\w+\b", expression))
    assert named <= set(families)
    assert named or re.search(r"\b(up|process_\w+)\{", expression)
    labels = {label for name in named for label in families[name]} | {"instance", "job"}
    used = re.findall(r"by \(([\w, ]+)\)", expression) + re.findall(r"[{,](\w+)=", expression)
    assert {name.strip() for each in used for name in each.split(",")} <= labels


def test_prometheus_asks_servers_and_workers_where_they_are() -> None:
    jobs = yaml.safe_load((DEPLOY / "monitoring" / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    targets = {target for job in jobs for config in job["static_configs"] for target in config["targets"]}
    assert targets == {
        f"{name}:{port_of(each['command'])}"
        for name, each in services().items()
        if each["command"][0] in ("serve", "worker")
    }
    assert {job["metrics_path"] for job in jobs} == {"/metrics"}
