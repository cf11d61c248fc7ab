"""Checks the chart; run by deploy/helm/check, which has the modules. Prints what is wrong and nothing else."""

import difflib
import pathlib
import re
import sys

import helm_python
import kubernetes_validate
import yaml

HERE = pathlib.Path(__file__).parent
UNIT = HERE / "../systemd/fleetprofd.service"
COMPOSE = HERE / "../container/compose.yaml"
# What the schemas of Kubernetes do not hold.
CUSTOM = {"ServiceMonitor"}

problems = []


def must(holds, case, sentence):
    if not holds:
        problems.append(f"{case}: {sentence}")


def render(values):
    chart = helm_python.Chart.load(str(HERE / "fleetprof"))
    files = chart.render(values, name="trial", namespace="profiling")
    return {path.split("/templates/")[-1]: text for path, text in sorted(files.items())}


def golden(case, files, write):
    text = "".join(f"# {name}\n{body.strip()}\n" for name, body in files.items() if body.strip())
    path = HERE / "golden" / f"{case}.txt"
    if write:
        path.write_text(text)
    before = path.read_text() if path.exists() else ""
    difference = list(difflib.unified_diff(before.splitlines(), text.splitlines(), "golden", "now", lineterm=""))
    must(not difference, case, "differs from its golden (--write):\n" + "\n".join(difference[:40]))


def schemas(case, objects, versions):
    for version in versions:
        for thing in objects:
            if thing["kind"] in CUSTOM:
                continue
            try:
                kubernetes_validate.validate(thing, version, strict=True)
            except Exception as error:
                message = str(getattr(error, "message", error)).splitlines()[0]
                problems.append(f"{case}: Kubernetes {version}: {thing['kind']}: {message}")


def unit_capabilities():
    line = re.search(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.M).group(1)
    return {name.removeprefix("CAP_") for name in line.split()}


