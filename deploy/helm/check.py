"""Checks the chart; run by deploy/helm/check, which has the modules. Prints what is wrong and nothing else."""

import difflib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import helm_python
import kubernetes_validate
import yaml

HERE = pathlib.Path(__file__).parent
UNIT = HERE / "../systemd/fleetprofd.service"
ATTACH = HERE / "../systemd/fleetprofd-attach.conf"
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


def unit_capabilities(unit):
    line = re.search(r"^CapabilityBoundingSet=(.*)$", unit.read_text(), re.M).group(1)
    return {name.removeprefix("CAP_") for name in line.split()}


def environment(container):
    """Variables with their values, references to others resolved as the kubelet does."""
    known = {}
    for variable in container.get("env", []):
        reference = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        value = variable.get("value", f"<{reference}>")
        known[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda m: known.get(m.group(1), m.group(0)), value)
    return known


def agent(case, workload, values):
    spec = workload["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    context = container["securityContext"]
    wanted = unit_capabilities(UNIT)
    if values.get("agent", {}).get("attach"):
        wanted |= unit_capabilities(ATTACH)
    must(set(context["capabilities"]["add"]) == wanted, case, "capabilities are not the unit's")
    must(context["capabilities"]["drop"] == ["ALL"], case, "the agent keeps capabilities")
    must(context["privileged"] is False, case, "the agent is privileged")
    must(context["allowPrivilegeEscalation"] is False, case, "the agent may gain privileges")
    must(context["readOnlyRootFilesystem"] is True, case, "the agent may write to its image")
    must(spec.get("hostPID") is True, case, "the agent is not in the host's pid namespace")
    must(not spec.get("hostNetwork") and not spec.get("hostIPC"), case, "the agent has more of the host than pids")
    known = environment(container)
    node = "/".join(filter(None, [values.get("clusterName"), "<spec.nodeName>"]))
    for name in ("FLEETPROF_COLLECTOR_HOST_ID", "FLEETPROF_COLLECTOR_HOST_NAME"):
        must(known[name] == node, case, f"{name} is {known[name]}, and the node {node}")
    # The invitation may come later, and nobody but the daemon reads it.
    secrets = [v["secret"] for v in spec["volumes"] if v["name"] == "join"]
    must(all(s["optional"] and s["defaultMode"] == 0o400 for s in secrets), case, "the pod waits for its invitation")
    must(bool(secrets) == ("FLEETPROF_COLLECTOR_JOIN_FILE" in known), case, "an invitation without its file")
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
        # A restart makes no full disk larger: what a store does not take is not for liveness.
        for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/login"), ("readinessProbe", "/healthz")):
            asks = container[probe]["httpGet"]
            must(asks == {"path": path, "port": "page", "scheme": "HTTPS"}, case, f"{probe} asks {asks}")


def collector_config(case, objects):
    """What the collector's files are, and where it listens for others."""
    for thing in objects:
        if thing["kind"] != "ConfigMap" or "collector.yaml" not in thing["data"]:
            continue
        config = yaml.safe_load(thing["data"]["collector.yaml"])
        listen = config["listen"]
        must(not {"grpc", "http"} & set(listen), case, "who is believed without a login listens elsewhere")
        (pod,) = [o["spec"]["template"]["spec"] for o in objects if o["kind"] == "StatefulSet"]
        (container,) = pod["containers"]
        ports = {p["name"]: p["containerPort"] for p in container["ports"]}
        for key, port in (("tls", "hosts"), ("https", "page")):
            must(listen[key].endswith(f":{ports[port]}"), case, f"listen.{key} is not the port `{port}`")
        mounts = [m["mountPath"] for m in container["volumeMounts"]]
        for file in re.findall(r"_file: (.*)", thing["data"]["collector.yaml"]):
            must(str(pathlib.Path(file).parent) in mounts, case, f"{file} is not mounted")
        secrets = [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v]
        must("_file" in str(config) or not secrets, case, "a Secret that nothing reads")


def policies(case, objects):
    """Whom pods reach, and who reaches them."""
    found = {o["metadata"]["name"].rsplit("-", 1)[1]: o["spec"] for o in objects if o["kind"] == "NetworkPolicy"}
    for component, spec in found.items():
        types = set(spec["policyTypes"])
        must("Ingress" in types, case, f"everybody reaches the {component}")
        must(("egress" in spec) == ("Egress" in types), case, f"rules of the {component} that count for nothing")
    if "agent" in found:
        must(found["agent"]["ingress"] == [], case, "somebody reaches an agent")
        must("Egress" in found["agent"]["policyTypes"], case, "agents reach everybody")
    if "collector" in found:
        texts = [o["data"]["collector.yaml"] for o in objects if o["kind"] == "ConfigMap"
                 and "collector.yaml" in o["data"]]
        lines = [line for text in texts for line in text.splitlines() if "external_url:" not in line]
        asked = [line.strip() for line in lines if "://" in line]
        must(not asked or found["collector"].get("egress") != [], case, f"it reaches nobody, and has {asked}")
        ports = [p["port"] for rule in found["collector"]["ingress"] for p in rule["ports"]]
        must(set(ports) <= {7601, 7611}, case, "others reach ports of the collector that believe them")


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
        must(thing["kind"] != "Secret", case, f"{name} is a Secret: they are made by who has what is in them")
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
        # Who lets hosts of other places in does not let them at the page, and the other way round.
        must(len(service["spec"]["ports"]) == 1, case, f"{service['metadata']['name']} has ports for several kinds")
    backends = [(p["backend"]["service"]["name"], p["backend"]["service"]["port"]["name"]) for o in objects
                if o["kind"] == "Ingress" for rule in o["spec"]["rules"] for p in rule["http"]["paths"]]
    offered = {(o["metadata"]["name"], p["name"]) for o in objects if o["kind"] == "Service"
               for p in o["spec"]["ports"]}
    must(set(backends) <= offered, case, f"an ingress without its service: {backends}")


def programs():
    """Where the programs are, of a build of any kind."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE / "../../target"))
    places = [pathlib.Path(os.environ["FLEETPROF_BIN_DIR"])] if "FLEETPROF_BIN_DIR" in os.environ else []
    places += [target / profile for profile in ("release", "quick", "debug")]
    names = ("fleetprofd", "fleetprof-collector")
    return next((p for p in places if all((p / name).exists() for name in names)), None)


def configurations(case, objects, directory):
    """Each pod's configuration, with its variables, as the program itself takes it."""
    for workload in [o for o in objects if o["kind"] in ("DaemonSet", "StatefulSet")]:
        spec = workload["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        maps = {v["configMap"]["name"] for v in spec["volumes"] if "configMap" in v}
        texts = [t for o in objects if o["kind"] == "ConfigMap" and o["metadata"]["name"] in maps
                 for t in o["data"].values()]
        with tempfile.TemporaryDirectory() as work:
            file = pathlib.Path(work) / "config.yaml"
            file.write_text("".join(texts))
            variables = {**os.environ, **environment(container)}
            command = [directory / container["name"], "--check-config", file]
            ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
        said = (ran.stderr or ran.stdout).strip()
        must(ran.returncode == 0, case, f"{container['name']} refuses its configuration ({ran.returncode}): {said}")


def refused(values, words):
    try:
        render(values)
    except helm_python.HelmError as error:
        must(words in str(error), "refused", f"{values} is refused for another reason: {error}")
    else:
        must(False, "refused", f"{values} is taken")


# Objects of each case that has more than the usual ones, or fewer.
KINDS = {
    "default": "ConfigMap DaemonSet NetworkPolicy NetworkPolicy PodDisruptionBudget Service Service "
               "ServiceAccount ServiceAccount StatefulSet",
    "agents-alone": "DaemonSet NetworkPolicy ServiceAccount",
    "elsewhere": "ConfigMap DaemonSet NetworkPolicy",
    "collector": "ConfigMap DaemonSet Ingress NetworkPolicy NetworkPolicy PodDisruptionBudget Service Service "
                 "ServiceAccount ServiceAccount ServiceMonitor StatefulSet",
    "oidc": "ConfigMap NetworkPolicy PodDisruptionBudget Service Service ServiceAccount StatefulSet",
}


def schema_is_whole(values, schema, path=""):
    """Every value is in the schema, and what is in the schema is a value."""
    definitions = json.loads((HERE / "fleetprof/values.schema.json").read_text())["definitions"]
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rsplit("/", 1)[1]]
    if "properties" not in schema:
        return
    free = {"global"} if not path else set()
    optional = {"localhostProfile"}
    must(set(values) == set(schema["properties"]) - free - optional, "schema",
         f"values and schema differ below `{path}`: {set(values) ^ set(schema['properties'])}")
    must(schema.get("additionalProperties") is False, "schema", f"`{path}` takes what is misspelt")
    for name, value in values.items():
        if isinstance(value, dict) and name in schema["properties"]:
            schema_is_whole(value, schema["properties"][name], f"{path}.{name}".lstrip("."))


def main():
    write = "--write" in sys.argv
    directory = programs() if "--configs" in sys.argv else None
    if "--configs" in sys.argv and directory is None:
        problems.append("no programs: build them, or name their folder in FLEETPROF_BIN_DIR")
    schema = json.loads((HERE / "fleetprof/values.schema.json").read_text())
    schema_is_whole(yaml.safe_load((HERE / "fleetprof/values.yaml").read_text()), schema)
    for path in sorted((HERE / "cases").glob("*.yaml")):
        case = path.stem
        text = path.read_text()
        values = yaml.safe_load(text)
        versions = re.match(r"# kubernetes: (.*)", text).group(1).split()
        files = render(values)
        manifests = "\n---\n".join(t for name, t in files.items() if not name.endswith((".txt", ".tpl")))
        objects = [thing for thing in yaml.safe_load_all(manifests) if thing]
        if directory is not None:
            configurations(case, objects, directory)
            continue
        golden(case, files, write)
        schemas(case, objects, versions)
        common(case, objects)
        collector_config(case, objects)
        policies(case, objects)
        for thing in objects:
            if thing["kind"] == "DaemonSet":
                agent(case, thing, values)
            elif thing["kind"] == "StatefulSet":
                restricted(case, thing)
        kinds = " ".join(sorted(thing["kind"] for thing in objects))
        must(KINDS.get(case, kinds) == kinds, case, f"other objects: {kinds}")
    oidc = {"issuer": "https://login.example.net", "clientId": "a", "existingSecret": "b",
            "rules": [{"group": "c", "role": "viewer"}]}
    refused({"collector": {"oidc": oidc}}, "externalUrl")
    without = {key: value for key, value in oidc.items() if key != "rules"}
    refused({"collector": {"externalUrl": "https://a", "oidc": without}}, "rules")
    refused({"collector": {"ingress": {"enabled": True}}}, "externalUrl")
    refused({"collector": {"serviceMonitor": {"enabled": True}}}, "existingSecret")
    refused({"collector": {"serviceMonitor": {"enabled": True, "existingSecret": "a"}}}, "tlsConfig")
    refused({"agent": {"enabled": False}, "collector": {"enabled": False}}, "one of them")
    refused({"collector": {"externalUrl": "http://profiles.example.net"}}, "externalUrl")
    # As the collector itself takes it.
    for name in ("c1; id", "-c1", "c1:", "c1:0", "c1:65536", "fd00::7", "[fd00::7", ":7601", "c1:7601:1"):
        refused({"collector": {"advertise": name}}, "advertise")
        refused({"collector": {"externalUrl": f"https://{name}"}}, "externalUrl")
    for name in ("c1", "c1.example.net:65535", "10.0.0.7:443", "[fd00::7]", "[fd00::7]:7601"):
        render({"collector": {"advertise": name, "externalUrl": f"https://{name}"}})
    refused({"agnet": {}}, "agnet")
    refused({"agent": {"appArmor": "maybe"}}, "appArmor")
    for message in helm_python.lint(str(HERE / "fleetprof")).get("messages", []):
        must(message["severity"] < 2, "lint", str(message))
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


sys.exit(main())
