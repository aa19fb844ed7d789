"""Kubernetes resources of the pipelines, as a kustomize base, for `onefold kubernetes`.

All resources are derived from the declarations and the user's settings. They contain no secrets: each service reads its login
from a Secret of its own, created by the user. The command connects to no server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from onefold.config import redaction
from onefold.config.errors import UserError
from onefold.config.settings import PREFIX, Settings
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.pipelines import Pipeline
from onefold.processor import loading
from onefold.processor.io import topics

Resource = dict[str, Any]

#: The first line of each generated file. A file without this line belongs to the user, and is not replaced.
HEADER = "# Made by `onefold kubernetes`. Change it from an overlay: the next call writes this file anew.\n"
PROCESSOR_IMAGE, SINK_IMAGE = "onefold/processor", "onefold/sink"
# The user of the images, and the group of the Secrets and volumes.
_USER = 1000
_METRICS_PORT, _DASHBOARD_PORT = 9464, 8080
_SECRETS, _STATUS = "/etc/onefold", "/tmp/status.json"  # noqa: S108  # in the container, whose /tmp is its own
_HOME = "/var/lib/onefold"
_LABEL = "app.kubernetes.io"
# A label has at most 63 characters. Kubernetes appends eleven to the name of a StatefulSet.
_NAME_MAX = 52
# The settings for pods: addresses of servers, and the behaviour of pipelines. Logins and folders of this machine are excluded.
_SHARED = (
    *("bootstrap_servers", "partitions", "replication_factor", "min_insync_replicas", "replicas", "allow", "stall_s"),
    *(
        "session_timeout_s",
        "sink_interval_s",
        "job_timeout_s",
        "objects",
        "objects_endpoint",
        "state",
        "state_memory_mb",
    ),
    *("schema_registry_url", "metrics_hosts", "spark_master"),
)
# The CPU request, and the memory limit of docker-compose.yml.
_SIZES = {
    "processor": ("250m", "2Gi"),
    "worker": ("100m", "512Mi"),
    "sink": ("500m", "2560Mi"),
    "dashboard": ("100m", "256Mi"),
    "migrate": ("100m", "256Mi"),
    "verify": ("250m", "4Gi"),
}


@dataclass(frozen=True)
class Base:
    """The source of the resources.

    Attributes:
        pipelines: the pipelines to run.
        instances: processors of each pipeline without replicas.
        strimzi: the name of Strimzi's Kafka resource, for its topics; None: `onefold migrate` creates the topics.
    """

    settings: Settings
    pipelines: Sequence[Pipeline]
    instances: int = 2
    strimzi: str | None = None

    def files(self) -> dict[str, list[Resource]]:
        """The resources by file name.

        Raises:
            UserError: no Kafka is named.
            InvalidDeclaration: a pipeline with requested topics does not load.
        """
        files = {
            "migrate.yaml": [self._migrate()],
            "processors.yaml": [one for pipeline in self.pipelines for one in self._processor(pipeline)],
            "workers.yaml": [one for pipeline in self.pipelines if pipeline.jobs for one in self._worker(pipeline)],
            "sink.yaml": list(self._sink()),
            "verify.yaml": [_verify(pipeline) for pipeline in self.pipelines],
            "dashboard.yaml": list(self._dashboard()),
            "network.yaml": list(_network()),
        }
        files = {name: resources for name, resources in files.items() if resources}
        # Generated with a content hash in the name: pods restart after a change of a setting.
        variables = [f"{name}={value}" for name, value in self._variables().items()]
        files["kustomization.yaml"] = [{
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": sorted(files),
            "configMapGenerator": [{"name": "onefold", "literals": variables}],
        }]  # fmt: skip
        files |= _component("monitoring", "pods.yaml", [_monitor()])
        if self.strimzi:
            files |= _component("strimzi", "topics.yaml", list(self._topics()))
        return files

    def left_out(self) -> list[str]:
        """The user's variables that pods do not get: logins, and properties of this machine."""
        made = {name for name, value in self.settings.as_environment().items() if value}
        return sorted(made - {PREFIX + name.upper() for name in (*_SHARED, "sinks", "dashboard_hosts")})

    def _variables(self) -> dict[str, str]:
        """The variables for every pod. Raises UserError if no Kafka is named, or an address contains a password."""
        if not self.settings.bootstrap_servers:
            raise UserError(
                Code.SETTING_WRONG,
                f"{PREFIX}BOOTSTRAP_SERVERS is not set",
                "Set it to the Kafka that pods reach.",
                USAGE,
            )
        made = self.settings.as_environment()
        data = {name: made[name] for name in (PREFIX + one.upper() for one in _SHARED) if made.get(name)}
        for name, value in data.items():
            if redaction.address(value) != value:
                hint = f"Give the address without it here, and whole in a Secret: `onefold docs kubernetes`, {name}."
                raise UserError(
                    Code.SETTING_WRONG, f"{name} has a password in it, which every pod would see", hint, USAGE
                )
        return {
            **data,
            "ONEFOLD_KAFKA_OPTIONS_FILE": f"{_SECRETS}/kafka.json",
            "ONEFOLD_STATUS_FILE": _STATUS,
            "ONEFOLD_LOG_FORMAT": "json",
            "ONEFOLD_METRICS_PORT": str(_METRICS_PORT),
            "ONEFOLD_METRICS_HOST": "0.0.0.0",  # noqa: S104  # the pod's own network; the NetworkPolicy restricts access
        }

    def _migrate(self) -> Resource:
        """A Job: each deployment creates missing topics and tables. Services wait for them."""
        names = [pipeline.name for pipeline in self.pipelines]
        template = _pod("migrate", "migrate", "owner", ["onefold", "migrate", *names], PROCESSOR_IMAGE, database=True)
        template["spec"]["restartPolicy"] = "OnFailure"
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": _named("migrate", "migrate"),
            # A finished Job is immutable, and the next deployment has a new image.
            "spec": {"backoffLimit": 10, "ttlSecondsAfterFinished": 600, "template": template},
        }

    def _processor(self, pipeline: Pipeline) -> Iterable[Resource]:
        """A StatefulSet: the name of a pod is also the instance name, and both survive a restart."""
        name = _service("processor", pipeline)
        command = ["onefold", "process", pipeline.name, "--processes", "1"]
        template = _pod(name, "processor", "processor", command, PROCESSOR_IMAGE, database=False)
        replicas = self.settings.replicas_of(pipeline)
        return _stateful(name, "processor", template, replicas if replicas > 1 else self.instances, grace_s=40)

    def _worker(self, pipeline: Pipeline) -> Iterable[Resource]:
        """A StatefulSet. Without ONEFOLD_OBJECTS its volume holds the objects."""
        name = _service("worker", pipeline)
        template = _pod(name, "worker", "worker", ["onefold", "work", pipeline.name], PROCESSOR_IMAGE, database=True)
        return _stateful(name, "worker", template, 1, grace_s=60)

    def _sink(self) -> Iterable[Resource]:
        """A Deployment that includes Spark's driver. Two concurrent sinks are safe, so a new pod starts before the old pod
        ends.
        """
        names = [pipeline.name for pipeline in self.pipelines]
        template = _pod("sink", "sink", "sink", ["onefold", "sink", *names], SINK_IMAGE, database=True)
        _scratch(template, _HOME)
        _scratch(template, "/dev/shm", medium="Memory", sizeLimit="256Mi")  # noqa: S108  # the checkpoints of Spark
        if "spark_master" not in self.settings.model_fields_set:
            # The number of tasks fits the memory, independent of the node's cores.
            template["spec"]["containers"][0]["env"].append({"name": "ONEFOLD_SPARK_MASTER", "value": "local[2]"})
        template["spec"]["containers"][0]["env"].append({"name": "SPARK_LOCAL_DIRS", "value": "/tmp"})  # noqa: S108  # as above
        yield _deployment("sink", "sink", template, self.settings.sinks, grace_s=40)
        yield _budget("sink")

    def _dashboard(self) -> Iterable[Resource]:
        """The page, for the pods of its namespace. The page has no password: put a proxy with authentication before it."""
        command = ["onefold", "dashboard", "--host", "0.0.0.0", "--port", str(_DASHBOARD_PORT), "--expose"]  # noqa: S104  # as above
        template = _pod("dashboard", "dashboard", "dashboard", command, PROCESSOR_IMAGE, database=True)
        _scratch(template, _HOME)
        container = template["spec"]["containers"][0]
        hosts = ",".join(filter(None, ("dashboard", self.settings.dashboard_hosts)))
        container["env"].append({"name": "ONEFOLD_DASHBOARD_HOSTS", "value": hosts})
        container["ports"] = [{"name": "http", "containerPort": _DASHBOARD_PORT}]
        container["readinessProbe"] = {"tcpSocket": {"port": "http"}, "periodSeconds": 10}
        yield _deployment("dashboard", "dashboard", template, 1, grace_s=10)
        spec = {"selector": _labels("dashboard", "dashboard"), "ports": [_port("http", _DASHBOARD_PORT)]}
        yield {"apiVersion": "v1", "kind": "Service", "metadata": _named("dashboard", "dashboard"), "spec": spec}

    def _topics(self) -> Iterable[Resource]:
        """KafkaTopic resources, for clusters where only Strimzi creates topics. Pipelines may share a topic."""
        replication, partitions = self.settings.replication(), self.settings.partitions
        wanted: dict[str, topics.Described] = {}
        for pipeline in self.pipelines:
            topology, replicated = loading.load_topology(pipeline), self.settings.replicas_of(pipeline) > 1
            wanted |= topics.of_pipeline(topology, partitions, inputs=True, decisions=replicated)
            wanted |= topics.of_pauses(pipeline.name) | topics.of_replays(topology)
            for queue in pipeline.jobs:
                wanted |= topics.of_queue(queue, partitions)
        for topic, described in wanted.items():
            config = {**described.config, **replication.config}
            spec: Resource = {"topicName": topic, "partitions": described.partitions, "config": config}
            if replication.factor is not None:
                spec["replicas"] = replication.factor
            yield {
                # Strimzi has the API version v1 since 0.49, and only v1 since 1.0.
                "apiVersion": "kafka.strimzi.io/v1",
                "kind": "KafkaTopic",
                "metadata": {"name": _host(topic), "labels": {"strimzi.io/cluster": self.strimzi}},
                "spec": spec,
            }


