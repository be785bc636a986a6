// Package helmcheck renders the Helm chart of deploy/helm with Helm's own engine and holds what comes out to the
// schemas of the resources. It is a module of its own, so that Helm's dependencies stay out of ours.
package helmcheck

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"
)

// schemas are made by tools/helm-schemas.py.
//
//go:embed schemas.json
var schemas []byte

var chartDir, examplesDir = filepath.Join("..", "..", "deploy", "helm", "tandem"),
	filepath.Join("..", "..", "deploy", "helm", "examples")

// object is a resource as JSON has it.
type object = map[string]any

// render returns the resources that the chart makes of values, in the order of their files.
func render(values object) ([]object, error) {
	chart, err := loader.Load(chartDir)
	if err != nil {
		return nil, err
	}
	caps := chartutil.DefaultCapabilities.Copy()
	caps.KubeVersion = chartutil.KubeVersion{Version: "v1.34.0", Major: "1", Minor: "34"}
	// Values are held to the chart's schema here, as helm install does.
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "demo", Namespace: "models",
		IsInstall: true, Revision: 1}, caps)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	var out []object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for _, doc := range separator.Split(files[name], -1) {
			var o object
			if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil { // also a key that stands there twice
				return nil, fmt.Errorf("%s: %w\n%s", name, err, doc)
			}
			if len(o) > 0 {
				out = append(out, o)
			}
		}
	}
	return out, nil
}

var separator = regexp.MustCompile(`(?m)^---\s*$`)

