// Package kubernetes tests the driver for Kubernetes with a real API server, which `make kube-test` builds.
package kubernetes

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/tandem-inference/tandem/services/shared"
	"github.com/tandem-inference/tandem/services/shared/kubestore"
	"github.com/tandem-inference/tandem/services/shared/storetest"
	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/etcd"
)

const (
	namespace = "tandem"
	// account is that of gateways in the chart.
	account = "system:serviceaccount:" + namespace + ":tandem-gateway"
	// Tokens of the account and of who sets the server up.
	gatewayToken, adminToken = "gateway", "admin"
)

// TestStore: the driver passes the conformance suite on a Kubernetes API server, with no other rights than those that
// the chart gives a gateway.
func TestStore(t *testing.T) {
	program := os.Getenv("TANDEM_TEST_KUBE_APISERVER")
	if program == "" {
		t.Skip("TANDEM_TEST_KUBE_APISERVER does not name a kube-apiserver: make kube-test builds one")
	}
	address := serve(t, program)
	api := func(token string) *rest.Config {
		return &rest.Config{Host: "https://" + address, BearerToken: token, QPS: -1,
			TLSClientConfig: rest.TLSClientConfig{Insecure: true}} // its certificate is its own
	}
	prepare(t, api(adminToken))
	open := func(t *testing.T, ns string) (*kubestore.Store, error) {
		return kubestore.Open(t.Context(), kubestore.Config{Namespace: ns, API: api(gatewayToken),
			Sweep: 100 * time.Millisecond})
	}
	if s, err := open(t, "default"); err == nil {
		_ = s.Close()
		t.Error("the account has rights in another namespace: the test gives it more than the chart does")
	}
	storetest.Run(t, func(t *testing.T) shared.Store {
		s, err := open(t, namespace)
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

// serve runs an API server over an etcd until the test ends, and returns its address.
func serve(t *testing.T, program string) string {
	t.Helper()
	dir, store := t.TempDir(), etcd.Start(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keyFile, tokens := filepath.Join(dir, "key.pem"), filepath.Join(dir, "tokens.csv")
	write(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	write(t, tokens, []byte(adminToken+",admin,1,system:masters\n"+gatewayToken+","+account+",2\n"))
	addresses, err := cluster.FreeAddresses("127.0.0.1", 1)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(addresses[0])
	var log bytes.Buffer
	server := exec.Command(program, "--etcd-servers", "http://"+store.Endpoint, "--bind-address", "127.0.0.1",
		"--secure-port", port, "--cert-dir", dir, "--token-auth-file", tokens, "--authorization-mode", "RBAC",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", keyFile,
		"--service-account-signing-key-file", keyFile, "--service-cluster-ip-range", "10.0.0.0/24",
		"--disable-admission-plugins", "ServiceAccount")
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Wait()
	}()
	t.Cleanup(func() {
		_ = server.Process.Kill()
		<-ended
		if t.Failed() {
			text := log.String()
			t.Logf("the API server's log ends with\n%s", text[max(0, len(text)-8<<10):])
		}
	})
	return addresses[0]
}

// prepare waits for the server, makes the namespace and gives the gateways' account the chart's rights in it.
func prepare(t *testing.T, api *rest.Config) {
	t.Helper()
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		t.Fatal(err)
	}
	var last error
	ready := func() bool {
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		_, last = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return last == nil
	}
	for until := time.Now().Add(3 * time.Minute); !ready(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the API server is not ready: ", last)
		}
	}
	ctx := t.Context()
	if _, err := client.CoreV1().Namespaces().Create(ctx, &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: namespace}},
		meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	role := &rbac.Role{ObjectMeta: meta.ObjectMeta{Name: "registry"}, Rules: rules(t)}
	if _, err := client.RbacV1().Roles(namespace).Create(ctx, role, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbac.RoleBinding{ObjectMeta: meta.ObjectMeta{Name: "registry"},
		RoleRef:  rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: "registry"},
		Subjects: []rbac.Subject{{Kind: rbac.UserKind, APIGroup: rbac.GroupName, Name: account}}}
	if _, err := client.RbacV1().RoleBindings(namespace).Create(ctx, binding, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the account has its rights", func() bool {
		asked := rest.CopyConfig(api)
		asked.BearerToken = gatewayToken
		gateway, err := kubernetes.NewForConfig(asked)
		if err != nil {
			t.Fatal(err)
		}
		_, err = gateway.CoreV1().Secrets(namespace).List(ctx, meta.ListOptions{})
		return err == nil
	})
}

// rules are those of the chart's role.
func rules(t *testing.T) []rbac.PolicyRule {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", "helm", "tandem", "templates", "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\nrules:\n")
	part, _, _ := strings.Cut(after, "\n---")
	var role rbac.Role
	if err := yaml.UnmarshalStrict([]byte("rules:\n"+part), &role); err != nil || len(role.Rules) != 2 {
		t.Fatalf("rules of the chart's role: %v, %v", role.Rules, err)
	}
	return role.Rules
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