def _verify(pipeline: Pipeline) -> Resource:
    """A suspended CronJob: `kubectl create job --from=cronjob/verify-runner NAME` starts a verification."""
    name = _service("verify", pipeline)
    template = _pod(name, "verify", "verifier", ["onefold", "verify", pipeline.name], PROCESSOR_IMAGE, database=True)
    template["spec"]["restartPolicy"] = "Never"
    _scratch(template, _HOME)
    job = {"spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": 86_400, "template": template}}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": _named(name, "verify"),
        "spec": {"schedule": "0 0 * * *", "suspend": True, "concurrencyPolicy": "Forbid", "jobTemplate": job},
    }


def _host(name: str) -> str:
    """A name for Kubernetes, without underscores and capital letters. A changed name gets a checksum suffix to keep different
    names different.
    """
    found = name.replace("_", "-").lower()
    return found if found == name else f"{found}-{crc32(name.encode()):08x}"


def _service(component: str, pipeline: Pipeline) -> str:
    """A service name that is short enough for Kubernetes labels."""
    found = f"{component}-{_host(pipeline.name)}"
    return found if len(found) <= _NAME_MAX else f"{found[: _NAME_MAX - 9]}-{crc32(found.encode()):08x}"


def _named(name: str, component: str) -> Resource:
    return {"name": name, "labels": _labels(name, component)}


