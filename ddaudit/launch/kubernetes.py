"""A run as a Kubernetes JobSet: one pod a node, each an agent. Pure: names and numbers to a manifest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddaudit.errors import Exit, UsageProblem
from ddaudit.launch.place import PORT

__all__ = ["PodJob", "manifest"]

#: Kubernetes' rule for names that become host names (RFC 1123 label), less room for JobSet's own suffixes.
NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@dataclass(frozen=True)
class PodJob:
    """What is asked for. ``queue`` is a Kueue local queue; ``claim`` a volume claim that all pods share, or None."""

    name: str
    image: str
    runbook: str
    nodes: int
    gpus_per_node: int = 0
    ranks_per_node: int = 1
    arguments: Sequence[str] = ()
    namespace: str | None = None
    queue: str | None = None
    claim: str | None = None
    shm: str = "8Gi"


def manifest(job: PodJob) -> dict[str, Any]:
    """The JobSet (``jobset.x-k8s.io/v1alpha2``) as a JSON-ready object.

    One replicated job whose indexed pods are the nodes; pod 0 conducts and the others find it by the headless service
    that JobSet makes. A run that ends with one of our codes is an answer, so it is not tried again; a pod that was
    evicted does not count as one.

    Raises:
        UsageProblem: a name that Kubernetes would refuse.
    """
    if not NAME.fullmatch(job.name):
        raise UsageProblem(f"--name {job.name!r}", expected="lower-case letters, digits and dashes, at most 40")
    labels = {"app.kubernetes.io/name": "ddaudit"}
    if job.queue:
        labels["kueue.x-k8s.io/queue-name"] = job.queue
    metadata: dict[str, Any] = {"name": job.name, "labels": labels}
    if job.namespace:
        metadata["namespace"] = job.namespace
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": job.name},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": _indexed_job(job)}}],
        },
    }


def _indexed_job(job: PodJob) -> dict[str, Any]:
    answers = sorted(int(code) for code in (Exit.FAIL, Exit.USAGE, Exit.INCONCLUSIVE, Exit.INTERNAL))
    ends = {"containerName": "ddaudit", "operator": "In", "values": answers}
    return {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailJob", "onExitCodes": ends},
            ]
        },
        "template": {"spec": _pod(job)},
    }


def _pod(job: PodJob) -> dict[str, Any]:
    head = f"{job.name}-node-0-0.{job.name}"
    shared = {"name": "runs", "persistentVolumeClaim": {"claimName": job.claim}}
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": job.shm}}]
    volumes.append(shared if job.claim else {"name": "runs", "emptyDir": {}})
    words = ["ddaudit", "run", job.runbook, *job.arguments, "--out", "/runs"]
    words += ["--nnodes", str(job.nodes), "--nproc-per-node", str(job.ranks_per_node)]
    words += ["--node-rank", "$(PET_NODE_RANK)", "--rdzv-endpoint", f"{head}:{PORT}"]
    variables: dict[str, object] = {"PET_NNODES": job.nodes, "PET_NPROC_PER_NODE": job.ranks_per_node}
    variables |= {"PET_RDZV_ENDPOINT": f"{head}:{PORT}", "MASTER_ADDR": head, "MASTER_PORT": PORT}
    container: dict[str, Any] = {
        "name": "ddaudit",
        "image": job.image,
        "command": words,
        "env": [
            {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}},
            *({"name": name, "value": str(value)} for name, value in variables.items()),
        ],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "runs", "mountPath": "/runs"}],  # noqa: S108
    }
    if job.gpus_per_node:
        container["resources"] = {"limits": {"nvidia.com/gpu": job.gpus_per_node}}
    return {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
