"""The JobSet manifest: held against the published schema (in compact form), and its names against each other."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ddaudit.errors import UsageProblem
from ddaudit.launch.kubernetes import PodJob, manifest
from tests.conftest import ddaudit

#: jobset.x-k8s.io/v1alpha2 and batch/v1, as far as the manifest uses them: every key that the API server knows there.
#: A trailing ``!`` marks a required key, a set the allowed words, a list an array of such items.
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
POD: dict[str, Any] = {
    "restartPolicy!": {"Never", "OnFailure"},
    "containers!": [
        {
            "name!": LABEL,
            "image!": str,
            "command": [str],
            "env": [{"name!": re.compile(r"[A-Za-z_][A-Za-z0-9_]*"), "value": str,
                     "valueFrom": {"fieldRef": {"fieldPath!": str}}}],
            "resources": {"limits": dict},
            "volumeMounts": [{"name!": LABEL, "mountPath!": re.compile(r"/.*")}],
        }
    ],
    "volumes": [
        {"name!": LABEL, "emptyDir": {"medium": {"", "Memory"}, "sizeLimit": re.compile(r"\d+[KMGT]i")},
         "persistentVolumeClaim": {"claimName!": str}}
    ],
}  # fmt: skip
JOB = {
    "completionMode": {"Indexed", "NonIndexed"},
    "completions": int,
    "parallelism": int,
    "backoffLimit": int,
    "podFailurePolicy": {
        "rules!": [
            {
                "action!": {"FailJob", "Ignore", "Count", "FailIndex"},
                "onExitCodes": {"containerName": LABEL, "operator!": {"In", "NotIn"}, "values!": [int]},
                "onPodConditions": [{"type!": str, "status!": {"True", "False", "Unknown"}}],
            }
        ]
    },
    "template!": {"spec!": POD},
}
JOBSET = {
    "apiVersion!": {"jobset.x-k8s.io/v1alpha2"},
    "kind!": {"JobSet"},
    "metadata!": {"name!": LABEL, "namespace": LABEL, "labels": dict},
    "spec!": {
        "network": {"enableDNSHostnames": bool, "subdomain": LABEL},
        "failurePolicy": {"maxRestarts": int},
        "replicatedJobs!": [{"name!": LABEL, "replicas": int, "template!": {"spec!": JOB}}],
    },
}


def wrong(value: Any, schema: Any, at: str = "") -> list[str]:
    """Where ``value`` does not fit the schema."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{at}: {value!r} is no object"]
        known = {key.rstrip("!"): inner for key, inner in schema.items()}
        missing = [f"{at}.{key[:-1]} is missing" for key in schema if key.endswith("!") and key[:-1] not in value]
        unknown = [f"{at}.{key} is not known" for key in value if key not in known]
        return missing + unknown + [w for k, v in value.items() if k in known for w in wrong(v, known[k], f"{at}.{k}")]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{at}: {value!r} is no list"]
        return [w for i, item in enumerate(value) for w in wrong(item, schema[0], f"{at}[{i}]")]
    if isinstance(schema, set):
        return [] if value in schema else [f"{at}: {value!r} is none of {schema}"]
    if isinstance(schema, re.Pattern):
        return [] if isinstance(value, str) and schema.fullmatch(value) else [f"{at}: {value!r}"]
    return [] if type(value) is schema else [f"{at}: {value!r} is no {schema.__name__}"]


JOB_ASKED = PodJob("audit", "registry/ddaudit:1", "smoke", 4, 8, 8, ("-P", "ranks=32"), "ml", "team", "runs")


def test_the_manifest_fits_the_published_schema():
    assert wrong(manifest(JOB_ASKED), JOBSET) == []
    assert wrong(manifest(PodJob("a", "i", "smoke", 1)), JOBSET) == []


def test_the_validator_sees_what_does_not_fit():
    broken = manifest(JOB_ASKED)
    broken["spec"]["replicatedJobs"][0]["template"]["spec"]["backofLimit"] = 0
    del broken["metadata"]["name"]
    assert wrong(broken, JOBSET) == [
        ".metadata.name is missing",
        ".spec.replicatedJobs[0].template.spec.backofLimit is not known",
    ]


def test_pods_meet_at_the_name_that_jobset_gives_the_first():
    job = manifest(JOB_ASKED)["spec"]["replicatedJobs"][0]
    container = job["template"]["spec"]["template"]["spec"]["containers"][0]
    head = f"audit-{job['name']}-0-0.audit"  # <jobset>-<job>-<job index>-<pod index>.<subdomain>
    variables = {e["name"]: e.get("value") for e in container["env"]}
    assert variables["MASTER_ADDR"] == head and variables["PET_RDZV_ENDPOINT"] == f"{head}:29400"
    assert f"{head}:29400" in container["command"] and "$(PET_NODE_RANK)" in container["command"]
    assert (variables["PET_NNODES"], variables["PET_NPROC_PER_NODE"]) == ("4", "8")


def test_our_verdicts_fail_the_job_at_once_and_an_eviction_does_not():
    job = manifest(JOB_ASKED)["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["backoffLimit"] == 0
    first, second = job["podFailurePolicy"]["rules"]
    assert first["action"] == "Ignore" and first["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert second["onExitCodes"]["values"] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["Audit", "-a", "a" * 60, "a b", ""])
def test_names_that_kubernetes_refuses_are_refused(name: str):
    with pytest.raises(UsageProblem):
        manifest(PodJob(name, "i", "smoke", 1))


def test_the_command_prints_the_manifest():
    done = ddaudit("submit", "k8s", "smoke", "--image", "i:1", "--nodes", "2", "--gpus-per-node", "4")
    assert done.returncode == 0
    assert wrong(json.loads(done.stdout), JOBSET) == []