def _labels(name: str, component: str) -> dict[str, str]:
    return {f"{_LABEL}/part-of": "onefold", f"{_LABEL}/component": component, f"{_LABEL}/name": name}


def _pod(name: str, component: str, login: str, command: list[str], image: str, *, database: bool) -> Resource:
    """The template of a pod. `login`: the suffix of its Secret, `onefold-<login>`. `database`: whether the pod also gets the
    address of PostgreSQL.
    """
    cpu, memory = _SIZES[component]
    env = [{"name": "ONEFOLD_POSTGRES_DSN_FILE", "value": f"{_SECRETS}/dsn"}] if database else []
    container: Resource = {
        "name": component,
        "image": image,
        "command": command,
        "envFrom": [
            {"configMapRef": {"name": "onefold"}},
            # For secret variables, for example AWS_SECRET_ACCESS_KEY.
            {"secretRef": {"name": f"onefold-{login}-env", "optional": True}},
        ],
        "env": env,
        "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "secrets", "mountPath": _SECRETS, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # as above
        ],
    }
    if component in {"processor", "worker", "sink"}:
        container |= _probes()
        container["ports"] = [{"name": "metrics", "containerPort": _METRICS_PORT}]
    security = {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "fsGroup": _USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "metadata": {"labels": _labels(name, component)},
        "spec": {
            "automountServiceAccountToken": False,
            # Else a Service named onefold-dashboard (with a name prefix) would set ONEFOLD_DASHBOARD_PORT in the pods.
            "enableServiceLinks": False,
            "securityContext": security,
            "containers": [container],
            "volumes": [
                {"name": "secrets", "secret": {"secretName": f"onefold-{login}", "defaultMode": 0o440}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }


def _probes() -> Resource:
    """Probes of a service. Startup and liveness: any response passes, because Kubernetes must not kill a service that waits for
    Kafka or restores its state. A hanging service ends its own process. Readiness: the service makes progress. Kubernetes calls
    the pod's address, and services accept requests there.
    """
    answers = {"httpGet": {"path": "/livez", "port": "metrics"}, "timeoutSeconds": 10}
    well = {"httpGet": {"path": "/healthz", "port": "metrics"}, "timeoutSeconds": 5}
    return {
        "startupProbe": {**answers, "periodSeconds": 5, "failureThreshold": 60},
        "livenessProbe": {**answers, "periodSeconds": 20, "failureThreshold": 6},
        "readinessProbe": {**well, "periodSeconds": 10, "failureThreshold": 3},
    }


def _scratch(template: Resource, path: str, **options: str) -> None:
    """A folder that may be empty after each start of a pod."""
    name = path.strip("/").replace("/", "-")
    template["spec"]["volumes"].append({"name": name, "emptyDir": options})
    template["spec"]["containers"][0]["volumeMounts"].append({"name": name, "mountPath": path})


def _stateful(name: str, component: str, template: Resource, replicas: int, grace_s: int) -> Iterable[Resource]:
    """A StatefulSet with a volume for each pod, for the data directory."""
    template["spec"]["containers"][0]["volumeMounts"].append({"name": "home", "mountPath": _HOME})
    size = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}
    template["spec"]["terminationGracePeriodSeconds"] = grace_s
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _named(name, component),
        "spec": {"clusterIP": "None", "selector": _labels(name, component), "ports": [_port("metrics", _METRICS_PORT)]},
    }
    yield {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _named(name, component),
        "spec": {
            "serviceName": name,
            "replicas": replicas,
            # Instances do not wait for each other, and take over from each other.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": _labels(name, component)},
            "template": template,
            "volumeClaimTemplates": [{"metadata": {"name": "home"}, "spec": size}],
        },
    }
    yield _budget(name)


def _deployment(name: str, component: str, template: Resource, replicas: int, grace_s: int) -> Resource:
    template["spec"]["terminationGracePeriodSeconds"] = grace_s
    selector = {"matchLabels": _labels(name, component)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _named(name, component),
        "spec": {"replicas": replicas, "selector": selector, "template": template},
    }


def _budget(name: str) -> Resource:
    """A drain of a node ends one pod of a service at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {f"{_LABEL}/name": name}}},
    }


def _port(name: str, number: int) -> Resource:
    return {"name": name, "port": number, "targetPort": number}


def _network() -> Iterable[Resource]:
    """Only the metrics of a pod are reachable, and the page from its namespace. Outgoing traffic is not restricted: only the
    user knows the addresses of Kafka and PostgreSQL.
    """
    mine = {"matchLabels": {f"{_LABEL}/part-of": "onefold"}}
    page = {"matchLabels": {f"{_LABEL}/name": "dashboard"}}
    rules: list[tuple[str, Resource, Resource]] = [
        ("metrics", mine, {"ports": [{"port": _METRICS_PORT}], "from": [{"namespaceSelector": {}}]}),
        ("dashboard", page, {"ports": [{"port": _DASHBOARD_PORT}], "from": [{"podSelector": {}}]}),
    ]
    for name, selector, rule in rules:
        yield {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"onefold-{name}"},
            "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": [rule]},
        }


def _monitor() -> Resource:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": "onefold"},
        "spec": {
            "selector": {"matchLabels": {f"{_LABEL}/part-of": "onefold"}},
            "podMetricsEndpoints": [{"port": "metrics", "interval": "15s"}],
        },
    }


def _component(folder: str, file: str, resources: list[Resource]) -> Mapping[str, list[Resource]]:
    """Resources of an optional operator: an overlay lists the folder if the operator is installed."""
    component = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component", "resources": [file]}
    return {f"{folder}/kustomization.yaml": [component], f"{folder}/{file}": resources}
