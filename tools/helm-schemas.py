#!/usr/bin/env python3
"""Writes tools/helmcheck/schemas.json: the schemas of the resources that the Helm chart makes.

They come from published Go modules, cut down to what the chart needs, without descriptions, and strict: a field that
is not listed is an error, as "kubectl apply --validate=strict" has it. Run it from the repository to take new versions:
    tools/helm-schemas.py
"""
import json
import os
import subprocess
import sys

import yaml

MODULES = {
    "kubectl": "k8s.io/kubectl@v0.34.3",
    "lws": "sigs.k8s.io/lws@v0.7.0",
    "operator": "github.com/prometheus-operator/prometheus-operator@v0.85.0",
}
KINDS = [
    "v1/Service", "v1/ServiceAccount", "v1/Secret", "v1/PersistentVolumeClaim", "apps/v1/Deployment",
    "apps/v1/StatefulSet", "networking.k8s.io/v1/NetworkPolicy", "policy/v1/PodDisruptionBudget",
    "rbac.authorization.k8s.io/v1/Role", "rbac.authorization.k8s.io/v1/RoleBinding",
]
TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
LOOSE = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["integer", "string"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["number", "string"]},
}


def folder(module):
    env = dict(os.environ, GOWORK="off", GOFLAGS="-mod=mod")
    out = subprocess.run(["go", "mod", "download", "-json", module], env=env, check=True, capture_output=True, cwd="/")
    return json.loads(out.stdout)["Dir"]


def strict(s):
    """A schema without what only explains, and without room for what it does not list."""
    if s.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    out = {}
    for key, value in s.items():
        if key in ("description", "format", "default", "status") or key.startswith("x-"):
            continue
        if key in ("properties", "definitions"):
            value = {name: strict(sub) for name, sub in value.items()}
        elif key in ("items", "additionalProperties", "not") and isinstance(value, dict):
            value = strict(value)
        elif key in ("anyOf", "allOf", "oneOf"):
            value = [strict(sub) for sub in value]
        elif key == "enum":
            value = list(dict.fromkeys(value))  # some list a value under each of its names
        out[key] = value
    if "properties" in s and not s.get("x-kubernetes-preserve-unknown-fields"):
        out.setdefault("additionalProperties", False)
    return out


def named(schema, group, version, kind):
    """The schema of one kind, whose objects must say so."""
    props = schema["properties"]
    props.pop("status", None)
    props["apiVersion"] = {"const": group + "/" + version if group else version}
    props["kind"] = {"const": kind}
    props["metadata"] = {"allOf": [{"$ref": "#/definitions/" + META}, {"required": ["name"]}]}
    schema["required"] = sorted(set(schema.get("required", [])) | {"apiVersion", "kind", "metadata"})
    return schema


def custom(path):
    with open(path) as f:
        crd = yaml.safe_load(f)["spec"]
    version = next(v for v in crd["versions"] if v["served"] and v["name"] == "v1")
    key = "/".join([crd["group"], "v1", crd["names"]["kind"]])
    return key, named(strict(version["schema"]["openAPIV3Schema"]), crd["group"], "v1", crd["names"]["kind"])


def main():
    have = {name: folder(module) for name, module in MODULES.items()}
    openapi = have["kubectl"] + "/testdata/openapi/"
    with open(openapi + "swagger.json") as f:
        swagger = json.load(f)["definitions"]
    for newer in ("v3/api/v1.json", "v3/apis/apps/v1.json"):
        with open(openapi + newer) as f:
            swagger |= json.loads(f.read().replace("#/components/schemas/", "#/definitions/"))["components"]["schemas"]
    found = {}
    for name, schema in swagger.items():
        for g in schema.get("x-kubernetes-group-version-kind", []):
            found.setdefault("/".join(p for p in (g["group"], g["version"], g["kind"]) if p), name)
    definitions = {}

    def take(name):
        if name in definitions:
            return
        definitions[name] = LOOSE.get(name) or strict(swagger[name])
        if name not in LOOSE:
            refs(definitions[name])

    def refs(schema):
        if isinstance(schema, dict):
            if "$ref" in schema:
                take(schema["$ref"].removeprefix("#/definitions/"))
            for value in schema.values():
                refs(value)
        elif isinstance(schema, list):
            for value in schema:
                refs(value)

    # The module has the budget as it was in the beta; what the chart uses of it is the same.
    found["policy/v1/PodDisruptionBudget"] = found["policy/v1beta1/PodDisruptionBudget"]
    kinds = {}
    for key in KINDS:
        group, _, version = key.rpartition("/")[0].rpartition("/")
        kinds[key] = named(strict(swagger[found[key]]), group, version, key.rpartition("/")[2])
    key, lws = custom(have["lws"] + "/config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml")
    group = lws["properties"]["spec"]["properties"]["leaderWorkerTemplate"]["properties"]
    for part in ("leaderTemplate", "workerTemplate"):  # spelled out in full there
        group[part] = {"$ref": "#/definitions/" + TEMPLATE}
    kinds[key] = lws
    key, monitor = custom(have["operator"]
                          + "/example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml")
    kinds[key] = monitor
    refs(kinds)
    take(META)
    with open(os.path.join(os.path.dirname(sys.argv[0]), "helmcheck", "schemas.json"), "w") as f:
        f.write('{"$comment": "made by tools/helm-schemas.py from ' + ", ".join(MODULES.values()) + '",\n')
        for title, part, end in (("definitions", definitions, ","), ("kinds", kinds, "")):
            f.write('"' + title + '": {\n')
            f.write(",\n".join(json.dumps(k) + ": " + json.dumps(part[k], sort_keys=True, separators=(",", ":"))
                               for k in sorted(part)))
            f.write("\n}" + end + "\n")
        f.write("}\n")


main()
