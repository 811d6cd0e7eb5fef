"""The manifest for Kubernetes' MPI Operator has the operator's fields, and fits together."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
import yaml
from support.places import ROOT, TESTS

from blinkrun.launcher.options import parse

MANIFEST = ROOT / "examples/kubernetes/mpijob.yaml"
SCHEMA = TESTS / "data/kubernetes/mpijob_v2beta1.json"


@pytest.fixture(scope="module")
def job() -> Any:
    return yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def schema() -> Any:
    found = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def containers(job: Any, kind: str) -> Any:
    return job["spec"]["mpiReplicaSpecs"][kind]["template"]["spec"]["containers"]


def test_it_has_the_operators_fields(job: Any, schema: Any) -> None:
    jsonschema.validate(job, schema, jsonschema.Draft202012Validator)


def misspelt(job: Any) -> None:
    job["spec"]["slotPerWorker"] = job["spec"].pop("slotsPerWorker")


def with_two_launchers(job: Any) -> None:
    job["spec"]["mpiReplicaSpecs"]["Launcher"]["replicas"] = 2


def without_launcher(job: Any) -> None:
    del job["spec"]["mpiReplicaSpecs"]["Launcher"]


def with_a_number_as_argument(job: Any) -> None:
    containers(job, "Launcher")[0]["args"].append(600)


def with_a_field_in_the_wrong_place(job: Any) -> None:
    job["spec"]["cleanPodPolicy"] = "Running"


def with_a_strange_amount(job: Any) -> None:
    containers(job, "Worker")[0]["resources"]["limits"]["memory"] = "32 GB"


@pytest.mark.parametrize(
    "break_it",
    [
        misspelt,
        with_two_launchers,
        without_launcher,
        with_a_number_as_argument,
        with_a_field_in_the_wrong_place,
        with_a_strange_amount,
    ],
)
def test_the_schema_refuses_mistakes(job: Any, schema: Any, break_it: Any) -> None:
    broken = copy.deepcopy(job)
    break_it(broken)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema, jsonschema.Draft202012Validator)


def test_its_command_is_one_that_blinkrun_takes(job: Any) -> None:
    (launcher,) = containers(job, "Launcher")
    assert launcher["command"] == ["blinkrun"]
    assert parse(launcher["args"]).program == ["train.py"]


def test_its_parts_name_each_other(job: Any) -> None:
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    (container,) = worker["containers"]
    volumes = {volume["name"] for volume in worker["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    rules = worker["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = rules[0]["labelSelector"]["matchLabels"]
    assert labels["training.kubeflow.org/job-name"] == job["metadata"]["name"]
    assert container["image"] == containers(job, "Launcher")[0]["image"]