def agent(case, workload):
    spec = workload["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    context = container["securityContext"]
    must(set(context["capabilities"]["add"]) == unit_capabilities(), case, "capabilities are not the unit's")
    must(context["capabilities"]["drop"] == ["ALL"], case, "the agent keeps capabilities")
    must(context["privileged"] is False, case, "the agent is privileged")
    must(context["allowPrivilegeEscalation"] is False, case, "the agent may gain privileges")
    must(context["readOnlyRootFilesystem"] is True, case, "the agent may write to its image")
    must(spec.get("hostPID") is True, case, "the agent is not in the host's pid namespace")
    must(not spec.get("hostNetwork") and not spec.get("hostIPC"), case, "the agent has more of the host than pids")
    identity = [e["valueFrom"]["fieldRef"]["fieldPath"] for e in container["env"]
                if e["name"] == "FLEETPROF_COLLECTOR_HOST_ID"]
    must(identity == ["spec.nodeName"], case, "the host's identity is not the node's name")
    # The paths of compose.yaml, each as read-only as there.
    paths = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
    mounts = {m["name"]: m for m in container["volumeMounts"]}
    here = {(path, mounts[name].get("readOnly", False)) for name, path in paths.items()
            if not name.startswith("runtime-")}
    service = yaml.safe_load(COMPOSE.read_text())["services"]["fleetprofd"]
    there = {(v.split(":")[0], v.endswith(":ro")) for v in service["volumes"]}
    must(here == there, case, f"paths of the host are not those of compose.yaml: {here ^ there}")
    for name in paths:
        if name.startswith("runtime-"):
            must(mounts[name].get("readOnly"), case, f"{name} may be written to")


def restricted(case, workload):
    """The profile `restricted` of the Pod Security Standards."""
    spec = workload["spec"]["template"]["spec"]
    for key in ("hostPID", "hostNetwork", "hostIPC"):
        must(not spec.get(key), case, f"the collector has {key}")
    must(spec["securityContext"]["runAsNonRoot"] is True, case, "the collector may be root")
    must(spec["securityContext"]["runAsUser"] != 0, case, "the collector is root")
    must(spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", case, "no seccomp profile")
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
               "projected", "secret"}
    for volume in spec["volumes"]:
        must(set(volume) - {"name"} <= allowed, case, f"volume {volume['name']} is not for restricted pods")
    for container in spec["containers"]:
        context = container["securityContext"]
        must(context["allowPrivilegeEscalation"] is False, case, "the collector may gain privileges")
        must(context["capabilities"] == {"drop": ["ALL"]}, case, "the collector has capabilities")
        must(context["readOnlyRootFilesystem"] is True, case, "the collector may write to its image")


def common(case, objects):
    workloads = [o for o in objects if o["kind"] in ("DaemonSet", "StatefulSet")]
    for thing in objects:
        name = thing["metadata"]["name"]
        must(len(name) <= 63, case, f"{name} is too long")
        must(thing["metadata"]["namespace"] == "profiling", case, f"{name} is in another namespace")
        if thing["kind"] == "ConfigMap":
            for key, text in thing["data"].items():
                secret = re.search(r"(?im)^\s*[a-z_]*(password|token|secret|key)\s*:", text)
                must(not secret, case, f"a secret in {name}/{key}")
    for workload in workloads:
        template = workload["spec"]["template"]
        labels = template["metadata"]["labels"].items()
        must(workload["spec"]["selector"]["matchLabels"].items() <= labels, case, "a selector selects nothing")
        must(template["spec"]["automountServiceAccountToken"] is False, case, "a pod has a token")
        (container,) = template["spec"]["containers"]
        must("memory" in container["resources"]["limits"], case, "memory without a limit")
        must("livenessProbe" in container and "readinessProbe" in container, case, "a pod without probes")
        names = {v["name"] for v in template["spec"]["volumes"]}
        names |= {c["metadata"]["name"] for c in workload["spec"].get("volumeClaimTemplates", [])}
        must({m["name"] for m in container["volumeMounts"]} == names, case, "volumes and mounts differ")
    for service in [o for o in objects if o["kind"] == "Service"]:
        selected = [w for w in workloads if service["spec"]["selector"].items()
                    <= w["spec"]["template"]["metadata"]["labels"].items()]
        must(len(selected) == 1, case, "the service does not select one workload")
        ports = {p["name"] for p in selected[0]["spec"]["template"]["spec"]["containers"][0]["ports"]}
        must({p["targetPort"] for p in service["spec"]["ports"]} <= ports, case, "a service without its port")


def refused(values, words):
    try:
        render(values)
    except helm_python.HelmError as error:
        must(words in str(error), "refused", f"{values} is refused for another reason: {error}")
    else:
        must(False, "refused", f"{values} is taken")


def main():
    write = "--write" in sys.argv
    cases = sorted((HERE / "cases").glob("*.yaml"))
    for path in cases:
        case = path.stem
        text = path.read_text()
        versions = re.match(r"# kubernetes: (.*)", text).group(1).split()
        files = render(yaml.safe_load(text))
        golden(case, files, write)
        manifests = "\n---\n".join(t for name, t in files.items() if not name.endswith((".txt", ".tpl")))
        objects = [thing for thing in yaml.safe_load_all(manifests) if thing]
        schemas(case, objects, versions)
        common(case, objects)
        for thing in objects:
            if thing["kind"] == "DaemonSet":
                agent(case, thing)
            elif thing["kind"] == "StatefulSet":
                restricted(case, thing)
        kinds = sorted(thing["kind"] for thing in objects)
        wanted = ["ConfigMap", "DaemonSet", "NetworkPolicy", "NetworkPolicy", "PodDisruptionBudget", "Service",
                  "ServiceAccount", "ServiceAccount", "ServiceMonitor", "StatefulSet"]
        must(case != "collector" or kinds == wanted, case, f"other objects: {kinds}")
    refused({"collector": {"enabled": True}}, "loopback only")
    refused({"agnet": {}}, "agnet")
    refused({"agent": {"appArmor": "maybe"}}, "appArmor")
    for message in helm_python.lint(str(HERE / "fleetprof")).get("messages", []):
        must(message["severity"] < 2, "lint", str(message))
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


sys.exit(main())
