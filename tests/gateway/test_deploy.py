"""The files for deployment: well formed, and naming only metrics and options that exist."""

import configparser
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from anabranch.cli.app import app
from anabranch.gateway.telemetry import Metrics

yaml = pytest.importorskip("yaml")
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def known_metrics() -> set[str]:
    names = set()
    for family in Metrics().registry.collect():
        suffixes = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
        names |= {family.name + end for end in suffixes.get(family.type, ("",))}
    return names


def expressions() -> list[str]:
    board = json.loads((DEPLOY / "grafana/gateway.json").read_text())
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return shown + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def test_dashboards_and_alerts_name_metrics_that_exist() -> None:
    named = {name for text in expressions() for name in re.findall(r"anabranch_\w+", text)}
    assert named - known_metrics() == set()
    shown = {re.sub(r"_(total|bucket)$", "", name) for name in named}
    assert {family.name for family in Metrics().registry.collect()} - shown == set()


def test_brackets_close() -> None:
    for text in expressions():
        for pair in ("()", "{}", "[]"):
            assert text.count(pair[0]) == text.count(pair[1]), text


def serve_options() -> set[str]:
    command: Any = typer.main.get_command(app)
    options = command.commands["serve"].params
    return {name for one in options for name in (*one.opts, *one.secondary_opts)}


def test_commands_have_options_that_exist() -> None:
    used = set()
    for file in ("compose.yaml", "kubernetes/gateway.yaml", "anabranch.service", "Dockerfile"):
        text = (DEPLOY / file).read_text()
        part = text[text.index("serve") :]
        used |= set(
            re.findall(r"(?<![\w-])--(?:host|engine|tokenizer|max-[a-z]+|drain[a-z-]*)", part)
        )
    assert {"--engine", "--drain-seconds"} <= used <= serve_options()


def test_services_fit_together() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"vllm", "postgres", "gateway", "prometheus", "grafana"}
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert not source.startswith("./") or (DEPLOY / source).exists(), source
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "nothing is open to the world"
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert scraped["scrape_configs"][0]["static_configs"][0]["targets"] == ["gateway:8100"]


def test_kubernetes_manifests() -> None:
    kinds = {}
    for one in yaml.safe_load_all((DEPLOY / "kubernetes/gateway.yaml").read_text()):
        kinds[one["kind"]] = one["spec"]
    assert set(kinds) == {"Deployment", "Service", "PodDisruptionBudget"}
    pod = kinds["Deployment"]["template"]
    for spec in (kinds["Service"]["selector"], kinds["Deployment"]["selector"]["matchLabels"]):
        assert spec.items() <= pod["metadata"]["labels"].items()
    mounted = {m["name"] for m in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}


def test_unit() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "anabranch.service")
    assert unit["Service"]["ExecStart"].split()[1] == "serve"
    assert unit["Service"]["KillSignal"] == "SIGTERM"
