package kubestore

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// apiServer plays the parts of a Kubernetes API server that the store uses, with its rules: versions that rise over all
// resources, writes that depend on them, updates that change nothing, watches that begin at a version and end when it
// is too old, lists without values.
type apiServer struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex // guards the rest
	version int
	objects map[string]object // by path
	history []change
	oldest  int           // changes up to that version are forgotten
	changed chan struct{} // closed and replaced with every change
	down    bool          // answers 503
	forbid  string        // resource that is refused
	writes  int
}

type object = map[string]any

// change is what a watch tells.
type change struct {
	version int
	path    string
	kind    string
	object  object
}

func newAPI(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{t: t, objects: map[string]object{}, changed: make(chan struct{})}
	a.Server = httptest.NewServer(a)
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

// open opens a store there.
func (a *apiServer) open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.Context(), a.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (a *apiServer) config() Config {
	api := &rest.Config{Host: a.URL}
	api.ContentType = "application/json" // real servers are sent protobuf
	return Config{Namespace: "tandem", API: api, Sweep: shortSweep}
}

// do changes the server itself.
func (a *apiServer) do(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

func meta(o object) object { return o["metadata"].(object) }

// plain is a copy of v as JSON has it.
func plain(v any) (o object) {
	b, _ := json.Marshal(v)
	_ = json.Unmarshal(b, &o)
	return o
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, status int, reason metav1.StatusReason) {
	answer(w, status, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusFailure, Reason: reason, Code: int32(status), Message: string(reason)})
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/tandem/")
	path = strings.TrimPrefix(path, "/apis/coordination.k8s.io/v1/namespaces/tandem/")
	dir, name, _ := strings.Cut(path, "/")
	if dir != "secrets" && dir != "leases" {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	if r.URL.Query().Get("watch") != "" {
		a.watch(w, r, dir)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	path = dir + "/" + name
	switch {
	case a.down:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	case a.forbid == dir:
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case r.Method == http.MethodGet && name == "":
		a.list(w, r, dir)
	case r.Method == http.MethodGet:
		if o := a.objects[path]; o != nil {
			answer(w, http.StatusOK, o)
			return
		}
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	default:
		a.write(w, r, path)
	}
}

// write serves POST, PUT and DELETE; the caller holds mu.
func (a *apiServer) write(w http.ResponseWriter, r *http.Request, path string) {
	var body object
	if r.ContentLength != 0 {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
	}
	a.writes++
	if r.Method == http.MethodPost {
		path += fmt.Sprint(meta(body)["name"])
	}
	old := a.objects[path]
	switch {
	case r.Method == http.MethodPost && old != nil:
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
	case r.Method != http.MethodPost && old == nil:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodDelete:
		if p, ok := body["preconditions"].(object); ok && p["resourceVersion"] != meta(old)["resourceVersion"] {
			refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
			return
		}
		a.note(path, "DELETED", plain(old))
		delete(a.objects, path)
		answer(w, http.StatusOK, &metav1.Status{Status: metav1.StatusSuccess})
	case len(fmt.Sprint(body["data"])) > 4*(1<<20)/3+1024: // base64 of 1 MiB
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case r.Method == http.MethodPut && meta(body)["resourceVersion"] != nil &&
		meta(body)["resourceVersion"] != meta(old)["resourceVersion"]:
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
	case r.Method == http.MethodPut && same(old, body):
		answer(w, http.StatusOK, old)
	default:
		kind := map[bool]string{true: "ADDED", false: "MODIFIED"}[old == nil]
		a.objects[path] = body
		a.note(path, kind, body)
		answer(w, http.StatusOK, body)
	}
}

// same reports whether an update changes nothing.
func same(old, next object) bool {
	x, y := plain(old), plain(next)
	delete(meta(x), "resourceVersion")
	delete(meta(y), "resourceVersion")
	return reflect.DeepEqual(x, y)
}

// note gives an object its next version and tells the watches; the caller holds mu.
func (a *apiServer) note(path, kind string, o object) {
	a.version++
	meta(o)["resourceVersion"] = strconv.Itoa(a.version)
	a.history = append(a.history, change{a.version, path, kind, plain(o)})
	close(a.changed)
	a.changed = make(chan struct{})
}

// fits reports whether an object has the labels of a selector: key or key=value, with commas between.
func fits(o object, selector string) bool {
	labels, _ := meta(o)["labels"].(object)
	for _, term := range strings.Split(selector, ",") {
		key, value, exact := strings.Cut(term, "=")
		if got, there := labels[key]; term != "" && (!there || exact && got != value) {
			return false
		}
	}
	return true
}

// list serves a list in pages; the caller holds mu.
func (a *apiServer) list(w http.ResponseWriter, r *http.Request, dir string) {
	q := r.URL.Query()
	bare := strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList")
	limit, _ := strconv.Atoi(q.Get("limit"))
	items, next := []any{}, ""
	for _, path := range slices.Sorted(maps.Keys(a.objects)) {
		o := a.objects[path]
		if !strings.HasPrefix(path, dir+"/") || path <= q.Get("continue") || !fits(o, q.Get("labelSelector")) {
			continue
		}
		if limit > 0 && len(items) == limit {
			next = dir + "/" + fmt.Sprint(meta(items[len(items)-1].(object))["name"])
			break
		}
		if bare {
			o = object{"metadata": o["metadata"]}
		}
		items = append(items, o)
	}
	kind, version := map[string]string{"secrets": "SecretList", "leases": "LeaseList"}[dir], "v1"
	if dir == "leases" {
		version = "coordination.k8s.io/v1"
	}
	if bare {
		kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	answer(w, http.StatusOK, object{"kind": kind, "apiVersion": version, "items": items,
		"metadata": object{"resourceVersion": strconv.Itoa(a.version), "continue": next}})
}

// watch streams changes from a version on.
func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, dir string) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	kinds := map[string]object{"secrets": {"kind": "Secret", "apiVersion": "v1"},
		"leases": {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1"}}[dir]
	for {
		a.mu.Lock()
		changed, list := a.changed, slices.Clone(a.history)
		gone, down := from < a.oldest, a.down
		a.mu.Unlock()
		if down {
			return
		}
		if gone {
			_ = out.Encode(object{"type": "ERROR", "object": plain(&metav1.Status{Status: metav1.StatusFailure,
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
				Reason:   metav1.StatusReasonExpired, Code: http.StatusGone})})
			return
		}
		for _, c := range list {
			if c.version <= from || !strings.HasPrefix(c.path, dir+"/") || !fits(c.object, r.URL.Query().Get("labelSelector")) {
				continue
			}
			o := plain(c.object)
			maps.Copy(o, kinds)
			if out.Encode(object{"type": c.kind, "object": o}) != nil {
				return
			}
			from = c.version
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// lose makes the server forget old versions, and end its watches.
func (a *apiServer) lose() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.oldest, a.history = a.version, nil
	close(a.changed)
	a.changed = make(chan struct{})
}