// example reads the values of an example.
func example(t *testing.T, name string) object {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(examplesDir, name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values object
	if err := yaml.UnmarshalStrict(data, &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// rendered is what the chart makes of an example.
func rendered(t *testing.T, name string) []object {
	t.Helper()
	list, err := render(example(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// checker holds resources to their schemas.
type checker struct {
	compiler *jsonschema.Compiler
	kinds    map[string]any
}

func newChecker(t *testing.T) *checker {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemas))
	if err != nil {
		t.Fatal(err)
	}
	c := &checker{compiler: jsonschema.NewCompiler(), kinds: doc.(object)["kinds"].(object)}
	c.compiler.DefaultDraft(jsonschema.Draft7)
	if err := c.compiler.AddResource("all.json", doc); err != nil {
		t.Fatal(err)
	}
	return c
}

// check returns what is wrong with a resource.
func (c *checker) check(o object) error {
	kind := fmt.Sprintf("%v/%v", o["apiVersion"], o["kind"])
	if c.kinds[kind] == nil {
		return fmt.Errorf("%s: there is no schema of that kind", kind)
	}
	schema, err := c.compiler.Compile("all.json#/kinds/" + strings.ReplaceAll(kind, "/", "~1"))
	if err != nil {
		return err
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	plain, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return err
	}
	return schema.Validate(plain)
}

// at is a value deep inside a resource, nil when it is not there.
func at(o any, path ...string) any {
	for _, key := range path {
		m, ok := o.(object)
		if !ok {
			return nil
		}
		o = m[key]
	}
	return o
}

// title is kind and name.
func title(o object) string { return fmt.Sprintf("%v %v", o["kind"], at(o, "metadata", "name")) }

// TestExamples: all resources of all examples fit their schemas, and there are those that are to be there.
func TestExamples(t *testing.T) {
	const all = "Deployment demo-gateway, NetworkPolicy demo-gateway, NetworkPolicy demo-workers, Service demo, " +
		"Service demo-registry, Service demo-workers, ServiceAccount demo-gateway, ServiceAccount demo-worker"
	for name, own := range map[string]string{
		"one-card": "PersistentVolumeClaim demo-models, PersistentVolumeClaim demo-state, PodDisruptionBudget demo-draft, " +
			"PodDisruptionBudget demo-target, Secret demo-api-keys, StatefulSet demo-draft, StatefulSet demo-target",
		"rig": "PersistentVolumeClaim demo-state, PodDisruptionBudget demo-draft, PodDisruptionBudget demo-scorer, " +
			"PodDisruptionBudget demo-target, ServiceMonitor demo-gateway, ServiceMonitor demo-worker, " +
			"StatefulSet demo-draft, StatefulSet demo-scorer, StatefulSet demo-target",
		"staged": "LeaderWorkerSet demo-large, PersistentVolumeClaim demo-state, PodDisruptionBudget demo-draft, " +
			"PodDisruptionBudget demo-large, StatefulSet demo-draft",
		"many-workers": "PersistentVolumeClaim demo-state, PodDisruptionBudget demo-draft, " +
			"PodDisruptionBudget demo-fallback, PodDisruptionBudget demo-gateway, PodDisruptionBudget demo-target, " +
			"Role demo-registry, RoleBinding demo-registry, StatefulSet demo-draft, StatefulSet demo-fallback, " +
			"StatefulSet demo-target",
	} {
		t.Run(name, func(t *testing.T) {
			c := newChecker(t)
			var got []string
			for _, o := range rendered(t, name) {
				if err := c.check(o); err != nil {
					t.Errorf("%s: %v", title(o), err)
				}
				got = append(got, title(o))
			}
			want := append(strings.Split(all, ", "), strings.Split(own, ", ")...)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("made %q,\nwant %q", got, want)
			}
		})
	}
	files, err := filepath.Glob(filepath.Join(examplesDir, "*.yaml"))
	if err != nil || len(files) != 4 {
		t.Errorf("%d examples, %v: each belongs in the list above", len(files), err)
	}
}

// TestPlantedFaults: a wrong field, a wrong type and a required field that is missing are found in every kind of
// resource, built in or not.
func TestPlantedFaults(t *testing.T) {
	c := newChecker(t)
	pod := func(o object) object {
		if o["kind"] == "LeaderWorkerSet" {
			return at(o, "spec", "leaderWorkerTemplate", "workerTemplate", "spec").(object)
		}
		return at(o, "spec", "template", "spec").(object)
	}
	container := func(o object) object { return pod(o)["containers"].([]any)[0].(object) }
	for _, tt := range []struct {
		example, title, name string
		plant                func(o object)
	}{
		{"rig", "Deployment demo-gateway", "field", func(o object) { o["spec"].(object)["replica"] = 2 }},
		{"rig", "Deployment demo-gateway", "type", func(o object) { o["spec"].(object)["replicas"] = "two" }},
		{"rig", "Deployment demo-gateway", "missing", func(o object) { delete(o["spec"].(object), "selector") }},
		{"rig", "StatefulSet demo-target", "field in a pod", func(o object) { pod(o)["hostnet"] = true }},
		{"rig", "StatefulSet demo-target", "type in a pod", func(o object) {
			pod(o)["terminationGracePeriodSeconds"] = "1m"
		}},
		{"rig", "StatefulSet demo-target", "missing in a container", func(o object) { delete(container(o), "name") }},
		{"rig", "StatefulSet demo-target", "probe", func(o object) {
			container(o)["readinessProbe"].(object)["exec"].(object)["cmd"] = []any{"x"}
		}},
		{"rig", "ServiceMonitor demo-gateway", "field", func(o object) { o["spec"].(object)["endpoint"] = []any{} }},
		{"rig", "ServiceMonitor demo-gateway", "type", func(o object) { o["spec"].(object)["endpoints"] = "http" }},
		{"rig", "ServiceMonitor demo-gateway", "missing", func(o object) { delete(o["spec"].(object), "selector") }},
		{"staged", "LeaderWorkerSet demo-large", "field", func(o object) { o["spec"].(object)["groups"] = 2 }},
		{"staged", "LeaderWorkerSet demo-large", "type", func(o object) { o["spec"].(object)["replicas"] = "2" }},
		{"staged", "LeaderWorkerSet demo-large", "value", func(o object) { o["spec"].(object)["startupPolicy"] = "Now" }},
		{"staged", "LeaderWorkerSet demo-large", "missing", func(o object) {
			delete(at(o, "spec", "leaderWorkerTemplate").(object), "workerTemplate")
		}},
		{"staged", "LeaderWorkerSet demo-large", "field in a pod", func(o object) { container(o)["cmd"] = []any{"x"} }},
		{"rig", "NetworkPolicy demo-workers", "field", func(o object) { o["spec"].(object)["selector"] = object{} }},
		{"rig", "PodDisruptionBudget demo-target", "type", func(o object) {
			o["spec"].(object)["maxUnavailable"] = []any{}
		}},
		{"many-workers", "Role demo-registry", "missing", func(o object) {
			delete(o["rules"].([]any)[0].(object), "verbs")
		}},
		{"rig", "Service demo", "no name", func(o object) { delete(o["metadata"].(object), "name") }},
		{"rig", "Service demo", "kind", func(o object) { o["apiVersion"] = "v2" }},
	} {
		t.Run(tt.title+", "+tt.name, func(t *testing.T) {
			for _, o := range rendered(t, tt.example) {
				if title(o) != tt.title {
					continue
				}
				if err := c.check(o); err != nil {
					t.Fatalf("before: %v", err)
				}
				tt.plant(o)
				if c.check(o) == nil {
					t.Error("the fault was not found")
				}
				return
			}
			t.Fatal("there is no such resource")
		})
	}
}

// TestWrongValues: what cannot work is refused with a name.
func TestWrongValues(t *testing.T) {
	worker := func(change object) object {
		w := object{"role": "target", "model": "m.gguf"}
		maps.Copy(w, change)
		return object{"gateway": object{"model": "m.gguf"}, "workers": object{"one": w}}
	}
	for _, tt := range []struct {
		name   string
		values object
		want   string
	}{
		{"no model", object{}, "/gateway/model"},
		{"unknown key", object{"gateway": object{"model": "m.gguf", "replcas": 2}}, "replcas"},
		{"type", object{"gateway": object{"model": "m.gguf", "replicas": "2"}}, "/gateway/replicas"},
		{"role", worker(object{"role": "scorer"}), "/workers/one/role"},
		{"cards of a processor", worker(object{"gpus": 1}), "gpus is 1, but backend is cpu"},
		{"no cards", worker(object{"backend": "cuda", "gpus": 0}), "needs gpus of at least 1"},
		{"tables of a target", worker(object{"tables": "t.gguf"}), "tables is set, but role is target"},
		{"states of a draft", worker(object{"role": "draft", "kvCache": 1}), "kvCache is set, but role is draft"},
		{"name", object{"gateway": object{"model": "m.gguf"}, "workers": object{"Upper": object{"role": "target",
			"model": "m.gguf"}}}, "Upper"},
		{"several gateways, embedded", object{"gateway": object{"model": "m.gguf", "replicas": 2}}, "registry.driver"},
		{"several gateways, a volume of one node", object{"gateway": object{"model": "m.gguf", "replicas": 2},
			"registry": object{"driver": "kubernetes"}}, "ReadWriteMany"},
		{"etcd without an address", object{"gateway": object{"model": "m.gguf"}, "registry": object{"driver": "etcd"}},
			"/registry/url"},
		{"one stage", object{"gateway": object{"model": "m.gguf"}, "staged": object{"one": object{"model": "m.gguf",
			"stages": 1}}}, "/staged/one/stages"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := render(tt.values)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, want %s", err, tt.want)
			}
		})
	}
}

// pods are the pod templates of a resource.
func pods(o object) (list []object) {
	for _, path := range [][]string{{"spec", "template"}, {"spec", "leaderWorkerTemplate", "leaderTemplate"},
		{"spec", "leaderWorkerTemplate", "workerTemplate"}} {
		if p, ok := at(o, path...).(object); ok {
			list = append(list, p)
		}
	}
	return list
}

// TestPods: every pod of every example runs as nobody, writes to its volumes alone, has no token that it does not need,
// and is what a budget and a policy select.
func TestPods(t *testing.T) {
	for _, name := range []string{"one-card", "rig", "staged", "many-workers"} {
		list := rendered(t, name)
		for _, o := range list {
			for _, p := range pods(o) {
				who := name + ", " + title(o)
				pod, container := p["spec"].(object), at(p, "spec").(object)["containers"].([]any)[0].(object)
				if at(pod, "securityContext", "runAsNonRoot") != true ||
					at(pod, "securityContext", "seccompProfile", "type") != "RuntimeDefault" {
					t.Errorf("%s: %v", who, pod["securityContext"])
				}
				if at(container, "securityContext", "readOnlyRootFilesystem") != true ||
					at(container, "securityContext", "allowPrivilegeEscalation") != false ||
					fmt.Sprint(at(container, "securityContext", "capabilities", "drop")) != "[ALL]" {
					t.Errorf("%s: %v", who, container["securityContext"])
				}
				if token := pod["automountServiceAccountToken"]; token != (name == "many-workers" && o["kind"] == "Deployment") {
					t.Errorf("%s: automountServiceAccountToken is %v", who, token)
				}
				if container["readinessProbe"] == nil {
					t.Errorf("%s: no readiness probe", who)
				}
				for _, kind := range []string{"NetworkPolicy", "PodDisruptionBudget"} {
					if !selected(list, kind, p) && !(kind == "PodDisruptionBudget" && o["kind"] == "Deployment" &&
						name != "many-workers") {
						t.Errorf("%s: no %s selects it", who, kind)
					}
				}
			}
		}
	}
}

// selected reports whether a resource of a kind selects a pod.
func selected(list []object, kind string, pod object) bool {
	for _, o := range list {
		want, ok := at(o, "spec", "selector", "matchLabels").(object)
		if kind == "NetworkPolicy" {
			want, ok = at(o, "spec", "podSelector", "matchLabels").(object)
		}
		if o["kind"] != kind || !ok {
			continue
		}
		fits := true
		for key, value := range want {
			fits = fits && at(pod, "metadata", "labels", key) == value
		}
		if fits {
			return true
		}
	}
	return false
}

// TestStages: the head names its stages by the names that their pods have, and a stage its number.
func TestStages(t *testing.T) {
	for _, o := range rendered(t, "staged") {
		if o["kind"] != "LeaderWorkerSet" {
			continue
		}
		parts := pods(o)
		head, _ := json.Marshal(parts[0])
		stage, _ := json.Marshal(parts[1])
		const want = "--target-stages=$(POD_NAME)-1.demo-large.models.svc:8105,$(POD_NAME)-2.demo-large.models.svc:8105"
		if !strings.Contains(string(head), want) || !strings.Contains(string(head), "nvidia.com/gpu") {
			t.Errorf("head: %s", head)
		}
		if !strings.Contains(string(stage), "--stage=$((LWS_WORKER_INDEX+1))/3") ||
			!strings.Contains(string(stage), "amd.com/gpu") {
			t.Errorf("stage: %s", stage)
		}
		return
	}
	t.Fatal("there is no LeaderWorkerSet")
}
